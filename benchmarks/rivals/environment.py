"""Virtual environments of rivals: where they are, and how one is filled."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path


def default_folder() -> Path:
    """$HEADRACE_CACHE/rivals, outside the repository."""
    cache = os.environ.get("HEADRACE_CACHE")
    root = Path(cache).expanduser() if cache else Path.home() / ".cache" / "headrace"
    return root / "rivals"


def python_of(folder: Path, name: str) -> Path | None:
    """The interpreter of a rival's environment below `folder`, or None when there is none."""
    python = folder / name / "bin" / "python"
    return python if python.exists() else None


class Environment:
    """An environment that is made when it is not there yet."""

    def __init__(self, folder: Path) -> None:
        self.python = folder / "bin" / "python"
        if not self.python.exists():
            venv.EnvBuilder(with_pip=True).create(folder)

    def pip(self, *args: str, variables: Mapping[str, str] | None = None) -> None:
        """Run pip there; raises CalledProcessError after pip has said why."""
        environment = {**os.environ, **(variables or {})}
        environment.pop("PYTHONPATH", None)
        command = [str(self.python), "-m", "pip", *args]
        subprocess.run(command, check=True, env=environment)


def environment_from_arguments(name: str, doc: str | None) -> Environment:
    """The environment of the one optional argument of these scripts: its folder."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    default = default_folder() / name
    parser.add_argument("folder", type=Path, nargs="?", default=default, help=f"default: {default}")
    folder = parser.parse_args().folder
    print(f"{name}: {folder}", file=sys.stderr)
    return Environment(folder)
