"""`models`, `pull`, `doctor`, and the names under which `serve` serves."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from headrace.cli.serve import find_model
from headrace.weights.catalog import CATALOG, find_entry
from headrace.weights.fit import Fit, better_models, model_fit, needed_bytes
from headrace.weights.resolve import package_path
from tests.support.make_model import make_gguf
from tests.unit.cli.conftest import Cli

GIB = 1 << 30


def test_list_is_empty_then_says_how_to_fill_it(cli: Cli) -> None:
    result = cli("models")
    assert (result.returncode, result.stdout) == (0, "")
    assert "headrace pull smollm2:135m" in result.stderr
    assert json.loads(cli("models", "--json").stdout) == []


def test_available_lists_the_catalog(cli: Cli) -> None:
    for words in (("models", "--available"), ("models", "list", "--available")):
        text = cli(*words).stdout
        assert all(entry.name in text for entry in CATALOG)
    found = json.loads(cli("models", "list", "--available", "--json").stdout)
    assert [entry["name"] for entry in found] == [entry.name for entry in CATALOG]
    assert {entry["fit"] for entry in found} <= {"yes", "tightly", "no"}


def test_a_cached_model_is_listed_described_and_removed(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_model: Path
) -> None:
    entry = find_entry("smollm2:360m")
    assert entry is not None
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache" / "own"))
    path = package_path(entry)
    path.parent.mkdir(parents=True)
    shutil.copy(tiny_model, path)

    [listed] = json.loads(cli("models", "--json").stdout)
    assert (listed["name"], listed["path"]) == (entry.name, str(path))
    assert entry.name in cli("models").stdout

    refused = cli("models", "rm", entry.name, stdin="n\n")
    assert refused.returncode == 1
    assert path.exists()
    removed = cli("models", "rm", entry.name, "--yes")
    assert (removed.returncode, removed.stdout) == (0, "")
    assert not path.exists()
    assert cli("models", "rm", entry.name, "--yes").returncode == 1


def test_info_of_a_name_and_of_a_file(cli: Cli, tiny_model: Path) -> None:
    known = json.loads(cli("models", "info", "smollm2", "--json").stdout)
    assert (known["name"], known["licence"]) == ("smollm2:135m", "Apache-2.0")
    assert known["path"] == "not on this machine"
    opened = json.loads(cli("models", "info", tiny_model, "--json").stdout)
    assert (opened["family"], opened["layers"], opened["chat template"]) == ("llama", 2, "yes")
    assert "family" in cli("models", "info", tiny_model).stdout


def test_pull_prints_the_path_alone(cli: Cli, tiny_model: Path) -> None:
    result = cli("pull", tiny_model)
    assert result.stdout == f"{tiny_model}\n"
    assert "is ready" in result.stderr


def test_doctor_reports_and_judges_a_model(cli: Cli, tiny_model: Path) -> None:
    result = cli("doctor", tiny_model, "--json")
    findings = {finding["name"]: finding for finding in json.loads(result.stdout)}
    assert result.returncode == 0, result.stdout
    assert list(findings) == [
        "system", "python", "native", "cores", "memory", "compiler", "cache", "model",
    ]  # fmt: skip
    assert findings["model"]["state"] == "ok"
    assert cli("doctor").stdout.count("\n") >= 7


def test_doctor_names_what_is_wrong(cli: Cli) -> None:
    result = cli("doctor", HEADRACE_ISA="nonsense")
    assert result.returncode == 1
    assert "bad   native" in result.stdout


def test_a_file_is_no_cache(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"")
    result = cli("doctor", HEADRACE_CACHE=str(file))
    assert result.returncode == 1
    assert "is no folder; set HEADRACE_CACHE" in result.stdout
    result = cli("pull", "smollm2:135m", HEADRACE_CACHE=str(file))
    assert (result.returncode, result.stdout) == (1, "")
    assert "Not a directory; set HEADRACE_CACHE" in result.stderr


def test_removing_what_is_not_here_does_not_ask(cli: Cli) -> None:
    result = cli("models", "rm", "smollm2:135m")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "headrace: The model 'smollm2:135m' is not in the cache.\n"


def test_a_path_is_served_under_its_stem_never_as_a_path(tmp_path: Path, tiny_model: Path) -> None:
    spec = find_model(str(tiny_model))
    assert (spec.name, spec.path) == ("tiny", tiny_model)
    sharded = make_gguf(tmp_path / "big.gguf", num_shards=2)
    assert find_model(str(sharded.path)).name == "big"


@pytest.mark.parametrize(
    ("size", "memory", "fit"),
    [(4 * GIB, 16 * GIB, Fit.YES), (4 * GIB, 5 * GIB, Fit.TIGHT), (4 * GIB, 4 * GIB, Fit.NO)],
)
def test_fit(size: int, memory: int, fit: Fit) -> None:
    assert model_fit(size, memory) is fit


def test_better_models_fit_are_larger_and_few() -> None:
    for memory in (0, GIB, 4 * GIB, 64 * GIB):
        found = better_models(100 << 20, memory)
        assert len(found) <= 3
        assert len({entry.name for entry in found}) == len(found)
        for entry in found:
            assert 100 << 20 < entry.size_bytes < needed_bytes(entry.size_bytes) <= memory
    assert better_models(0, 0) == []
    assert len(better_models(0, 64 * GIB)) == 3
