"""The verbs, in the order that help lists them, and where their functions are."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

# Verb X is the function X of headrace.cli.X.
VERBS = ("serve", "run", "chat", "batch", "pull", "doctor", "version")
# Verb Y of group X is the function Y of headrace.cli.X.Y; the docstring of headrace.cli.X is help.
GROUPS = {"bench": ("roof", "kernels", "engine", "serve")}


def load(*words: str) -> Callable[..., None]:
    """The function of a verb, or of a verb of a group."""
    verb: Callable[..., None] = getattr(
        import_module(".".join(["headrace.cli", *words])), words[-1]
    )
    return verb


def find(words: list[str]) -> tuple[Callable[..., None], list[str]] | None:
    """The verb that a command line begins with, and the rest of the line."""
    if words and words[0] in VERBS:
        return load(words[0]), words[1:]
    if len(words) > 1 and words[1] in GROUPS.get(words[0], ()):
        return load(*words[:2]), words[2:]
    return None
