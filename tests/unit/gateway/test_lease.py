"""Which compute lease a server takes: its user's own and private one, or one for itself."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace import _native
from headrace.gateway import lease
from headrace.gateway.lease import file_name, needs_lease, open_lease

THREADS = _native.default_threads()


@pytest.fixture
def opened() -> Iterator[list[int]]:
    """Descriptors to close."""
    fds: list[int] = []
    yield fds
    for fd in fds:
        os.close(fd)


def lease_at(base: Path, opened: list[int]) -> _native.ComputeLease:
    fd = open_lease(THREADS, base)
    assert fd is not None
    opened.append(fd)
    return _native.ComputeLease(fd)


def file_of(base: Path) -> Path:
    return base / f"headrace-{os.geteuid()}" / file_name()


def same(first: _native.ComputeLease, second: _native.ComputeLease) -> bool:
    _native.testing.lease_acquire(first)
    is_taken = second.is_taken
    _native.testing.lease_release(first)
    return is_taken


def test_two_servers_meet_in_a_private_file(tmp_path: Path, opened: list[int]) -> None:
    first, second = lease_at(tmp_path, opened), lease_at(tmp_path, opened)
    assert same(first, second)
    assert file_of(tmp_path).parent.stat().st_mode & 0o777 == 0o700
    assert file_of(tmp_path).stat().st_mode & 0o777 == 0o600
    assert not any(os.get_inheritable(fd) for fd in opened)


def test_the_file_is_named_after_the_processors() -> None:
    before = os.sched_getaffinity(0)
    everywhere = file_name()
    os.sched_setaffinity(0, {min(before)})
    try:
        assert (file_name() == everywhere) == (len(before) == 1)
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize("content", [b"", b"x", b"\xff" * 4096, bytes(4096), b"y" * 100_000])
def test_bytes_that_are_no_lease_are_replaced(
    tmp_path: Path, opened: list[int], content: bytes
) -> None:
    file_of(tmp_path).parent.mkdir(mode=0o700)
    file_of(tmp_path).write_bytes(content)
    file_of(tmp_path).chmod(0o600)
    assert same(lease_at(tmp_path, opened), lease_at(tmp_path, opened))
    assert file_of(tmp_path).stat().st_size == 4096


def break_folder_mode(path: Path) -> None:
    path.parent.mkdir()
    path.parent.chmod(0o770)


def break_folder_link(path: Path) -> None:
    (path.parent.parent / "elsewhere").mkdir(mode=0o700)
    path.parent.symlink_to("elsewhere")


def break_file_mode(path: Path) -> None:
    path.parent.mkdir(mode=0o700)
    path.touch()
    path.chmod(0o606)


def break_file_link(path: Path) -> None:
    path.parent.mkdir(mode=0o700)
    victim = path.parent.parent / "victim"
    victim.write_bytes(b"precious")
    victim.chmod(0o600)
    path.symlink_to(victim)


def break_file_second_name(path: Path) -> None:
    path.parent.mkdir(mode=0o700)
    victim = path.parent.parent / "victim"
    victim.write_bytes(b"precious")
    victim.chmod(0o600)
    path.hardlink_to(victim)


def break_file_pipe(path: Path) -> None:
    path.parent.mkdir(mode=0o700)
    os.mkfifo(path, 0o600)


def break_file_folder(path: Path) -> None:
    path.mkdir(parents=True)
    path.parent.chmod(0o700)


@pytest.mark.parametrize(
    "spoil",
    [
        break_folder_mode,
        break_folder_link,
        break_file_mode,
        break_file_link,
        break_file_second_name,
        break_file_pipe,
        break_file_folder,
    ],
)
def test_what_is_not_ours_alone_is_left_alone(
    tmp_path: Path,
    opened: list[int],
    caplog: pytest.LogCaptureFixture,
    spoil: object,
) -> None:
    assert callable(spoil)
    spoil(file_of(tmp_path))
    first, second = lease_at(tmp_path, opened), lease_at(tmp_path, opened)
    assert not same(first, second)
    assert "compute is not shared with other servers" in caplog.text
    victim = tmp_path / "victim"
    assert not victim.exists() or victim.read_bytes() == b"precious"


def test_a_file_that_another_keeps_locked_is_not_waited_for(
    tmp_path: Path,
    opened: list[int],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lease, "LOCK_PATIENCE_S", 0.05)
    first = lease_at(tmp_path, opened)
    with file_of(tmp_path).open("rb") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        assert not same(first, lease_at(tmp_path, opened))
    assert "another process keeps" in caplog.text
    assert same(first, lease_at(tmp_path, opened))


def test_without_a_place_to_meet(tmp_path: Path, opened: list[int]) -> None:
    lease_at(tmp_path / "missing", opened)


def test_workers_that_fit_side_by_side_need_no_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_native, "default_threads", lambda: 8)
    assert [needs_lease(t) for t in (None, 1, 4, 5, 8, 100)] == [
        True,
        False,
        False,
        True,
        True,
        True,
    ]
    assert open_lease(4, tmp_path) is None
    assert list(tmp_path.iterdir()) == []
