"""A Hugging Face folder with the dequantized weights of a GGUF file, for rivals that read no GGUF.

    python -m benchmarks.rivals.hf_folder MODEL.gguf FOLDER

The network is the same; only the weights are stored wide. There is no tokenizer in it.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from headrace.backends.reference.dequant import dequantize
from headrace.models.config import ModelConfig
from headrace.weights.base import WeightSource
from headrace.weights.names import hf_name
from headrace.weights.open import open_source

Floats = npt.NDArray[np.float32]
_ARCHITECTURES = {
    "llama": ("llama", "LlamaForCausalLM"),
    "qwen2": ("qwen2", "Qwen2ForCausalLM"),
    "qwen3": ("qwen3", "Qwen3ForCausalLM"),
    "gemma3": ("gemma3_text", "Gemma3ForCausalLM"),
}


def make_folder(path: Path, folder: Path) -> Path:
    """Write `folder` unless it is there already, finished."""
    if (folder / "config.json").is_file():
        return folder
    source = open_source(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {}
        for name, info in source.tensors.items():
            stored = hf_name(source.config.family, name)
            if stored is not None:
                values = dequantize(info.dtype, source.data(name), info.shape)
                tensors[stored] = np.ascontiguousarray(_as_hf(source.config, name, values))
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        config = json.dumps(hf_config(source), indent=1)
        (folder / "config.json").write_text(config + "\n", "utf-8")
    finally:
        source.close()
    return folder


def _as_hf(config: ModelConfig, name: str, values: Floats) -> Floats:
    """Undo what a conversion to GGUF does: pairs of rotary dimensions, Gemma's +1 of norms."""
    if config.family == "gemma3" and name.endswith("norm.weight"):
        return values - np.float32(1)
    is_rotated = ".attn_q." in name or ".attn_k." in name
    if is_rotated and config.rope.interleaved:
        heads = values.shape[0] // config.head_dim
        pairs = values.reshape(heads, config.head_dim // 2, 2, -1)
        return pairs.swapaxes(1, 2).reshape(values.shape)
    return values


def hf_config(source: WeightSource) -> dict[str, Any]:
    """config.json of the same network, as transformers reads it."""
    config = source.config
    if config.rope.scaling != "none" or config.rope.freq_factors_tensor is not None:
        raise SystemExit(f"{source.name}: models with rope scaling cannot be converted yet.")
    model_type, architecture = _ARCHITECTURES[config.family]
    activation = "silu" if config.activation == "silu" else "gelu_pytorch_tanh"
    values: dict[str, Any] = {
        "architectures": [architecture],
        "model_type": model_type,
        "torch_dtype": "float32",
        "num_hidden_layers": config.num_layers,
        "hidden_size": config.hidden_dim,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.ffn_dim,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_model_len,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope.theta,
        "hidden_act": activation,
        "attention_bias": False,
        "tie_word_embeddings": config.tied_head,
        "bos_token_id": source.tokenizer.bos_id,
        "eos_token_id": source.tokenizer.eos_id,
    }
    if config.family == "gemma3":
        values |= _gemma(config)
    return values


def _gemma(config: ModelConfig) -> dict[str, Any]:
    local = config.rope_local or config.rope
    kinds = ("full_attention", "sliding_attention")
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": round(1 / math.pow(config.attn_scale, 2)),
        "sliding_window": config.window,
        "layer_types": [kinds[is_window] for is_window in config.layer_is_window],
        "rope_local_base_freq": local.theta,
    }


def main() -> None:
    """Convert one model."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    print(make_folder(args.model, args.folder))


if __name__ == "__main__":
    main()
