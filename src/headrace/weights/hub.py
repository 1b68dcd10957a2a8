"""Downloads from the Hub through its library: what to fetch, resumed and verified, into its cache.

The library names the server (HF_ENDPOINT) and holds the token (HF_TOKEN). Its own file download
neither resumes across processes nor checks digests, so the loop around its HTTP client is here.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast
from urllib.parse import urlparse

from headrace.weights.hub_cache import FOLDER_FILES, repo_folder
from headrace.weights.reference import HubRef, pick_gguf, quant_names
from headrace.weights.store import (
    DISK_ERRNOS,
    Progress,
    SourceError,
    check_free,
    disk_errors,
    publish,
    single_flight,
    write_stamp,
)

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo

CONNECT_TIMEOUT_S = 5.0
_ANSWER_TIMEOUT_S = 10.0  # For the first answer: name resolution, connection and reply.
_COMMIT = re.compile(r"[0-9a-f]{40}")
_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """`digest` is a sha256 (64 digits, large files) or a git blob sha1 (40); it names the blob."""

    name: str
    size_bytes: int
    digest: str


def is_offline() -> bool:
    value = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    return value.upper() in ("1", "ON", "YES", "TRUE")


def fetch_from_hub(ref: HubRef, progress: Progress, sha256: str | None = None) -> Path:
    """The local path (GGUF file, first shard, or snapshot folder) after downloading what lacks.

    `sha256`: what the model file must be, beside what the Hub says. Raises SourceError (with the
    cause as text) or ResourceError.
    """
    if is_offline():
        raise SourceError("HF_HUB_OFFLINE is set")
    info = _bounded(lambda: _model_info(ref))
    files = _choose(info, ref)
    if sha256 is not None and sha256 not in {file.digest for file in files}:
        raise SourceError(f"the file of {ref} there is not the one that is expected")
    repo = repo_folder(ref.repo)
    with disk_errors(repo.parent), single_flight(repo.parent / ".locks", repo.name, watched=repo):
        missing = [file for file in files if not (repo / "blobs" / file.digest).is_file()]
        check_free(repo, sum(file.size_bytes - _partial_bytes(repo, file) for file in missing))
        total = sum(file.size_bytes for file in files)
        done = total - sum(file.size_bytes for file in missing)
        commit = str(info.sha)
        for file in missing:
            _download(ref, commit, file, repo, _shifted(progress, done, total))
            done += file.size_bytes
        progress(total, total)
        return _link(repo, ref, commit, files)


def _model_info(ref: HubRef) -> ModelInfo:
    from huggingface_hub import HfApi

    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None)
    return api.model_info(
        ref.repo, revision=ref.revision, files_metadata=True, timeout=CONNECT_TIMEOUT_S
    )


def _bounded(call: Callable[[], _T]) -> _T:
    """The call's result within _ANSWER_TIMEOUT_S; its errors as SourceError. The timeouts of an
    HTTP client do not cover name resolution, which can hang for minutes."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.extend((True, call()))
        except Exception as error:
            outcome.extend((False, _explain(error)))

    thread = threading.Thread(target=run, name="headrace-hub", daemon=True)
    thread.start()
    thread.join(_ANSWER_TIMEOUT_S)
    if not outcome:
        raise SourceError(f"no answer within {_ANSWER_TIMEOUT_S:.0f} seconds")
    succeeded, value = outcome
    if not succeeded:
        raise cast(SourceError, value)
    return cast(_T, value)


