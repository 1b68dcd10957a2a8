"""`headrace version`."""

from __future__ import annotations

import platform

import headrace
from headrace.cli import console
from headrace.cli.options import Json


def version(json: Json = False) -> None:
    """Print the version, and that of what it runs on."""
    facts = {
        "headrace": headrace.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
    if json:
        console.print_json(facts)
    else:
        print(f"headrace {facts['headrace']} (Python {facts['python']}, {facts['platform']})")
