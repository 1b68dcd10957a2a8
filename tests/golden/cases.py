"""The tiny models whose hidden states and logits are recorded: arguments of the generator."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

GOLDEN_FILE = Path(__file__).with_name("tiny_models.npz")
PROMPT_LEN = 40


@dataclass(frozen=True)
class Case:
    """`family` and `overrides` are arguments of make_hf and make_gguf; float32 weights."""

    name: str
    family: str
    seed: int
    overrides: dict[str, Any] = field(default_factory=dict)

    @property
    def prompt(self) -> list[int]:
        """Seeded ids of the 320-entry vocabulary."""
        rng = np.random.default_rng(self.seed)
        return [int(i) for i in rng.integers(3, 320, PROMPT_LEN)]

    @property
    def arguments(self) -> dict[str, Any]:
        fixed = {"family": self.family, "seed": self.seed, "vocab_size": 320, "tokenizer": None}
        return fixed | self.overrides


GEMMA = {"norm_eps": 1e-6, "rope_theta": 1_000_000.0}
CASES = (
    Case("llama", "llama", 1, {"num_layers": 3, "tied_head": False}),
    Case("llama-wide-heads", "llama", 2, {"head_dim": 32, "num_heads": 8, "num_kv_heads": 2}),
    Case("llama-mha", "llama", 3, {"num_kv_heads": 4, "norm_eps": 1e-6}),
    Case("llama3-rope", "llama", 4, {"rope_scaling": "llama3", "rope_theta": 500000.0}),
    Case("llama-linear-rope", "llama", 5, {"rope_scaling": "linear"}),
    Case("qwen2", "qwen2", 6, {"norm_eps": 1e-6, "rope_theta": 1000000.0}),
    Case("qwen3", "qwen3", 7, {"head_dim": 32, "tied_head": False, "rope_theta": 1000000.0}),
    Case("gemma3", "gemma3", 8, {"num_layers": 7, "head_dim": 32, "num_kv_heads": 1} | GEMMA),
    Case("gemma3-linear-rope", "gemma3", 9, {"num_layers": 6, "rope_scaling": "linear"} | GEMMA),
)