def _explain(error: Exception) -> SourceError:
    """The library's errors in one line for the user."""
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return SourceError(
            "the repository is gated: accept its terms on its page, then set HF_TOKEN to a token"
            " of that account"
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return SourceError("there is no such repository, or it is private and HF_TOKEN is not set")
    if isinstance(error, errors.RevisionNotFoundError):
        return SourceError("the repository has no such revision")
    first_line = next(iter(str(error).strip().splitlines()), "")
    return SourceError(f"{first_line[:200] or type(error).__name__}")


def _choose(info: ModelInfo, ref: HubRef) -> list[RemoteFile]:
    """The files to have: one quantization of a GGUF repository, or a safetensors model."""
    if not _COMMIT.fullmatch(str(info.sha)):
        raise SourceError("the server named no commit")
    remote = {file.name: file for file in map(_remote_file, info.siblings or ()) if file}
    chosen = pick_gguf(remote, ref.quant)
    if not chosen and any(name.endswith(".gguf") for name in remote):
        known = ", ".join(quant_names(remote)) or "none that is supported"
        raise SourceError(f"{ref.repo} has no file for {ref.quant!r} (it has: {known})")
    if not chosen:
        weights = [name for name in remote if name.endswith(".safetensors") and "/" not in name]
        if not weights or "config.json" not in remote or ref.quant:
            raise SourceError(f"{ref.repo} holds neither GGUF nor safetensors files")
        chosen = [*weights, *(name for name in FOLDER_FILES if name in remote)]
    return [remote[name] for name in chosen]


def _remote_file(sibling: Any) -> RemoteFile | None:
    """None for an entry with an unsafe name or without size or digest."""
    name = str(sibling.rfilename)
    digest = str(sibling.lfs.sha256 if sibling.lfs is not None else sibling.blob_id)
    parts = name.split("/")
    if not name.isprintable() or "\\" in name or any(part in ("", ".", "..") for part in parts):
        return None
    if type(sibling.size) is not int or sibling.size < 0 or not _DIGEST.fullmatch(digest):
        return None
    return RemoteFile(name, sibling.size, digest)


def _partial_path(repo: Path, file: RemoteFile) -> Path:
    return repo / "blobs" / f"{file.digest}.headrace-incomplete"


def _partial_bytes(repo: Path, file: RemoteFile) -> int:
    partial = _partial_path(repo, file)
    return partial.stat().st_size if partial.is_file() else 0


def _download(ref: HubRef, commit: str, file: RemoteFile, repo: Path, progress: Progress) -> None:
    """Append what lacks to the partial file, check the whole, make it a blob."""
    from huggingface_hub import get_hf_file_metadata, get_token, hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars("huggingface_hub.http_get")
    endpoint = os.environ.get("HF_ENDPOINT") or None
    url = hf_hub_url(ref.repo, file.name, revision=commit, endpoint=endpoint)
    partial = _partial_path(repo, file)
    partial.parent.mkdir(parents=True, exist_ok=True)
    if _partial_bytes(repo, file) > file.size_bytes:
        partial.unlink()
    token = get_token()
    headers = {"authorization": f"Bearer {token}"} if token else {}
    with partial.open("ab") as out:
        start = out.tell()
        try:
            metadata = get_hf_file_metadata(url, timeout=CONNECT_TIMEOUT_S, endpoint=endpoint)
            if urlparse(metadata.location).netloc != urlparse(url).netloc:
                headers.pop("authorization", None)  # A token is for the Hub, not for its storage.
            http_get(
                metadata.location,
                cast(BinaryIO, _Watched(out, file.size_bytes, progress)),
                resume_size=start,
                headers=headers,
                expected_size=file.size_bytes,
            )
        except OSError as error:
            if error.errno in DISK_ERRNOS:
                raise
            raise _explain(error) from None
        except Exception as error:
            raise _explain(error) from None
    if _digest(partial, file) != file.digest:
        partial.unlink()
        raise SourceError(f"{file.name} arrived damaged; try again")
    blob = repo / "blobs" / file.digest
    publish(partial, blob)
    if len(file.digest) == 64:
        write_stamp(blob, file.digest)


class _Watched:
    """The partial file as the library writes to it, telling the progress after every write."""

    def __init__(self, file: BinaryIO, size_bytes: int, progress: Progress) -> None:
        self._file = file
        self._size_bytes = size_bytes
        self._progress = progress

    def write(self, data: bytes) -> int:
        written = self._file.write(data)
        if self._file.tell() > self._size_bytes:
            raise SourceError("the server sent more than the size of the file")
        self._progress(self._file.tell(), self._size_bytes)
        return written

    def tell(self) -> int:
        return self._file.tell()

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def truncate(self, size: int | None = None) -> int:
        return self._file.truncate(size)

    def flush(self) -> None:
        self._file.flush()


def _digest(path: Path, file: RemoteFile) -> str:
    """sha256, or git's blob hash for files that are not in large-file storage."""
    if len(file.digest) == 64:
        digest = hashlib.sha256()
    else:
        header = b"blob %d\0" % path.stat().st_size
        digest = hashlib.sha1(header, usedforsecurity=False)
    with path.open("rb") as source:
        while chunk := source.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _link(repo: Path, ref: HubRef, commit: str, files: list[RemoteFile]) -> Path:
    """Snapshot links first, the ref last: a revision is visible when its files are."""
    snapshot = repo / "snapshots" / commit
    for file in files:
        link = snapshot / file.name
        link.parent.mkdir(parents=True, exist_ok=True)
        blob = repo / "blobs" / file.digest
        if not link.exists():
            link.unlink(missing_ok=True)
            with contextlib.suppress(FileExistsError):
                link.symlink_to(os.path.relpath(blob, link.parent))
    if not _COMMIT.fullmatch(ref.revision):
        name = repo / "refs" / ref.revision
        name.parent.mkdir(parents=True, exist_ok=True)
        temporary = name.with_name(f"{name.name}.{os.getpid()}.tmp")
        temporary.write_text(commit)
        temporary.replace(name)
    first = files[0].name
    return snapshot / first if first.endswith(".gguf") else snapshot


def _shifted(progress: Progress, before: int, total: int) -> Progress:
    def report(done_bytes: int, total_bytes: int) -> None:
        progress(before + done_bytes, total)

    return report
