"""The simulator: virtual time by a machine's model, the engine's own scheduler, the same twice."""

from __future__ import annotations

import math
import random
from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.engine.base import EngineConfig, RequestOptions, Scheduling
from headrace.engine.order import QueueOrder
from headrace.engine.step_time import StepTime
from headrace.kv.lookahead.base import Allocation
from headrace.sim.machine import LinearMachine, RooflineMachine
from headrace.sim.run import Job, SimRun, Site, simulate

# One second a step, and one for each row of a prompt: sums stay exact.
SLOW = LinearMachine(StepTime(1.0, 0.0, 0.0, 1.0, 0.0))


def _prompt(length: int, first: int = 1) -> array[int]:
    return array("i", range(first, first + length))


def _site(num_blocks: int = 64, **config: object) -> Site:
    fields: dict[str, Any] = {"max_num_seqs": 4, "max_step_tokens": 32, **config}
    return Site(SLOW, num_blocks, EngineConfig(**fields))


def test_time_is_that_of_the_steps() -> None:
    """A prompt of 40 tokens is two chunks of 33 and 9 seconds, then a second for every token."""
    run = simulate(_site(), [Job(5.0, _prompt(40), 4)])
    assert run.outcomes[0].token_times == [47.0, 48.0, 49.0, 50.0]
    assert run.outcomes[0].ttft_s == 42.0
    assert run.outcomes[0].tpot_s == 1.0
    assert (run.busy_s, run.duration_s) == (45.0, 50.0)
    assert run.computed_rows == 40 + 3
    assert run.recomputed_rows == 0


def test_the_engine_learns_an_answers_length_only_when_it_ends() -> None:
    jobs = [Job(0.0, _prompt(8), 5, max_tokens=100), Job(0.0, _prompt(8), 7, max_tokens=3)]
    run = simulate(_site(), jobs)
    assert [len(o.token_times) for o in run.outcomes] == [5, 3]


def test_what_the_queue_refuses_is_an_error_of_its_own() -> None:
    jobs = [Job(0.0, _prompt(30), 2) for _ in range(4)] + [Job(0.0, _prompt(5000), 2)]
    run = simulate(_site(max_waiting=2), jobs)
    assert [bool(o.error) for o in run.outcomes] == [False, False, True, True, True]
    assert "queue is full" in run.outcomes[2].error
    assert len(run.good) == 2


def test_a_small_pool_preempts_and_recomputation_is_counted() -> None:
    run = simulate(_site(num_blocks=6), [Job(0.0, _prompt(20, 1 + i), 30) for i in range(3)])
    assert run.stats.num_preemptions > 0
    assert sum(o.num_preemptions for o in run.outcomes) == run.stats.num_preemptions
    assert run.recomputed_rows > 0
    assert all(len(o.token_times) == 30 for o in run.outcomes)


def test_goodput_counts_answers_within_both_objectives() -> None:
    run = simulate(_site(), [Job(0.0, _prompt(4), 5), Job(0.0, _prompt(4), 1)])
    assert run.goodput(math.inf, math.inf) == 2 / run.duration_s
    assert run.goodput(0.0, math.inf) == 0.0
    assert run.goodput(math.inf, 0.5) == 1 / run.duration_s


def test_a_priority_goes_first() -> None:
    jobs = [
        Job(0.0, _prompt(32), 1),
        Job(0.0, _prompt(32, 2), 1),
        Job(0.0, _prompt(32, 3), 1, options=RequestOptions(priority=-1)),
    ]
    times = [o.ttft_s for o in simulate(_site(), jobs).outcomes]
    assert times == [66.0, 99.0, 33.0]


def test_a_bandwidth_bound_machine_reads_its_weights_once_a_step() -> None:
    machine = RooflineMachine(
        weight_bytes=1000,
        kv_bytes=1,
        row_ops=1,
        attend_ops=0,
        bytes_per_s=1000,
        ops_per_s=100,
        base_s=0.5,
    )
    site = Site(machine, 64, EngineConfig(max_num_seqs=4, max_step_tokens=512))
    run = simulate(site, [Job(0.0, _prompt(200), 2), Job(0.0, _prompt(200, 2), 2)])
    # 400 rows take 4 s of arithmetic; two rows read 1,000 bytes of weights and 402 of KV.
    assert run.outcomes[0].token_times == pytest.approx([4.5, 6.402])


@st.composite
def loads(draw: st.DrawFn) -> list[Job]:
    return [
        Job(
            draw(st.floats(0, 300)),
            _prompt(draw(st.sampled_from([1, 15, 16, 17, 60, 200])), 1 + i),
            draw(st.integers(1, 40)),
            max_tokens=draw(st.none() | st.just(60)),
            options=RequestOptions(priority=draw(st.integers(-1, 1))),
        )
        for i in range(draw(st.integers(1, 12)))
    ]


@settings(max_examples=60, deadline=None)
@given(
    loads(),
    st.sampled_from(QueueOrder),
    st.integers(17, 40),
    st.integers(1, 4),
    st.sampled_from([None, 0.0, 3.0]),
    st.integers(0, 3),
    st.sampled_from(Allocation),
)
def test_every_job_gets_all_its_tokens_and_the_same_run_is_the_same(
    jobs: list[Job],
    order: QueueOrder,
    num_blocks: int,
    max_partial: int,
    itl_target_s: float | None,
    max_passes: int,
    allocation: Allocation,
) -> None:
    scheduling = Scheduling(
        order=order,
        max_partial=max_partial,
        itl_target_s=itl_target_s,
        max_passes=max_passes,
        allocation=allocation,
    )
    site = _site(num_blocks, scheduling=scheduling)
    run = simulate(site, jobs)
    by_arrival = sorted(jobs, key=lambda job: job.at_s)
    for job, outcome in zip(by_arrival, run.outcomes, strict=True):
        assert not outcome.error
        assert len(outcome.token_times) == min(job.output_len, job.max_tokens or job.output_len)
        assert outcome.token_times == sorted(outcome.token_times)
        assert outcome.token_times[0] > job.at_s
    assert run.recomputed_rows >= 0
    again = simulate(site, jobs)
    assert [o.token_times for o in again.outcomes] == [o.token_times for o in run.outcomes]


@pytest.mark.parametrize("allocation", Allocation)
@pytest.mark.parametrize("order", QueueOrder)
def test_a_long_prompt_is_not_starved_by_short_ones(
    order: QueueOrder, allocation: Allocation
) -> None:
    """For ever twice as much short work as the machine can do; the long prompt, which does not even
    fit beside what runs, must get through."""
    rng = random.Random(1)
    jobs = [Job(20.0, _prompt(700), 2)]
    jobs += [Job(12.0 * i, _prompt(rng.randint(10, 30), 1 + i), 4) for i in range(600)]
    scheduling = Scheduling(order=order, max_passes=8, max_wait_s=math.inf, allocation=allocation)
    run = simulate(_site(num_blocks=46, max_waiting=30, scheduling=scheduling), jobs)
    long = next(o for o in run.outcomes if o.prompt_len == 700)
    assert not long.error
    # The queue is bounded, so what may go before it is, too: `patience` times 30 requests of about
    # 26 s and itself. Then 8 may pass it over while it does not fit, and it takes its own time.
    short_s, own_s = 26, 700 + 22
    assert long.ttft_s < scheduling.patience * (30 * short_s + own_s) + 8 * 30 + own_s
    assert long.token_times[0] < max(_last(run))


def _last(run: SimRun) -> list[float]:
    return [o.token_times[-1] for o in run.good]
