"""Paging, chunks and batches of the reference backend: none of them changes a result."""

from __future__ import annotations

from array import array
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from headrace.backends.base import SamplingSpec, StepPlan, WantedRow
from headrace.backends.layout import BLOCK_LEN
from headrace.backends.reference import CPU_LIKE, EXACT, Numerics, ReferenceBackend
from headrace.weights.base import DType
from tests.support.make_model import make_gguf
from tests.support.plans import PlanMaker, TestSequence
from tests.support.sources import MemorySource, memory_source

FAMILIES = ("llama", "qwen2", "qwen3", "gemma3")
GREEDY = SamplingSpec(temperature=0.0, num_top=2)
PROMPT = [int(i) for i in np.random.default_rng(0).integers(0, 320, 45)]
Floats = npt.NDArray[np.floating]


@pytest.fixture(scope="module", params=FAMILIES)
def source(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> MemorySource:
    path = tmp_path_factory.mktemp("made") / f"{request.param}.gguf"
    return memory_source(make_gguf(path, family=request.param, dtype=DType.Q8_0, window=20))


def _open(source: MemorySource, numerics: Numerics = EXACT, seed: int = 0) -> _Run:
    backend = ReferenceBackend(source, num_blocks=96, numerics=numerics)
    return _Run(backend, PlanMaker(backend.layout, 96, seed))


class _Run:
    def __init__(self, backend: ReferenceBackend, maker: PlanMaker) -> None:
        self.backend = backend
        self.maker = maker

    def last_logits(self, *parts: tuple[TestSequence, list[int]]) -> Floats:
        """Logits of the last row of each part."""
        ends = np.cumsum([len(tokens) for _, tokens in parts])
        wanted = [WantedRow(int(end) - 1, GREEDY) for end in ends]
        return self.backend.logits(self.maker.plan(parts, wanted))


def _alone(source: MemorySource, prompt: list[int]) -> Floats:
    run = _open(source)
    logits: Floats = run.last_logits((run.maker.sequence(), prompt))[0]
    return logits


def _close(got: Floats, expected: Floats) -> bool:
    return float(np.abs(got - expected).max()) < 1e-5


@pytest.mark.parametrize("chunk", [1, 7, BLOCK_LEN, 44])
def test_chunks_do_not_matter(source: MemorySource, chunk: int) -> None:
    run = _open(source, seed=1)
    sequence = run.maker.sequence()
    last = np.zeros(0)
    for start in range(0, len(PROMPT), chunk):
        last = run.last_logits((sequence, PROMPT[start : start + chunk]))[0]
    assert _close(last, _alone(source, PROMPT))


def test_a_batch_does_not_matter(source: MemorySource) -> None:
    run = _open(source)
    first, second, third = (run.maker.sequence() for _ in range(3))
    run.last_logits((first, PROMPT[:20]), (second, PROMPT[5:9]))
    rows = run.last_logits((first, PROMPT[20:]), (third, PROMPT[3:30]), (second, PROMPT[9:10]))
    for row, prompt in zip(rows, (PROMPT, PROMPT[3:30], PROMPT[5:10]), strict=True):
        assert _close(row, _alone(source, prompt))


def test_a_copied_block_is_a_fork(source: MemorySource) -> None:
    run = _open(source)
    trunk, branch = run.maker.sequence(), run.maker.sequence()
    run.last_logits((trunk, PROMPT[:20]))
    copies = []
    for group, table in enumerate(trunk.tables):
        tail = run.maker.block()
        branch.tables[group] = [*table[:-1], tail]
        copies.append((table[-1], tail))
    branch.num_planned = trunk.num_planned
    wanted = [WantedRow(0, GREEDY), WantedRow(1, GREEDY)]
    plan = run.maker.plan([(trunk, [3]), (branch, [4])], wanted, copies=copies)
    rows = run.backend.logits(plan)
    assert _close(rows[0], _alone(source, [*PROMPT[:20], 3]))
    assert _close(rows[1], _alone(source, [*PROMPT[:20], 4]))


def test_blocks_behind_the_window_are_not_read(source: MemorySource) -> None:
    run = _open(source)
    sequence = run.maker.sequence()
    run.last_logits((sequence, PROMPT[:-1]))
    for group, table in zip(run.backend.layout.groups, sequence.tables, strict=True):
        if group.window:
            first_seen = len(PROMPT) - 1 - (group.window - 1)
            for index in range(first_seen // BLOCK_LEN):
                table[index] = -1
    assert _close(run.last_logits((sequence, PROMPT[-1:]))[0], _alone(source, PROMPT))


def test_a_missing_block_that_is_read_is_an_error(source: MemorySource) -> None:
    run = _open(source)
    sequence = run.maker.sequence()
    run.last_logits((sequence, PROMPT[:-1]))
    for table in sequence.tables:
        table[1] = -1
    with pytest.raises(ValueError, match="block that the table does not have"):
        run.last_logits((sequence, PROMPT[-1:]))


def test_a_token_may_be_the_sample_of_the_step_before(source: MemorySource) -> None:
    run = _open(source)
    first, second = run.maker.sequence(), run.maker.sequence()
    wanted = [WantedRow(9, GREEDY), WantedRow(19, GREEDY)]
    plan = run.maker.plan([(first, PROMPT[:10]), (second, PROMPT[10:20])], wanted)
    drawn = [row.token for row in run.backend.collect(run.backend.submit(plan)).rows]
    rows = run.last_logits((second, [-2]), (first, [-1]))
    assert _close(rows[0], _alone(source, [*PROMPT[10:20], drawn[1]]))
    assert _close(rows[1], _alone(source, [*PROMPT[:10], drawn[0]]))


def test_samples_and_prompt_logprobs_of_one_step(source: MemorySource) -> None:
    run = _open(source)
    wanted = [
        WantedRow(3, GREEDY, sample=False, target=PROMPT[4]),
        WantedRow(9, GREEDY),
        WantedRow(9, SamplingSpec(seed=3)),
    ]
    plan = run.maker.plan([(run.maker.sequence(), PROMPT[:10])], wanted)
    target, greedy, drawn = run.backend.collect(run.backend.submit(plan)).rows
    logits = _alone(source, PROMPT[:10]).astype(np.float64)
    normaliser = np.log(np.exp(logits).sum())
    assert target.token == PROMPT[4]
    assert greedy.token == int(np.argmax(logits)) == greedy.top[0][0]
    assert greedy.logprob == pytest.approx(logits.max() - normaliser, abs=1e-5)
    assert np.isnan(drawn.logprob)
    assert not drawn.top


def test_hidden_states_are_the_buffers_after_the_plan(source: MemorySource) -> None:
    run = _open(source)
    wanted = [WantedRow(1, GREEDY)]
    plan = run.maker.plan([(run.maker.sequence(), PROMPT[:3])], wanted)
    states = run.backend.hidden_states(plan, ["x", "w", "logits"])
    assert np.array(states["x"]).shape == (3, run.backend.program.width("x"))
    assert states["w"] == [states["x"][1]]
    assert len(states["logits"][0]) == run.backend.program.vocab_size


def test_serving_precision_is_near_and_has_an_identity(source: MemorySource) -> None:
    """float16 keys and values and 16-bit activations cost about three decimal digits."""
    exact, served = _open(source), _open(source, CPU_LIKE)
    assert served.backend.arena.memory.dtype == np.float16
    rows = [r.last_logits((r.maker.sequence(), PROMPT))[0] for r in (exact, served)]
    assert 0 < np.abs(rows[0] - rows[1]).max() < 5e-3
    assert exact.backend.numerics_id != served.backend.numerics_id
    assert len(served.backend.numerics_id) == 64


def test_limits_and_handles(source: MemorySource) -> None:
    backend = ReferenceBackend(source, num_blocks=8, max_step_rows=2)
    plan = PlanMaker(backend.layout, 8)
    with pytest.raises(ValueError, match="at most 2 rows"):
        backend.submit(plan.plan([(plan.sequence(), [1, 2, 3])]))
    with pytest.raises(TypeError, match="what submit returned"):
        backend.collect("nothing")
    backend.close()
    assert backend.num_blocks == 8


def test_an_empty_plan_is_a_step_of_nothing(source: MemorySource) -> None:
    run = _open(source)
    groups = len(run.backend.layout.groups)
    plan = StepPlan(
        array("i"),
        array("i"),
        array("i", [0]),
        [array("i") for _ in range(groups)],
        [array("i") for _ in range(groups)],
    )
    assert run.backend.collect(run.backend.submit(plan)).rows == []


def test_made_files_are_read_from_memory(tmp_path: Path) -> None:
    made = make_gguf(tmp_path / "m.gguf", dtype=DType.Q4_1)
    source = memory_source(made)
    made.path.unlink()
    assert bytes(source.data("token_embd.weight")) == made.tensors["token_embd.weight"].data
