"""`headrace bench`: every verb of it runs, and says what is wrong in a sentence."""

from __future__ import annotations

import json

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
