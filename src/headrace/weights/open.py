"""Opens a local model, whatever its form, as a WeightSource."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import ModelFormatError, ModelNotFoundError

if TYPE_CHECKING:
    from headrace.weights.base import WeightSource

PICKLE_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt"})


def open_source(path: str | Path) -> WeightSource:
    """Open a GGUF file (any shard of it), a Hugging Face folder, or a folder that holds one GGUF
    model. Raises ModelNotFoundError or ModelFormatError."""
    path = Path(path)
    if not path.exists():
        raise ModelNotFoundError(f"There is no file or folder {path.name!r}.")
    if path.is_dir():
        return _open_folder(path)
    if path.suffix.lower() in PICKLE_SUFFIXES:
        raise ModelFormatError(
            f"{path.name!r} may be a pickle, which can run code; use a .gguf file or a folder"
            " with .safetensors files."
        )
    if path.suffix.lower() == ".safetensors":
        raise ModelFormatError(
            f"{path.name!r} is only part of a model; name the folder that holds it."
        )
    from headrace.weights.gguf import GgufSource

    return GgufSource(path)


def _open_folder(folder: Path) -> WeightSource:
    if (folder / "config.json").is_file():
        from headrace.weights.hf import HfSource

        return HfSource(folder)
    models = gguf_models(folder)
    if len(models) == 1:
        from headrace.weights.gguf import GgufSource

        return GgufSource(models[0])
    found = ", ".join(path.name for path in models) or "nothing"
    raise ModelFormatError(
        f"{folder.name!r} must hold a config.json with .safetensors files, or one GGUF model;"
        f" found {found}."
    )


def gguf_models(folder: Path) -> list[Path]:
    """The GGUF models of a folder, the first shard of each; image projectors are left out."""
    return sorted(
        path
        for path in folder.glob("*.gguf")
        if not path.name.startswith("mmproj")
        and ("-of-" not in path.name or "-00001-of-" in path.name)
    )
