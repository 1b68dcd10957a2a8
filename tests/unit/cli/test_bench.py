"""`headrace bench`: every verb of it runs, and says what is wrong in a sentence."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.real_server import MODEL, serve_model
from tests.support.scripted_server import ScriptedServer, answer
from tests.support.serving import Server, eventually
from tests.unit.cli.conftest import Cli, environment


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


def test_engine_with_other_types_has_other_roofs(cli: Cli, tiny_model: Path) -> None:
    words = ["bench", "engine", tiny_model, "--prompt-len", 8, "--batch", 1, "--context", 20]
    words += ["--steps", 2, "--repeat", 1, "--kv-dtype", "int8", "--activations", "float32"]
    result = cli(*words, "--accuracy", "--json")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert (found["kv_dtype"], found["activations"]) == ("int8", "float32")
    assert 0 <= found["accuracy"]["mean_kl"] < 0.1


@pytest.fixture(scope="module")
def server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serve_model(tiny_model, tmp_path_factory.mktemp("server") / "log") as running:
        yield running


@pytest.mark.parametrize("mode", [["--rate", 200], ["--concurrency", 3], []])
def test_serve_measures_a_real_server(cli: Cli, server: Server, mode: list[object]) -> None:
    words = ["bench", "serve", server.url, *mode, "--requests", 6, "--prompt-len", 12]
    words += ["--output-len", 5, "--dataset", "fixed"]
    result = cli(*words, "--json", "--ttft-ms", 1e6)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert (found["model"], found["completed"], found["errors"]) == (MODEL, 6, {})
    assert found["total_output_tokens"] == 30
    assert found["good_share"] == 1
    assert found["ttft_ms"]["p50"] <= found["e2e_ms"]["p50"]


def test_serve_plays_a_trace(cli: Cli, server: Server, tmp_path: Path) -> None:
    trace, rows = tmp_path / "trace.jsonl", tmp_path / "rows.csv"
    line = '{"timestamp": %d, "input_length": 600, "output_length": 9, "hash_ids": [4, %d]}\n'
    trace.write_text("".join(line % (at, at) for at in range(9)))
    words = ["--trace", trace, "--limit", 5, "--max-prompt", 20, "--max-tokens", 3, "--csv", rows]
    result = cli("bench", "serve", server.url, *words, "--chat", "--time-scale", 0.5)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[1].startswith("time to first token ")
    assert "5 of 5 requests succeeded" in result.stdout
    found = rows.read_text().splitlines()
    assert len(found) == 6
    assert [row.split(",")[1] for row in found[1:3]] == ["0.000000", "0.002000"]


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["nowhere"], 1, "'nowhere' is no URL of a server; write it like"),
        (["http://127.0.0.1:9", "--rate", 1], 1, "cannot be reached"),
        (["http://x", "--rate", 1, "--concurrency", 1], 2, "give one of them"),
        (["http://x", "--trace", "t", "--requests", 1], 2, "--limit shortens a trace"),
        (["http://x", "--trace", "none.csv"], 1, "none.csv: No such file"),
        (["http://x", "--csv", "no/such/folder.csv"], 1, "No such file or directory"),
        (["http://x", "--dataset", "poetry"], 2, "'poetry' is none of: fixed"),
    ],
)
def test_serve_says_what_is_wrong(cli: Cli, words: list[object], status: int, message: str) -> None:
    result = cli("bench", "serve", *words)
    assert (result.returncode, result.stdout) == (status, "")
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_an_interrupted_load_keeps_its_results(tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    with ScriptedServer(lambda _, body: answer(body)) as server:
        words = ["bench", "serve", server.url, "--rate", "20", "--requests", "100000"]
        process = subprocess.Popen(
            [sys.executable, "-m", "headrace.cli", *words, "--csv", str(rows)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(tmp_path),
        )
        eventually(lambda: len(server.bodies) > 5, 60)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "Stopped early: It was interrupted." in out
    assert len(rows.read_text().splitlines()) > 5


def test_plots_without_matplotlib_are_refused_before_the_run(cli: Cli, tmp_path: Path) -> None:
    """As the packages are: a folder of that name without its parts stands for its absence."""
    (tmp_path / "matplotlib.py").write_text("raise ImportError")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    result = cli("bench", "serve", "http://x", "--plot", "x.png", PYTHONPATH=path)
    assert result.returncode == 1
    assert "pip install 'headrace[bench]'" in result.stderr


def test_plots(cli: Cli, server: Server, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra `bench` is not installed")
    plot = tmp_path / "x.png"
    result = cli("bench", "serve", server.url, "--requests", 3, "--output-len", 3, "--plot", plot)
    assert result.returncode == 0, result.stderr
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_kernels_prints_every_one(cli: Cli) -> None:
    result = cli("bench", "kernels", "--repeat", 1, "--json")
    assert result.returncode == 0, result.stderr
    rates = json.loads(result.stdout)["rates"]
    names = [rate["name"] for rate in rates]
    assert {
        "Q4_1, 1 row",
        "Q4_1, 512 rows",
        "Q4_K x float32, 4 rows",
        "pack Q8_0",
        "rmsnorm",
        "attention, decode at 8000, int8",
        "attention, prompt of 512, fp16",
    } <= set(names)
    assert all(rate["value"] > 0 and rate["roof"] > 0 for rate in rates)
