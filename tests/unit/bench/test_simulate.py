"""Shapes as jobs of the simulator."""

from __future__ import annotations

import pytest

from headrace.bench.load.shapes import Shape, poisson
from headrace.bench.simulate import PromptIds, Summary, jobs_of, overload, saturation, scaled
from headrace.engine.base import EngineConfig
from headrace.engine.step_time import StepTime
from headrace.sim.machine import LinearMachine
from headrace.sim.run import Site, simulate

SITE = Site(LinearMachine(StepTime(0.5, 0.0, 0.0, 0.0, 0.0)), 64, EngineConfig(max_num_seqs=2))


def test_prompts_have_their_lengths_and_no_two_are_alike() -> None:
    jobs = jobs_of([Shape(0.5, 40, 3), Shape(1.0, 40, 4)], max_tokens=9)
    assert [(len(j.prompt), j.at_s, j.output_len, j.max_tokens) for j in jobs] == [
        (40, 0.5, 3, 9), (40, 1.0, 4, 9),
    ]  # fmt: skip
    assert jobs[0].prompt != jobs[1].prompt
    assert jobs == jobs_of([Shape(0.5, 40, 3), Shape(1.0, 40, 4)], max_tokens=9)


def test_equal_blocks_are_equal_ids_and_scale_with_the_prompt() -> None:
    shapes = [
        Shape(0.0, 1030, 5, (7, 8, 9)),
        Shape(0.0, 1024, 5, (7, 8)),
        Shape(0.0, 600, 5, (8, 7)),
    ]
    ids = PromptIds(1, divisor=32)
    first, second, third = (ids.make(i, scaled(s, 32)) for i, s in enumerate(shapes))
    assert (len(first), len(second), len(third)) == (33, 32, 19)
    assert first[:32] == second
    assert third[:16] == second[16:]
    assert third[16:] == second[:3]


def test_saturation_and_overload() -> None:
    """Two at once, two steps each of half a second: two requests a second."""
    shapes = [Shape(9.0, 10, 2)] * 20
    assert saturation(SITE, shapes) == pytest.approx(2.0)
    jobs = overload(SITE, shapes, 1.5, seed=3)
    assert [j.at_s for j in jobs] == [s.at_s for s in poisson(shapes, 3.0, 3)]


def test_a_summary_in_seconds() -> None:
    summary = Summary.of(simulate(SITE, jobs_of([Shape(0.0, 10, 3), Shape(0.0, 10, 1)])))
    assert summary.ttft_mean == summary.ttft_p99 == 0.5
    assert summary.tpot_mean == summary.gap_max == 0.5
    assert summary.duration == 1.5
    assert summary.tokens_per_s == pytest.approx(4 / 1.5)
