"""`headrace pull`: make a model local."""

from __future__ import annotations

from headrace.cli import options
from headrace.cli.console import ProgressLine, say


def pull(model: options.Model) -> None:
    """Fetch a model, or find it here, and print its path."""
    from headrace.weights.pull import pull as fetch

    with ProgressLine(model) as progress:
        path = fetch(model, progress=progress)
    say(f"{model} is ready.")
    print(path)
