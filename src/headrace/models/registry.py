"""Families by name: a family turns a ModelConfig into a Program."""

from __future__ import annotations

from collections.abc import Callable

from headrace.models import gemma3, llama, qwen2, qwen3
from headrace.models.config import ModelConfig
from headrace.models.program import Program

BuildProgram = Callable[[ModelConfig, tuple[float, ...] | None], Program]

FAMILIES: dict[str, BuildProgram] = {
    "llama": llama.build,
    "qwen2": qwen2.build,
    "qwen3": qwen3.build,
    "gemma3": gemma3.build,
}


def build_program(config: ModelConfig, freq_factors: tuple[float, ...] | None = None) -> Program:
    """The Program of a model. KeyError for an unknown family (readers refuse it first)."""
    return FAMILIES[config.family](config, freq_factors)
