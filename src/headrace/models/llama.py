"""SmolLM2, Llama 2/3, Mistral: pre-norm, SiLU-gated MLP, no biases."""

from __future__ import annotations

from headrace.models.build import ProgramBuilder
from headrace.models.config import ModelConfig
from headrace.models.program import Program


def build(config: ModelConfig, freq_factors: tuple[float, ...] | None = None) -> Program:
    """See the module docstring; every difference is an option of ModelConfig."""
    builder = ProgramBuilder(config, freq_factors)
    for index in range(config.num_layers):
        builder.layer(index)
    return builder.finish()
