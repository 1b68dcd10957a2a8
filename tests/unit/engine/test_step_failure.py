"""A step that fails costs its requests, and never a block."""

from __future__ import annotations

import pytest

from headrace.backends.base import StepPlan
from headrace.engine.sampling import SamplingParams
from tests.support.engine_runs import Recorder, fake_engine, run_alone


class BrokenError(Exception):
    """What the backend raises."""


def test_no_block_is_lost_when_a_step_with_copies_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = fake_engine(64)
    # The choices fork from a prompt that ends within a block: their first step copies its tail.
    params = SamplingParams(n=4, max_tokens=3, seed=1, ignore_eos=True)
    prompt = list(range(2, 22))
    engine.add("lost", prompt, params)
    engine.step()

    def fail(plan: StepPlan) -> StepPlan:
        assert plan.copies
        raise BrokenError

    with monkeypatch.context() as patch:
        patch.setattr(engine.backend, "submit", fail)
        with pytest.raises(BrokenError):
            engine.step()
    engine.abort("lost")
    engine.check()
    assert engine.stats.num_free_blocks == engine.stats.num_blocks

    engine.add("next", prompt, params)
    recorder = Recorder()
    while engine.has_work():
        recorder.take(engine.step())
    assert recorder.requests["next"] == run_alone(prompt, params)
