"""Rows, roofs, ratios and the report: arithmetic on rows that are made up, files that are not."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.accuracy_report import Window, mean_kl, model_lines, top1_bound
from benchmarks.machine import (
    MAX_ATTEMPTS,
    Attempted,
    Contention,
    CpuClock,
    parse_stat,
    session_cpu_s,
    undisturbed,
)
from benchmarks.report import fill, run_section, sections, speed_table, targets_table
from benchmarks.results_view import Results
from benchmarks.rivals.hf_folder import make_folder
from benchmarks.rivals.vllm_cpu import requirements
from benchmarks.roof import INTEGER, MEMORY, ModelCost, read_beside
from benchmarks.rows import Figure, Row, medians, read_figures, read_run, write_figures, write_run
from benchmarks.runs import RUNS
from headrace.backends.reference import ReferenceBackend
from headrace.bench.accuracy import chunk_plans, num_blocks
from headrace.weights.base import DType
from headrace.weights.open import open_source
from tests.support.make_model import make_gguf

FACTS: dict[str, Any] = {
    "machine": {
        "cpu": "A processor",
        "cores": 2,
        "instruction_sets": ["avx2"],
        "kernel_table": "avx2",
        "date": "2026-01-02T03:04:05",
        "commit": "abc",
    },
    "model": "m.gguf",
    "cost": {"weight_bytes": 800, "ops_per_token": 10, "layer_windows": [0, 4], "kv_values": 2},
    "points": {
        "prefill 512": {"do": "prefill", "tokens": 512},
        "decode 1": {"do": "decode", "sequences": 1, "context": 8, "tokens": 4},
    },
    "left_out": {"openvino": "no environment"},
}


def speed_rows() -> list[Row]:
    """Two rounds; the rival's second setting is the better one."""
    rows = []
    for number, slow in enumerate((1.0, 2.0)):
        rows += [
            Row(number, MEMORY, "roof", 1.0, 1e6, "bytes"),
            Row(number, INTEGER, "roof", 1.0, 20000.0, "operations"),
            Row(number, "prefill 512", "headrace", 0.512 * slow, 512),
            Row(number, "prefill 512", "llama-cpp flash=off", 5.12 * slow, 512),
            Row(number, "prefill 512", "llama-cpp flash=on", 2.56 * slow, 512, contended=1),
            Row(number, "decode 1", "headrace", 0.004 * slow, 4),
        ]
    return rows


def test_rows_and_facts_come_back_as_written(tmp_path: Path) -> None:
    write_run(tmp_path / "deep" / "r.csv", speed_rows(), FACTS)
    rows, facts = read_run(tmp_path / "deep" / "r.csv")
    assert rows == speed_rows()
    assert facts == FACTS


def test_figures_come_back_and_have_medians(tmp_path: Path) -> None:
    figures = [Figure(n, "peak", value, "MB") for n, value in enumerate((3.0, 1.0, 2.0))]
    write_figures(tmp_path / "f.csv", figures)
    assert read_figures(tmp_path / "f.csv") == figures
    assert medians(figures) == {"peak": (2.0, "MB", 3)}


def test_workers_are_compared_within_a_round(tmp_path: Path) -> None:
    lines = ["round,point,situation,seconds,tokens"]
    lines += ["0,decode 1,one,2.0,100", "0,decode 1,two,2.0,95", "1,decode 1,two,2.0,9"]
    (tmp_path / "w.csv").write_text("\n".join(lines), "utf-8")
    (figure,) = read_figures(tmp_path / "w.csv")
    assert (figure.round, figure.figure) == (0, "decode 1, two over one")
    assert figure.value == pytest.approx(0.95)


def test_ratios_are_of_the_same_round_and_the_best_setting() -> None:
    results = Results(speed_rows(), FACTS)
    assert results.best("prefill 512", "llama-cpp") == "llama-cpp flash=on"
    assert results.ratio("prefill 512", "headrace", "llama-cpp") == pytest.approx(5)
    assert results.ratio("decode 1", "headrace", "llama-cpp") is None
    assert results.families() == ["llama-cpp"]
    assert results.contended() == 2


def test_shares_count_weights_and_the_kv_that_is_read() -> None:
    results = Results(speed_rows(), FACTS)
    # 800 bytes of weights; at a mean context of 10 the full layer reads 10 positions of 4 bytes,
    # the layer with a window 4. 856 bytes in 1 ms and in 2 ms, of 1e6 bytes/s.
    assert results.share("decode 1") == pytest.approx((0.856 + 0.428) / 2)
    assert results.share("prefill 512") == pytest.approx((10 * 1000 / 2e4 + 10 * 500 / 2e4) / 2)


def test_a_share_is_of_what_memory_gave_right_before_and_after_the_row() -> None:
    name = read_beside("decode 1", "headrace")
    looks = [Row(n, name, "roof", 1.0, rate, "bytes") for n in (0, 1) for rate in (1e6, 3e6)]
    results = Results([*speed_rows(), *looks], FACTS)
    assert results.share("decode 1") == pytest.approx((0.856 + 0.428) / 2 / 2)
    assert results.points() == ["prefill 512", "decode 1"]


