"""Qwen2 and Qwen2.5: pre-norm layers, biases on q, k and v, SiLU-gated MLP."""

from __future__ import annotations

from headrace.models.build import ProgramBuilder
from headrace.models.config import ModelConfig
from headrace.models.program import Program


def build(config: ModelConfig, freq_factors: tuple[float, ...] | None = None) -> Program:
    """Llama's layer with q, k, v = W norm(x) + b."""
    program = ProgramBuilder(config, freq_factors)
    for layer in program.layers():
        layer.norm("h", "x", "attn_norm")
        layer.qkv(bias=True)
        layer.attend()
        layer.linear("y", "att", "attn_output")
        layer.add("x", "y")

        layer.norm("h", "x", "ffn_norm")
        layer.gated_mlp(config.activation)
        layer.add("x", "y")
    return program.finish()
