"""The arithmetic of the accuracy benchmark, and its plans run on the reference backend."""

from __future__ import annotations

import csv
import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks.accuracy import (
    CHUNK_LEN,
    BackendSystem,
    ReferenceSystem,
    Row,
    compare,
    summarize,
    verdicts,
    windows_of,
    write_rows,
)
from benchmarks.text import GSM8K, HUMANEVAL, PASSAGES, benchmark_text, kind_of_text, made_text
from headrace.backends.reference import EXACT, ReferenceBackend
from headrace.bench.accuracy import chunk_plans, log_softmax, num_blocks
from headrace.models.registry import build_program
from headrace.models.views import with_logits
from headrace.weights.base import DType
from headrace.weights.open import open_source
from tests.support.make_model import make_gguf


def test_kl_of_known_distributions() -> None:
    truth = np.log(np.array([[0.5, 0.5], [0.9, 0.1]]))
    system = np.log(np.array([[0.25, 0.75], [0.9, 0.1]], np.float32)) - 3
    row = compare(0, "s", truth, system, 1.0)
    kl = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
    assert row.mean_kl == pytest.approx(kl / 2, rel=1e-5)
    assert row.max_kl == pytest.approx(kl, rel=1e-5)
    assert (row.tokens, row.agreements) == (2, 1)


def test_log_softmax_sums_to_one_and_does_not_overflow() -> None:
    logits = np.array([[1e30, 0.0, -1e30], [3.0, 2.0, 1.0]], np.float32)
    assert np.exp(log_softmax(logits)).sum(axis=1) == pytest.approx([1.0, 1.0])


def test_a_system_equal_to_the_truth_has_no_divergence(tmp_path: Path) -> None:
    source = open_source(make_gguf(tmp_path / "m.gguf", family="gemma3", dtype=DType.Q8_0).path)
    windows = windows_of(source, made_text(200), 300, 2 * CHUNK_LEN + 20)
    assert [len(w) for w in windows] == [2 * CHUNK_LEN + 20] * 3
    assert {w[0] for w in windows} == {source.tokenizer.bos_id}
    truth = ReferenceSystem("truth", source, len(windows[0]), EXACT)
    chunked = BackendSystem("chunked", truth._reference)
    expected, got = truth.logits(windows[0]), chunked.logits(windows[0])
    row = compare(0, "chunked", expected, got, 0.0)
    assert abs(row.mean_kl) < 1e-9
    assert row.agreements == row.tokens == len(windows[0])


def test_chunks_cover_the_window_with_blocks_of_their_own(tmp_path: Path) -> None:
    source = open_source(make_gguf(tmp_path / "m.gguf", family="gemma3").path)
    backend = ReferenceBackend(source, num_blocks=num_blocks(source, 100))
    plans = list(chunk_plans(backend.layout, range(100), 48))
    assert [list(p.positions) for p in plans] == [
        [*range(48)],
        [*range(48, 96)],
        [*range(96, 100)],
    ]
    assert [len(p.wanted) for p in plans] == [48, 48, 4]
    blocks = [block for table in plans[-1].tables for block in table]
    assert len(blocks) == len(set(blocks))
    assert max(blocks) < backend.num_blocks


def test_summary_weighs_windows_by_tokens(tmp_path: Path) -> None:
    rows = [
        Row(0, "a", 100, 0.1, 0.1, 0.5, 90, 1.0),
        Row(1, "a", 300, 0.3, 0.1, 0.7, 300, 1.0),
    ]
    line = summarize(rows).splitlines()[-1]
    assert line == "| a | 400 | 0.250000 | 0.100000 | 0.7000 | 97.5000% |"
    write_rows(tmp_path / "rows.csv", rows)
    with (tmp_path / "rows.csv").open(newline="") as file:
        read = list(csv.DictReader(file))
    assert [float(row["mean_kl"]) for row in read] == [0.1, 0.3]


def test_text_is_gsm8k_where_there_is_one(tmp_path: Path) -> None:
    assert "made from a seed" in benchmark_text(tmp_path).source
    path = tmp_path / GSM8K
    path.parent.mkdir()
    path.write_text('{"question": "Why?", "answer": "Because."}\n', "utf-8")
    text = benchmark_text(tmp_path)
    assert text.source == "GSM8K test split"
    assert text.body == "Question: Why?\nAnswer: Because.\n"
    assert made_text(50) == made_text(50) != made_text(50, seed=1)


def test_text_suits_the_model(tmp_path: Path) -> None:
    assert kind_of_text("qwen2.5-coder-0.5b.gguf") == "code"
    assert kind_of_text("gemma-3-270m-q4_k_m.gguf") == "prose"
    assert kind_of_text("SmolLM2-135M-Instruct.Q4_1.gguf") == "maths"
    for kind in ("code", "prose"):
        assert "made from a seed" in benchmark_text(tmp_path, kind).source
    (tmp_path / HUMANEVAL).parent.mkdir()
    line = '{"prompt": "def f():\\n", "canonical_solution": "    return 1\\n"}\n'
    (tmp_path / HUMANEVAL).write_bytes(gzip.compress(line.encode()))
    assert benchmark_text(tmp_path, "code").body == "def f():\n    return 1\n"
    passage = "A mill stands at a race. " * 30
    rows = [json.dumps({"turns": [text]}) for text in ("Short?", passage)]
    (tmp_path / PASSAGES).write_text("\n".join(rows), "utf-8")
    assert benchmark_text(tmp_path, "prose").body == passage


def test_verdicts_pair_ours_with_each_rival() -> None:
    rows = [
        Row(window, system, 100, kl, kl, kl, same, 1.0)
        for window in (0, 1)
        for system, kl, same in (
            ("headrace", 0.001, 98),
            ("llama.cpp", 0.002, 97),
            ("headrace, int8 KV", 0.003, 96),
        )
    ]
    (line,) = verdicts("m", rows)
    assert line.startswith("m beside llama.cpp: mean KL 0.50x")
    assert "+1.00 points" in line


def test_with_logits_is_the_same_network(tmp_path: Path) -> None:
    source = open_source(make_gguf(tmp_path / "m.gguf", tied_head=False).path)
    backend = ReferenceBackend(source, num_blocks=8)
    (plan,) = chunk_plans(backend.layout, [5, 6, 7])
    expected = backend.logits(plan)
    program = with_logits(build_program(source.config))
    assert program.width("logits") == source.config.vocab_size
    shown = ReferenceBackend(source, program=program, num_blocks=8)
    assert np.array_equal(shown.logits(plan), expected)
