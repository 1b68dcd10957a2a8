"""The Hub's cache layout and downloads into it, against a Hub on loopback."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from headrace.errors import ResourceError
from headrace.weights import hub as hub_module
from headrace.weights.hub import fetch_from_hub
from headrace.weights.hub_cache import find_cached, repo_folder
from headrace.weights.reference import HubRef
from headrace.weights.store import SourceError, no_progress
from tests.support.fake_hub import COMMIT, FakeHub, digest_of, serve_hub
from tests.unit.weights.conftest import Caches

REPO = "org/tiny-GGUF"
DATA = os.urandom(300_000)
FILES = {
    "README.md": b"# tiny",
    "tiny-Q8_0.gguf": b"q8" + DATA,
    "tiny-Q4_K_M.gguf": DATA,
    "mmproj-tiny-f16.gguf": b"projector",
    "big-Q6_K-00001-of-00002.gguf": b"one",
    "big-Q6_K-00002-of-00002.gguf": b"two",
}
HF_FILES = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "pytorch_model.bin": b"pickle",
    "model-00001-of-00002.safetensors": b"a" * 1000,
    "model-00002-of-00002.safetensors": b"b" * 1000,
    "model.safetensors.index.json": (
        b'{"weight_map": {"x": "model-00001-of-00002.safetensors",'
        b' "y": "model-00002-of-00002.safetensors"}}'
    ),
}


def _blob(name: str, repo: str = REPO) -> Path:
    files = FILES if repo == REPO else HF_FILES
    return repo_folder(repo) / "blobs" / digest_of(name, files[name])


def test_default_quantization_lands_in_the_cache_layout(hub: FakeHub, caches: Caches) -> None:
    hub.repos[REPO] = FILES
    seen: list[tuple[int, int]] = []
    path = fetch_from_hub(HubRef(REPO), lambda done, total: seen.append((done, total)))
    assert path == caches.hub / "models--org--tiny-GGUF" / "snapshots" / COMMIT / "tiny-Q4_K_M.gguf"
    assert path.read_bytes() == DATA
    assert path.is_symlink()
    assert not os.path.isabs(os.readlink(path))
    assert path.resolve() == _blob("tiny-Q4_K_M.gguf")
    assert (repo_folder(REPO) / "refs" / "main").read_text() == COMMIT
    assert seen[-1] == (len(DATA), len(DATA))
    assert find_cached(HubRef(REPO)) == path
    assert find_cached(HubRef(REPO, COMMIT)) == path
    assert find_cached(HubRef(REPO, "other")) is None


def test_the_library_finds_what_was_downloaded(hub: FakeHub, caches: Caches) -> None:
    """One download serves every program: the Hub's own library accepts the layout."""
    from huggingface_hub import try_to_load_from_cache

    hub.repos[REPO] = FILES
    path = fetch_from_hub(HubRef(REPO), no_progress)
    found = try_to_load_from_cache(REPO, "tiny-Q4_K_M.gguf", cache_dir=caches.hub)
    assert found == str(path)


@pytest.mark.parametrize("quant", ["Q8_0", "q8_0", "tiny-Q8_0.gguf"])
def test_named_quantization(hub: FakeHub, quant: str) -> None:
    hub.repos[REPO] = FILES
    assert fetch_from_hub(HubRef(REPO, quant=quant), no_progress).name == "tiny-Q8_0.gguf"


def test_all_shards_arrive(hub: FakeHub) -> None:
    hub.repos[REPO] = FILES
    path = fetch_from_hub(HubRef(REPO, quant="Q6_K"), no_progress)
    assert path.name == "big-Q6_K-00001-of-00002.gguf"
    second = path.with_name("big-Q6_K-00002-of-00002.gguf")
    assert second.read_bytes() == b"two"
    second.unlink()
    assert find_cached(HubRef(REPO, quant="Q6_K")) is None


def test_safetensors_folder_without_pickles(hub: FakeHub) -> None:
    hub.repos["org/hf"] = HF_FILES
    path = fetch_from_hub(HubRef("org/hf"), no_progress)
    assert path.name == COMMIT
    assert sorted(file.name for file in path.iterdir()) == sorted(
        name for name in HF_FILES if not name.endswith(".bin")
    )
    assert find_cached(HubRef("org/hf")) == path
    (path / "model-00002-of-00002.safetensors").unlink()
    assert find_cached(HubRef("org/hf")) is None


def test_interrupted_download_resumes(hub: FakeHub) -> None:
    """What an earlier process left is kept: only the rest is asked for."""
    hub.repos[REPO] = FILES
    blob = _blob("tiny-Q4_K_M.gguf")
    blob.parent.mkdir(parents=True)
    partial = blob.with_name(f"{blob.name}.headrace-incomplete")
    partial.write_bytes(DATA[:100_000])
    path = fetch_from_hub(HubRef(REPO), no_progress)
    assert path.read_bytes() == DATA
    assert hub.sent_ranges() == ["bytes=100000-"]
    assert not partial.exists()


