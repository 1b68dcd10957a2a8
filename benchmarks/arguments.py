"""Values of the programs' options."""

from __future__ import annotations

import argparse
from pathlib import Path


def count(text: str) -> int:
    """A number of rounds or threads: none of either would leave rows that say nothing."""
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= 1024:
        raise argparse.ArgumentTypeError(f"{text!r} is not from 1 to 1024")
    return int(text[:9])


def folder(text: str) -> Path:
    """A folder for results, made if it is not there."""
    path = Path(text)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text} is no folder ({error.strerror})") from None
    return path
