"""headrace: serve open-weight language models, with output that no mechanism can change."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.engine.llm import LLM
    from headrace.engine.sampling import SamplingParams

__version__ = "0.1.0"
__all__ = ["LLM", "SamplingParams", "__version__"]


def __getattr__(name: str) -> object:
    """Import the engine on first use, so that `import headrace` costs nothing for the CLI."""
    if name == "LLM":
        from headrace.engine.llm import LLM

        return LLM
    if name == "SamplingParams":
        from headrace.engine.sampling import SamplingParams

        return SamplingParams
    raise AttributeError(f"module 'headrace' has no attribute {name!r}")
