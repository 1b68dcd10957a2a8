"""What counts as ideal, and a run over a tiny model, whose answers must be the same both ways."""

from __future__ import annotations

import statistics
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import prefix_programs
from benchmarks.prefix_programs import CONTEXT_SCALE, Steps, Work, prefill_seconds
from benchmarks.rows import read_figures
from benchmarks.targets import FIGURE_TARGETS
from benchmarks.workloads import PROGRAMS, Pieces
from headrace.program import Session
from tests.support.make_model import make_gguf


def test_ideally_each_distinct_token_is_computed_once() -> None:
    requests = [
        ((1, 2, 3), (4, 5, 9)),
        ((1, 2, 3, 4, 5, 6), ()),  # 4 and 5 were decoded; 9, the last answer's end, was not
        ((1, 2, 3, 4, 5, 9), ()),
        ((1, 2, 7), (8,)),
    ]
    work = Work.of(requests)
    assert work.num_rows == 3 + 6 + 6 + 3
    # 1 2 3, 6 and 9 behind 1 2 3 4 5, and 7 behind 1 2.
    assert work.num_distinct == 3 + 2 + 1
    positions = [0, 1, 2, 5, 5, 2]
    assert work.distinct_cost == pytest.approx(sum(1 + p / CONTEXT_SCALE for p in positions))
    assert Work.of([((1, 2), (3,))] * 2).num_distinct == 2


def test_decodes_are_taken_off_a_step_with_prompts() -> None:
    steps = Steps(prefills=[(1.0, 0), (1.0, 2), (1.0, 9), (0.1, 2)])
    assert prefill_seconds(steps, {2: 0.25, 8: 0.5}) == pytest.approx(1.0 + 0.75 + 0.5)
    assert prefill_seconds(steps, {}) == pytest.approx(3.1)


Asked = list[tuple[str, list[list[int]]]]


class SlowLLM:
    """Remembers who was asked what, in order; `on` takes twice as long."""

    def __init__(self, key: str, clock: list[float], asked: Asked) -> None:
        self.tokenizer = SimpleNamespace(vocab_size=1000)
        self._key, self._clock, self._asked = key, clock, asked

    def generate(self, prompts: list[list[int]], params: object) -> None:
        self._asked.append((self._key, prompts))
        self._clock[0] += {"off": 1.0, "on": 2.0}[self._key]

    def close(self) -> None:
        self._asked.append((self._key, []))


def test_pairs_get_the_same_new_prompts_in_both_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, asked = [0.0], Asked()
    monkeypatch.setattr(prefix_programs, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    llms = {key: SlowLLM(key, clock, asked) for key in ("off", "on")}

    def make(model: object, *, kv_cache_bytes: int, prefix_cache: bool) -> SlowLLM:
        return llms["on" if prefix_cache else "off"]

    monkeypatch.setattr(prefix_programs, "LLM", make)
    figures = list(prefix_programs.measure_unshared(Path(), 0, attempts=1))
    assert [asked.pop(), asked.pop()] == [("on", []), ("off", [])]
    assert [key for key, _ in asked] == [*["off", "on"] * 2, *["off", "on", "on", "off"] * 4]
    batches = [prompts for _, prompts in asked]
    assert batches[::2] == batches[1::2]
    firsts = [tuple(prompt[:16]) for prompts in batches[::2] for prompt in prompts]
    assert len(set(firsts)) == len(firsts)
    assert [f.value for f in figures] == [0.5] * 10


def small(session: Session, pieces: Pieces) -> None:
    """A shared beginning, branches, and a choice."""
    prompt = session.prompt(pieces.take(2))
    with prompt.fork(3) as branches:
        for branch in branches:
            branch.append(pieces.take(1))
            branch.gen(max_tokens=20, temperature=0.9, ignore_eos=True)
            branch.select(None, [" yes", " no"])


def test_a_run_saves_what_is_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_gguf(tmp_path / "m.gguf").path
    rows = tmp_path / "rows.csv"
    monkeypatch.delenv("HEADRACE_DATA", raising=False)
    monkeypatch.setattr(prefix_programs, "PROGRAMS", dict.fromkeys(PROGRAMS, small))
    for name, value in {"KV_BYTES": 1 << 20, "UNSHARED_KV_BYTES": 1 << 20}.items():
        monkeypatch.setattr(prefix_programs, name, value)
    for name, value in {"REQUESTS": 2, "PROMPT": 40, "TOKENS": 2, "PAIRS": 3}.items():
        monkeypatch.setattr(prefix_programs, f"UNSHARED_{name}", value)
    monkeypatch.setattr("sys.argv", ["", str(model), "--rounds", "1", "--busy", "--out", str(rows)])
    prefix_programs.main()
    found = read_figures(rows)
    figures = {figure.figure: figure.value for figure in found}
    pairs = [f for f in found if f.figure == "no sharing, speed with over without"]
    assert len(pairs) == 3
    assert all(f.attempts == 1 for f in pairs)
    lower = figures["no sharing, lower quartile of the pairs"]
    upper = figures["no sharing, upper quartile of the pairs"]
    assert lower <= statistics.median(f.value for f in pairs) <= upper
    assert set(FIGURE_TARGETS["17"]) <= set(figures)
    for name in PROGRAMS:
        assert 90 <= figures[f"{name}, tokens saved of the ideal"] <= 100