def test_connection_cut_midway(hub: FakeHub) -> None:
    hub.repos[REPO] = FILES
    hub.cut_after["tiny-Q4_K_M.gguf"] = 50_000
    assert fetch_from_hub(HubRef(REPO), no_progress).read_bytes() == DATA
    assert hub.sent_ranges()[0] is None
    assert len(hub.sent_ranges()) == 2


def test_damage_on_the_way_is_not_published(hub: FakeHub) -> None:
    hub.repos[REPO] = FILES
    hub.damaged["tiny-Q4_K_M.gguf"] = bytes(len(DATA))
    with pytest.raises(SourceError, match="damaged"):
        fetch_from_hub(HubRef(REPO), no_progress)
    assert not list((repo_folder(REPO) / "blobs").iterdir())
    assert find_cached(HubRef(REPO)) is None
    hub.damaged.clear()
    assert fetch_from_hub(HubRef(REPO), no_progress).read_bytes() == DATA


def test_damaged_small_file_is_seen_too(hub: FakeHub) -> None:
    hub.repos["org/hf"] = HF_FILES
    hub.damaged["config.json"] = b"[]"
    with pytest.raises(SourceError, match=r"config\.json arrived damaged"):
        fetch_from_hub(HubRef("org/hf"), no_progress)


def test_token_goes_to_the_hub_only(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.repos[REPO] = FILES
    storage = FakeHub(repos={REPO: FILES})
    with serve_hub(storage):
        hub.storage = storage.url
        assert fetch_from_hub(HubRef(REPO), no_progress).read_bytes() == DATA
    assert all(r.headers.get("authorization") == "Bearer hf_secret" for r in hub.requests)
    assert storage.requests
    assert not any("authorization" in r.headers for r in storage.requests)


@pytest.mark.parametrize(
    ("repo", "revision", "quant", "message"),
    [
        ("org/none", "main", "", "no such repository, or it is private"),
        ("org/gated", "main", "", "gated: accept its terms"),
        (REPO, "v9", "", "no such revision"),
        (REPO, "main", "IQ1_S", r"no file for 'IQ1_S' \(it has: Q4_K_M, Q6_K, Q8_0\)"),
        ("org/empty", "main", "", "neither GGUF nor safetensors"),
    ],
)
def test_refusals_say_why(hub: FakeHub, repo: str, revision: str, quant: str, message: str) -> None:
    hub.repos |= {REPO: FILES, "org/empty": {"README.md": b""}}
    hub.gated.add("org/gated")
    with pytest.raises(SourceError, match=message):
        fetch_from_hub(HubRef(repo, revision, quant), no_progress)


def test_unsafe_file_names_are_not_there(hub: FakeHub, caches: Caches) -> None:
    hub.repos[REPO] = {"../../evil-Q4_K_M.gguf": b"evil", "a\\b-Q8_0.gguf": b"evil"}
    with pytest.raises(SourceError, match="neither"):
        fetch_from_hub(HubRef(REPO), no_progress)
    assert not caches.hub.exists()


def test_offline_asks_nobody(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(SourceError, match="HF_HUB_OFFLINE"):
        fetch_from_hub(HubRef(REPO), no_progress)
    assert hub.requests == []


def test_unreachable_hub(caches: Caches) -> None:
    with pytest.raises(SourceError, match="refused"):
        fetch_from_hub(HubRef(REPO), no_progress)


def test_hub_that_never_answers(caches: Caches, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(hub_module, "_ANSWER_TIMEOUT_S", 0.05)
    monkeypatch.setattr(hub_module, "_model_info", lambda ref: release.wait(30))
    with pytest.raises(SourceError, match="no answer"):
        fetch_from_hub(HubRef(REPO), no_progress)
    release.set()


def test_unexpected_file_of_a_known_model(hub: FakeHub) -> None:
    hub.repos[REPO] = FILES
    with pytest.raises(SourceError, match="not the one that is expected"):
        fetch_from_hub(HubRef(REPO), no_progress, sha256="0" * 64)
    assert hub.sent_ranges() == []


def test_full_disk(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repos[REPO] = FILES

    def full(self: object, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(hub_module._Watched, "write", full)
    with pytest.raises(ResourceError, match="is full"):
        fetch_from_hub(HubRef(REPO), no_progress)
    assert find_cached(HubRef(REPO)) is None


def test_too_little_space(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repos[REPO] = FILES
    monkeypatch.setattr("headrace.weights.store.MARGIN_BYTES", 1 << 60)
    with pytest.raises(ResourceError, match="MiB are needed"):
        fetch_from_hub(HubRef(REPO), no_progress)
    assert hub.sent_ranges() == []


def test_resolving_a_cached_model_imports_no_hub_library(hub: FakeHub) -> None:
    hub.repos[REPO] = FILES
    path = fetch_from_hub(HubRef(REPO), no_progress)
    code = (
        "import sys; from headrace.weights.resolve import resolve;"
        f"print(resolve({REPO!r}));"
        "print([m for m in ('huggingface_hub', 'numpy', 'torch') if m in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    output = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert output.stdout.splitlines() == [str(path), "[]"]
