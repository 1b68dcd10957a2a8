"""The Hub's cache layout on disk, read without the Hub's library: it is on the path of every start.

`models--org--repo/{blobs,refs,snapshots}`: `refs/REVISION` holds a commit, `snapshots/COMMIT/` has
one link per file into `blobs/`. One download serves every program that knows this layout.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from headrace.weights.reference import HubRef, pick_gguf

# Everything of a safetensors model that is read here.
FOLDER_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "model.safetensors.index.json",
)
_COMMIT = re.compile(r"[0-9a-f]{40}")


def hub_cache_root() -> Path:
    """HF_HUB_CACHE, or `hub` under HF_HOME or ~/.cache/huggingface."""
    override = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    if override:
        return Path(os.path.expandvars(override)).expanduser()
    home = os.environ.get("HF_HOME")
    if home:
        return Path(os.path.expandvars(home)).expanduser() / "hub"
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "huggingface" / "hub"


def repo_folder(repo: str) -> Path:
    return hub_cache_root() / f"models--{repo.replace('/', '--')}"


def snapshot_folder(ref: HubRef) -> Path | None:
    """The snapshot of the wanted revision (branch, tag or commit), if there is one."""
    folder = repo_folder(ref.repo)
    commit = ref.revision
    if not _COMMIT.fullmatch(commit):
        try:
            commit = (folder / "refs" / ref.revision).read_text().strip()
        except OSError:
            return None
    snapshot = folder / "snapshots" / commit
    return snapshot if _COMMIT.fullmatch(commit) and snapshot.is_dir() else None


def find_cached(ref: HubRef) -> Path | None:
    """The GGUF file (first shard) or the safetensors folder of a complete cached model."""
    snapshot = snapshot_folder(ref)
    if snapshot is None:
        return None
    files = pick_gguf(snapshot_files(snapshot), ref.quant)
    if files:
        return snapshot / files[0] if _has_all_shards(files) else None
    return snapshot if not ref.quant and is_complete_folder(snapshot) else None


def snapshot_files(snapshot: Path) -> list[str]:
    """Relative names of the files whose blobs are there."""
    return [path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*") if path.is_file()]


def is_complete_folder(snapshot: Path) -> bool:
    """Whether every file that a safetensors model needs has arrived."""
    if not (snapshot / "config.json").is_file():
        return False
    index = snapshot / "model.safetensors.index.json"
    if not index.is_file():
        return any(snapshot.glob("*.safetensors"))
    try:
        names = set(json.loads(index.read_bytes())["weight_map"].values())
        return all((snapshot / str(name)).is_file() for name in names)
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return False


def cached_repos() -> Iterator[tuple[HubRef, Path]]:
    """Every cached model repository with one snapshot: that of `main`, else the newest."""
    for folder in sorted(hub_cache_root().glob("models--*--*")):
        repo = folder.name.removeprefix("models--").replace("--", "/", 1)
        main = snapshot_folder(HubRef(repo))
        if main is not None:
            yield HubRef(repo), main
            continue
        snapshots = [path for path in folder.glob("snapshots/*") if path.is_dir()]
        if snapshots:
            newest = max(snapshots, key=lambda path: path.stat().st_mtime_ns)
            yield HubRef(repo, newest.name), newest


def remove_cached(path: Path) -> int:
    """Remove a cached GGUF file with its shards, or a folder's repository; the bytes freed.

    A blob goes when no other snapshot links to it.
    """
    snapshot = path if path.is_dir() else _snapshot_of(path)
    repo = snapshot.parent.parent
    if path.is_dir():
        freed = sum(blob.stat().st_size for blob in (repo / "blobs").glob("*") if blob.is_file())
        shutil.rmtree(repo)
        return freed
    relative = path.relative_to(snapshot).as_posix()
    stem = re.sub(r"-\d{5}-of-\d{5}\.gguf$", "", relative)
    shards = [
        name
        for name in snapshot_files(snapshot)
        if name == relative or re.fullmatch(re.escape(stem) + r"-\d{5}-of-\d{5}\.gguf", name)
    ]
    return sum(_remove_link(repo, snapshot / name) for name in shards)


def _remove_link(repo: Path, link: Path) -> int:
    blob = link.resolve()
    link.unlink()
    others = (other for other in repo.glob("snapshots/**/*") if other.is_symlink())
    if not blob.is_file() or any(other.resolve() == blob for other in others):
        return 0
    freed = blob.stat().st_size
    blob.unlink()
    return freed


def _snapshot_of(path: Path) -> Path:
    return next(parent for parent in path.parents if parent.parent.name == "snapshots")


def _has_all_shards(files: list[str]) -> bool:
    match = re.search(r"-of-(\d{5})\.gguf$", files[0])
    return match is None or len(files) == int(match[1])
