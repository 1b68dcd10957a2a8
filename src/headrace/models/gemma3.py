"""Gemma 3: window and full layers with ropes of their own, norms around each branch, GeGLU."""

from __future__ import annotations

from headrace.models.build import ProgramBuilder
from headrace.models.config import ModelConfig
from headrace.models.program import Program


def build(config: ModelConfig, freq_factors: tuple[float, ...] | None = None) -> Program:
    """`x += norm(branch(norm(x)))` twice a layer; the embedding is scaled (config.embed_scale).

    Norm weights are the factors themselves: a source whose tensors leave the +1 out adds it.
    """
    program = ProgramBuilder(config, freq_factors)
    local_rope = program.add_rope(config.rope_local) if config.rope_local is not None else 0
    for layer in program.layers():
        layer.norm("h", "x", "attn_norm")
        layer.qkv()
        layer.head_norms()
        layer.attend(rope=local_rope if layer.is_window else 0)
        layer.linear("y", "att", "attn_output")
        layer.norm("y", "y", "post_attention_norm")
        layer.add("x", "y")

        layer.norm("h", "x", "ffn_norm")
        layer.gated_mlp(config.activation)
        layer.norm("y", "y", "post_ffw_norm")
        layer.add("x", "y")
    return program.finish()
