"""Foresight beside the engine it serves: forecasts learned, rows and extents counted."""

from __future__ import annotations

import random
from array import array
from dataclasses import replace

import pytest

from headrace.backends.layout import BLOCK_LEN
from headrace.engine.base import EngineConfig, RequestOptions, Scheduling
from headrace.engine.engine import Engine
from headrace.engine.foresight import Foresight
from headrace.engine.request import SequenceState, Status
from headrace.engine.sampling import SamplingParams
from headrace.engine.step_time import StepTime
from headrace.kv.lookahead.base import Allocation
from headrace.kv.lookahead.forecast import Forecast
from headrace.kv.lookahead.risk import HORIZONS
from headrace.kv.tables import blocks_for
from headrace.sim.backend import SimBackend, SimTokenizer, VirtualClock
from headrace.sim.machine import LinearMachine
from headrace.sim.run import Job, Simulation, Site

# Rows of prompts are dear enough for a preemption to be worth avoiding.
MACHINE = LinearMachine(StepTime(1.0, 0.0, 0.0, 0.05, 0.0))


def _site(num_blocks: int, allocation: Allocation, *, prefix_cache: bool = False) -> Site:
    config = EngineConfig(
        max_num_seqs=8,
        max_step_tokens=64,
        prefix_cache=prefix_cache,
        scheduling=Scheduling(allocation=allocation),
    )
    return Site(MACHINE, num_blocks, config)


def _jobs(num: int, seed: int = 1) -> list[Job]:
    """Outputs of about 30 tokens, of at most 300, as far as anybody knows."""
    rng = random.Random(seed)
    return [
        Job(
            0.0,
            array("i", (rng.randrange(1, 1000) for _ in range(rng.randint(10, 60)))),
            rng.randint(20, 40),
            max_tokens=300,
        )
        for _ in range(num)
    ]


def _run(simulation: Simulation) -> Foresight:
    for _ in simulation.steps():
        simulation.engine.check()
    return simulation.engine.foresight


@pytest.mark.parametrize("allocation", Allocation)
@pytest.mark.parametrize("prefix_cache", [False, True])
def test_rows_computed_twice_are_counted(allocation: Allocation, prefix_cache: bool) -> None:
    simulation = Simulation(_site(23, allocation, prefix_cache=prefix_cache), _jobs(30))
    foresight = _run(simulation)
    run = simulation.result()
    assert foresight.num_recomputed == run.recomputed_rows
    assert bool(run.recomputed_rows) == bool(run.stats.num_preemptions)
    if allocation is Allocation.ON_DEMAND:
        assert run.stats.num_preemptions > 0, "or this proves nothing"
    if allocation is Allocation.RESERVE_MAX:
        assert run.stats.num_preemptions == 0


