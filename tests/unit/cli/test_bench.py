"""`headrace bench`: every verb of it runs, and says what is wrong in a sentence."""

from __future__ import annotations

import json
from pathlib import Path

from tests.unit.cli.conftest import Cli


def test_bench_alone_lists_its_verbs(cli: Cli) -> None:
    result = cli("bench", "smollm2:135m")
    assert result.returncode == 2
    assert "No such command 'smollm2:135m'" in result.stderr


def test_roof_prints_a_table_and_json(cli: Cli) -> None:
    words = ["bench", "roof", "--working-set", "1M", "--repeat", "1", "--threads", "2"]
    table = cli(*words)
    assert table.returncode == 0, table.stderr
    assert table.stdout.splitlines()[1].startswith("read, 1 MiB")
    found = json.loads(cli(*words, "--isa", "scalar", "--json").stdout)
    assert (found["isa"], found["threads"]) == ("scalar", 2)
    assert [rate["unit"] for rate in found["rates"]] == ["GB/s", "GFLOP/s", *["Gop/s"] * 3]
    small = cli("bench", "roof", "--working-set", "1K")
    assert (small.returncode, small.stdout) == (2, "")
    assert "a page for each thread" in small.stderr


def test_engine_measures_what_fits_and_says_what_does_not(
    cli: Cli, tiny_model: Path, tmp_path: Path
) -> None:
    raw = tmp_path / "steps.csv"
    words = ["bench", "engine", tiny_model, "--prompt-len", 20, "--batch", 1, "--batch", 3]
    words += ["--context", 9, "--context", 10**6, "--steps", 4, "--repeat", 2, "--csv", raw]
    result = cli(*words, "--threads", 2, "--json", "--accuracy")
    assert result.returncode == 0, result.stderr
    assert "Left out decode 3, context 1000000: sequences of " in result.stderr
    found = json.loads(result.stdout)
    names = ["prefill 20", "decode 1, context 9", "decode 3, context 9"]
    assert [figure["name"] for figure in found["figures"]] == names
    for figure in found["figures"]:
        assert 0 < figure["least"] <= figure["median"] <= figure["most"]
        assert figure["roof"] > 0
        assert 0 <= figure["python_median_ms"] <= figure["python_p99_ms"]
    assert found["accuracy"]["tokens"] > 0
    assert 0 <= found["accuracy"]["mean_kl"] < 0.1
    rows = raw.read_text().splitlines()
    assert rows[0] == "point,run,step,rows,context,wall_s,native_s"
    assert sum(row.startswith('"decode 3, context 9",1,') for row in rows) == 4
    table = cli(*words)
    assert table.stdout.splitlines()[2].startswith("decode 1, context 9")


def test_engine_says_how_much_memory_a_point_needs(cli: Cli, tiny_model: Path) -> None:
    words = ["bench", "engine", tiny_model, "--prompt-len", 8, "--batch", 2, "--context", 60]
    result = cli(*words, "--steps", 2, "--repeat", 1, "--kv-cache-memory", "40K", "--json")
    assert result.returncode == 0, result.stderr
    assert "Left out decode 2, context 60: " in result.stderr