def test_the_table_names_the_setting_and_a_target_that_is_missed() -> None:
    assert "| prefill 512 | 750 | 38% | 150 | flash=on | 5.00x |" in speed_table(
        speed_rows(), FACTS
    )
    text = targets_table("02", Results(speed_rows(), FACTS))
    assert "| prefill 512, beside llama-cpp | >= 2.1 x | 5 x | yes |" in text
    assert "| decode 1, share of the bandwidth roof | >= 85 % | 64.2 % | no |" in text
    assert "not measured" in targets_table("01", Results(speed_rows(), FACTS))


def test_a_page_gets_what_has_rows_and_keeps_the_rest(tmp_path: Path) -> None:
    assert sections(tmp_path) == {}
    write_run(RUNS["02"].path(tmp_path), speed_rows(), FACTS)
    text = run_section(RUNS["02"], tmp_path)
    assert text is not None
    assert "Left out: openvino (no environment)" in text
    page = "a\n<!-- begin 01 -->\nold\n<!-- end 01 -->\n<!-- begin 02 -->\nold\n<!-- end 02 -->\n"
    filled = fill(page, sections(tmp_path))
    assert filled.startswith(
        "a\n<!-- begin 01 -->\nold\n<!-- end 01 -->\n<!-- begin 02 -->\nm.gguf;"
    )
    assert fill(filled, sections(tmp_path)) == filled


def test_accuracy_is_paired_by_window() -> None:
    windows = [Window(n, "headrace", 100, 0.1, 90 + n) for n in range(3)]
    windows += [Window(n, "llama.cpp", 100, 0.2, 90 + n) for n in range(3)]
    assert mean_kl(windows, "headrace") == pytest.approx(0.1)
    assert top1_bound(windows, "headrace", "llama.cpp") == pytest.approx(0)
    assert model_lines("m", windows)[1].endswith("| 0.50x | 91.00 % | +0.00 points | yes |")


def test_clocks_and_the_rule_of_contention() -> None:
    assert parse_stat("cpu 100 0 100 5 5 0 0 50 7 0\ncpu0") == pytest.approx((2.0, 0.5))
    before = CpuClock(10.0, 0.0, 0.0, 1.0)
    assert not Contention.between(before, CpuClock(12.0, 0.0, 1.0, 3.0)).is_contended
    assert Contention.between(before, CpuClock(13.0, 0.0, 1.0, 3.0)).is_contended
    assert Contention.between(before, CpuClock(12.0, 1.0, 1.0, 3.0)).is_contended
    assert session_cpu_s(1 << 30) == 0


@pytest.mark.parametrize(
    ("others_s", "expected"),
    [
        ([0.0], Attempted(1, 1, False)),
        ([0.5, 0.5, 0.0, 0.5], Attempted(3, 3, False)),
        ([0.5] * 9, Attempted(MAX_ATTEMPTS, MAX_ATTEMPTS, True)),
    ],
)
def test_a_row_is_measured_until_others_are_quiet(
    monkeypatch: pytest.MonkeyPatch, others_s: list[float], expected: Attempted[int]
) -> None:
    """Every attempt takes a second, in which others work so long."""
    now, calls = [0.0, 0.0], list[int]()

    def read(session: int | None = None) -> CpuClock:
        assert session == 7
        return CpuClock(now[1], 0.0, now[0], 0.0)

    def measure() -> int:
        now[0] += 1
        now[1] += others_s[len(calls)]
        calls.append(1)
        return len(calls)

    monkeypatch.setattr(CpuClock, "read", read)
    assert undisturbed(measure, session=7) == expected
    assert len(calls) == expected.attempts


def test_bytes_of_a_step_follow_the_file(tmp_path: Path) -> None:
    for tied in (True, False):
        made = make_gguf(tmp_path / f"{tied}.gguf", dtype=DType.Q8_0, tied_head=tied)
        source = open_source(made.path)
        cost = ModelCost.of(source)
        stored = sum(info.num_bytes for info in source.tensors.values())
        looked_up = 0 if tied else source.tensors["token_embd.weight"].num_bytes
        assert cost.weight_bytes == stored - looked_up
        config = source.config
        kv = config.num_layers * 2 * config.num_kv_heads * config.head_dim
        assert cost.step_bytes(3, 100) == cost.weight_bytes + 3 * 100 * kv * 2
        assert cost.kv_bytes(100, "int8") == 100 * kv
        linear = [i for i in source.tensors.values() if i.name.startswith("blk.")]
        weights = sum(math.prod(i.shape) for i in linear if len(i.shape) == 2)
        assert cost.ops_per_token == 2 * weights
        source.close()


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3"])
def test_the_converted_folder_is_the_same_network(tmp_path: Path, family: str) -> None:
    made = make_gguf(tmp_path / "m.gguf", family=family, dtype=DType.Q8_0)
    folder = make_folder(made.path, tmp_path / "folder")
    logits = []
    for path in (made.path, folder):
        source = open_source(path)
        backend = ReferenceBackend(source, num_blocks=num_blocks(source, 40))
        (plan,) = chunk_plans(backend.layout, range(5, 45), 40)
        logits.append(backend.logits(plan))
    assert np.abs(logits[0] - logits[1]).max() < 1e-4 * max(1.0, np.abs(logits[0]).max())


def test_requirements_without_torch_and_extras() -> None:
    wanted = ["numpy", "torch-c-dlpack-ext>=1", 'x; python_version > "3.11"']
    dropped = ["torch==2.13.0+cpu", "torchaudio; a", 'y; extra == "audio"', "torchcodec>=0.14"]
    assert requirements([*wanted, *dropped]) == wanted