def test_what_was_learned_lets_more_run_at_once_and_preempts_less() -> None:
    """300 tokens each would be 20 blocks of 30; 30 to 100 positions are what they really take."""
    preempted, most_running = {}, {}
    for allocation in Allocation:
        simulation = Simulation(_site(30, allocation), _jobs(120))
        running = []
        for _ in simulation.steps():
            running.append(simulation.engine.stats.num_running)
        preempted[allocation] = simulation.result().stats.num_preemptions
        most_running[allocation] = max(running[len(running) // 2 :])
    assert most_running[Allocation.LOOKAHEAD] > 2 * most_running[Allocation.RESERVE_MAX]
    assert preempted[Allocation.LOOKAHEAD] < preempted[Allocation.ON_DEMAND]


def test_forecasts_are_scored_and_sequences_stay_in_few_runs() -> None:
    simulation = Simulation(_site(200, Allocation.LOOKAHEAD), _jobs(120))
    foresight = _run(simulation)
    score = foresight.score
    assert score.num_outputs == 120
    assert score.num_tokens == simulation.result().output_tokens
    # The first are foreseen to take their limit; nine of ten are to end by the second quantile.
    assert 0.35 < score.covered[0] / 120 < 0.85
    assert 0.8 < score.covered[1] / 120 <= 1.0
    assert foresight.num_tables == 120
    assert foresight.num_extents / foresight.num_tables < 1.3


@pytest.mark.parametrize("seed", range(4))
def test_tenants_whose_outputs_differ_are_told_apart(seed: int) -> None:
    """Nothing else does: their prompts are alike. The salt halves the loss, and then some."""
    rng, losses = random.Random(seed), {}
    jobs = [
        (salt, Job(0.0, array("i", (rng.randrange(1, 1000) for _ in range(40))), length, 300))
        for _ in range(150)
        for salt, length in (("chat", rng.randint(180, 220)), ("labels", rng.randint(2, 6)))
    ]
    for is_told in (False, True):
        told = [
            replace(job, options=RequestOptions(salt=salt if is_told else "")) for salt, job in jobs
        ]
        losses[is_told] = _run(Simulation(_site(200, Allocation.LOOKAHEAD), told)).score.losses
    for with_salt, without in zip(losses[True], losses[False], strict=True):
        assert with_salt < 0.5 * without


def test_who_began_when_nothing_was_known_learns_from_those_that_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Long before it is long itself, and also when it has to wait to run again."""
    first = Job(0.0, array("i", range(1, 20)), 280, max_tokens=300)
    simulation = Simulation(_site(200, Allocation.LOOKAHEAD), [first, *_jobs(60)])
    foresight, joined = simulation.engine.foresight, list[SequenceState]()
    join = foresight.join

    def note(seq: SequenceState) -> None:
        joined.append(seq)
        join(seq)

    monkeypatch.setattr(foresight, "join", note)
    at, sure = HORIZONS.index(128), list[bool]()
    for _ in simulation.steps():
        known = joined[0].prospect.known
        sure.append(known.mean[at] == 1024 * known.alive[at])
        if joined[0].num_output == 58:
            break
    assert foresight.num_ended > 8, "or this proves nothing"
    assert sure[0]
    assert not sure[-1]


def test_whoever_waits_to_run_again_learns_from_those_that_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    simulation = Simulation(_site(23, Allocation.LOOKAHEAD), _jobs(60))
    foresight = simulation.engine.foresight
    preempt, renew = foresight.preempt, Forecast.renew
    preempted, num_renewed = list[SequenceState](), 0

    def note(seq: SequenceState) -> None:
        preempted.append(seq)
        preempt(seq)

    def note_renewed(forecast: Forecast) -> None:
        nonlocal num_renewed
        waiting = (seq for seq in preempted if seq.status is Status.WAITING and seq.num_output)
        num_renewed += any(seq.prospect.forecast is forecast for seq in waiting)
        renew(forecast)

    monkeypatch.setattr(foresight, "preempt", note)
    monkeypatch.setattr(Forecast, "renew", note_renewed)
    _run(simulation)
    assert preempted, "or this proves nothing"
    assert num_renewed > 0


def test_blocks_are_kept_free_only_where_somebody_is_refused() -> None:
    engine = Engine(
        SimBackend(MACHINE, VirtualClock(), 20, max_step_rows=64),
        SimTokenizer(),
        1000,
        _site(20, Allocation.RESERVE_MAX).config,
    )
    engine.backend.outputs.update({1: 50, 2: 50})  # type: ignore[attr-defined]
    for seed in (1, 2):
        engine.add(str(seed), [5] * 16, SamplingParams(max_tokens=160, seed=seed))
        engine.step()
        kept = 0 if seed == 1 else 20 - blocks_for(18)
        assert engine.foresight.num_kept_free == kept
    while engine.has_work():
        engine.step()
    assert engine.foresight.num_kept_free == 0


@pytest.mark.parametrize("allocation", [Allocation.LOOKAHEAD, Allocation.RESERVE_MAX])
def test_choices_count_what_they_share_once(allocation: Allocation) -> None:
    backend = SimBackend(MACHINE, VirtualClock(), 60, max_step_rows=64)
    engine = Engine(backend, SimTokenizer(), 1000, _site(60, allocation).config)
    engine.add("n", [5] * (3 * BLOCK_LEN), SamplingParams(n=3, max_tokens=40, seed=1))
    backend.outputs = _Always(30)
    engine.step()
    engine.step()
    room = engine.foresight.room(None)
    assert room.num_own == 60 - engine.pool.num_shared
    assert engine.pool.num_shared == 3
    while engine.has_work():
        engine.step()
        engine.check()
    assert engine.foresight.room(None).num_own == 60


class _Always(dict[int, int]):
    """Every output has this length."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self._length = length

    def __missing__(self, key: int) -> int:
        return self._length
