"""SmolLM2, Llama 2 and 3, Mistral: pre-norm layers, grouped-query attention, SiLU-gated MLP."""

from __future__ import annotations

from headrace.models.build import ProgramBuilder
from headrace.models.config import ModelConfig
from headrace.models.program import Program


def build(config: ModelConfig, freq_factors: tuple[float, ...] | None = None) -> Program:
    """`x += Wo attend(rope(Wqkv norm(x)))`, `x += Wdown(silu(Wgate norm(x)) * Wup norm(x))`."""
    program = ProgramBuilder(config, freq_factors)
    for layer in program.layers():
        layer.norm("h", "x", "attn_norm")
        layer.qkv(bias=config.qkv_bias)  # some derivatives of Llama have biases
        layer.attend()
        layer.linear("y", "att", "attn_output")
        layer.add("x", "y")

        layer.norm("h", "x", "ffn_norm")
        layer.gated_mlp(config.activation)
        layer.add("x", "y")
    return program.finish()
