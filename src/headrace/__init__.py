"""headrace: serve open-weight language models, with output that no mechanism can change."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.engine.base import RequestOptions
    from headrace.engine.llm import LLM
    from headrace.engine.sampling import SamplingParams
    from headrace.kv.radix.base import Retention

__version__ = "0.1.0"
__all__ = ["LLM", "RequestOptions", "Retention", "SamplingParams", "__version__"]

_HOMES = {
    "LLM": "headrace.engine.llm",
    "RequestOptions": "headrace.engine.base",
    "Retention": "headrace.kv.radix.base",
    "SamplingParams": "headrace.engine.sampling",
}


def __getattr__(name: str) -> object:
    """Import the engine on first use, so that `import headrace` costs nothing for the CLI."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    return getattr(import_module(home), name)
