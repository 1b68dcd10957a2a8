"""A seeded generator of tiny models: one set of weights as a GGUF file or a Hugging Face folder.

`make_gguf` and `make_hf` with the same arguments describe the same network: llama query and key
rows are permuted between the two rope layouts, and gemma norms carry their +1 in GGUF only.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.weights.base import BLOCK_SIZES, DType
from tests.support import gguf_writer as gw
from tests.support.packers import pack
from tests.support.vocab import Vocabulary, gpt2_vocabulary, llama_vocabulary, tokenizer_json

Floats = npt.NDArray[np.float32]

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content']"
    " + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_SAFETENSORS_NAMES = {DType.F32: "F32", DType.F16: "F16", DType.BF16: "BF16"}
_HF_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_HF_GEMMA_NAMES = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


@dataclass(frozen=True)
class Shape:
    """What is made. `vocab_size` 0: the size of the tokenizer's vocabulary."""

    family: str = "llama"
    num_layers: int = 2
    hidden_dim: int = 64
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 16
    ffn_dim: int = 128
    vocab_size: int = 0
    max_model_len: int = 512
    norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    window: int = 8
    tied_head: bool = True
    rope_scaling: str = "none"  # "none", "linear" (factor 8) or "llama3"


@dataclass(frozen=True)
class MadeTensor:
    """A stored tensor: canonical name, row-major shape, stored bytes, the floats before packing."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    data: bytes
    floats: Floats


@dataclass(frozen=True)
class MadeModel:
    """What was written. `tensors` is what a WeightSource over `path` must present."""

    path: Path
    shape: Shape
    tensors: dict[str, MadeTensor]
    vocab: Vocabulary | None
    metadata: dict[str, gw.Value] = field(default_factory=dict)


def make_gguf(
    path: Path,
    *,
    family: str = "llama",
    dtype: DType = DType.Q8_0,
    dtypes: Mapping[str, DType] | None = None,
    tokenizer: str | None = "auto",
    chat_template: str | None = CHAT_TEMPLATE,
    metadata: Mapping[str, gw.Value | None] | None = None,
    num_shards: int = 1,
    version: int = 3,
    alignment: int = 32,
    seed: int = 0,
    **overrides: Any,
) -> MadeModel:
    """Write `path` (or its `-0000i-of-0000n` shards beside it; the result's path is the first).

    `dtypes` overrides `dtype` by the middle of a tensor's name (`ffn_down`, `token_embd`,
    `output`). `tokenizer`: gpt2, llama, None, or auto (llama for gemma3). `metadata` adds keys, or
    removes those given as None. `overrides` are fields of Shape. K-quant types widen the default
    shape so that every row is whole blocks.
    """
    shape, vocab = _resolve(family, dtype, tokenizer, overrides)
    tensors = _stored_tensors(shape, seed, dtype, dtypes or {}, gguf=True)
    meta = _gguf_metadata(shape, vocab, chat_template)
    if alignment != 32:
        meta["general.alignment"] = gw.u32(alignment)
    for key, value in (metadata or {}).items():
        if value is None:
            meta.pop(key, None)
        else:
            meta[key] = value
    path.parent.mkdir(parents=True, exist_ok=True)
    first = _write_gguf(path, meta, list(tensors.values()), num_shards, version, alignment)
    return MadeModel(first, shape, tensors, vocab, meta)


def make_hf(
    folder: Path,
    *,
    family: str = "llama",
    dtype: DType = DType.BF16,
    tokenizer: str | None = "auto",
    chat_template: str | None = CHAT_TEMPLATE,
    config: Mapping[str, Any] | None = None,
    num_shards: int = 1,
    seed: int = 0,
    **overrides: Any,
) -> MadeModel:
    """Write config.json, *.safetensors, tokenizer.json, tokenizer_config.json and
    generation_config.json into `folder`. `config` adds keys to config.json (None removes one).
    All tensors have `dtype` (F32, F16 or BF16). `tensors` of the result are as a source presents
    them: canonical names, gemma3 norms as float32 with +1.
    """
    if dtype not in _SAFETENSORS_NAMES:
        raise ValueError(f"safetensors hold F32, F16 or BF16, not {dtype.name}")
    shape, vocab = _resolve(family, dtype, "gpt2" if tokenizer == "auto" else tokenizer, overrides)
    folder.mkdir(parents=True, exist_ok=True)
    stored = _stored_tensors(shape, seed, dtype, {}, gguf=False)
    document = hf_config(shape, vocab)
    for key, value in (config or {}).items():
        document[key] = value
        if value is None:
            del document[key]
    _write_json(folder / "config.json", document)
    _write_json(folder / "generation_config.json", {"eos_token_id": document.get("eos_token_id")})
    if vocab is not None:
        (folder / "tokenizer.json").write_bytes(tokenizer_json(vocab))
        tokenizer_config = {
            "bos_token": vocab.tokens[vocab.bos_id],
            "eos_token": vocab.tokens[vocab.eos_id],
            "add_bos_token": shape.family == "gemma3",
        }
        if chat_template is not None:
            tokenizer_config["chat_template"] = chat_template
        _write_json(folder / "tokenizer_config.json", tokenizer_config)
    _write_safetensors(folder, shape.family, list(stored.values()), num_shards)
    presented = {
        name: _with_one(tensor) if _is_gemma_norm(shape, name) else tensor
        for name, tensor in stored.items()
    }
    return MadeModel(folder, shape, presented, vocab)


def _resolve(
    family: str, dtype: DType, tokenizer: str | None, overrides: Mapping[str, Any]
) -> tuple[Shape, Vocabulary | None]:
    wide: dict[str, Any] = {}
    if BLOCK_SIZES[dtype][0] == 256:
        wide = {"hidden_dim": 256, "head_dim": 64, "ffn_dim": 512}
    if family == "gemma3":
        wide |= {"num_layers": 6, "norm_eps": 1e-6, "rope_theta": 1_000_000.0}
    shape = replace(Shape(family=family), **(wide | dict(overrides)))
    if tokenizer == "auto":
        tokenizer = "llama" if family == "gemma3" else "gpt2"
    vocab = None
    if tokenizer is not None:
        vocab = {"gpt2": gpt2_vocabulary, "llama": llama_vocabulary}[tokenizer]()
    if not shape.vocab_size:
        shape = replace(shape, vocab_size=len(vocab.tokens) if vocab else 320)
    return shape, vocab


def tensor_shapes(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Every tensor that a model of this shape has, by canonical name, row-major."""
    q_dim, kv_dim = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    hidden, ffn = shape.hidden_dim, shape.ffn_dim
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (shape.vocab_size, hidden),
        "output_norm.weight": (hidden,),
    }
    if not shape.tied_head:
        shapes["output.weight"] = (shape.vocab_size, hidden)
    for i in range(shape.num_layers):
        layer: dict[str, tuple[int, ...]] = {
            "attn_norm.weight": (hidden,),
            "attn_q.weight": (q_dim, hidden),
            "attn_k.weight": (kv_dim, hidden),
            "attn_v.weight": (kv_dim, hidden),
            "attn_output.weight": (hidden, q_dim),
            "ffn_norm.weight": (hidden,),
            "ffn_gate.weight": (ffn, hidden),
            "ffn_up.weight": (ffn, hidden),
            "ffn_down.weight": (hidden, ffn),
        }
        if shape.family == "qwen2":
            layer |= {"attn_q.bias": (q_dim,), "attn_k.bias": (kv_dim,), "attn_v.bias": (kv_dim,)}
        if shape.family in ("qwen3", "gemma3"):
            layer |= {
                "attn_q_norm.weight": (shape.head_dim,),
                "attn_k_norm.weight": (shape.head_dim,),
            }
        if shape.family == "gemma3":
            layer |= {"post_attention_norm.weight": (hidden,), "post_ffw_norm.weight": (hidden,)}
        shapes |= {f"blk.{i}.{name}": dims for name, dims in layer.items()}
    return shapes


def _stored_tensors(
    shape: Shape, seed: int, dtype: DType, dtypes: Mapping[str, DType], *, gguf: bool
) -> dict[str, MadeTensor]:
    rng = np.random.default_rng(seed)
    tensors: dict[str, MadeTensor] = {}
    for name, dims in tensor_shapes(shape).items():
        scale = dims[-1] ** -0.5 if len(dims) == 2 else 0.1
        floats = (rng.standard_normal(dims) * scale).astype(np.float32)
        kind = dtype
        if len(dims) == 1:
            kind = DType.F32 if gguf else dtype
            if name.endswith("norm.weight") and (gguf or shape.family != "gemma3"):
                floats = (floats + 1).astype(np.float32)
        elif gguf:
            kind = dtypes.get(name.removesuffix(".weight").rpartition(".")[2], dtype)
            if shape.family == "llama" and name.endswith(("attn_q.weight", "attn_k.weight")):
                floats = _interleave(floats, shape.head_dim)
        tensors[name] = MadeTensor(name, kind, dims, pack(kind, floats), floats)
    if gguf and shape.rope_scaling == "llama3":
        factors = _llama3_factors(shape)
        tensors["rope_freqs.weight"] = MadeTensor(
            "rope_freqs.weight", DType.F32, factors.shape, factors.tobytes(), factors
        )
    return tensors


def _interleave(floats: Floats, head_dim: int) -> Floats:
    """Rows of each head from (first halves, second halves) to interleaved pairs."""
    rows = floats.reshape(-1, 2, head_dim // 2, floats.shape[1]).swapaxes(1, 2)
    return np.ascontiguousarray(rows.reshape(floats.shape))


def _is_gemma_norm(shape: Shape, name: str) -> bool:
    return shape.family == "gemma3" and name.endswith("norm.weight")


def _with_one(tensor: MadeTensor) -> MadeTensor:
    """The stored (rounded) norm weights plus one, in float32."""
    if tensor.dtype is DType.BF16:
        stored = (np.frombuffer(tensor.data, "<u2").astype(np.uint32) << 16).view(np.float32)
    else:
        kind = "<f2" if tensor.dtype is DType.F16 else "<f4"
        stored = np.frombuffer(tensor.data, kind).astype(np.float32)
    floats = (stored + np.float32(1)).astype(np.float32)
    return MadeTensor(tensor.name, DType.F32, tensor.shape, floats.tobytes(), floats)


LLAMA3_SCALING = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def _llama3_factors(shape: Shape) -> Floats:
    """Divisor per rotary pair, as convert_hf_to_gguf.py writes rope_freqs."""
    s = LLAMA3_SCALING
    half = shape.head_dim // 2
    wavelens = 2 * np.pi * shape.rope_theta ** (np.arange(half) * 2 / shape.head_dim)
    original = s["original_max_position_embeddings"]
    smooth = (original / wavelens - s["low_freq_factor"]) / (
        s["high_freq_factor"] - s["low_freq_factor"]
    )
    factors = 1 / ((1 - smooth) / s["factor"] + smooth)
    factors = np.where(wavelens < original / s["high_freq_factor"], 1.0, factors)
    factors = np.where(wavelens > original / s["low_freq_factor"], s["factor"], factors)
    return factors.astype(np.float32)


def _gguf_metadata(
    shape: Shape, vocab: Vocabulary | None, chat_template: str | None
) -> dict[str, gw.Value]:
    arch = shape.family
    meta = {
        "general.architecture": gw.text(arch),
        "general.name": gw.text(f"tiny {arch}"),
        f"{arch}.block_count": gw.u32(shape.num_layers),
        f"{arch}.context_length": gw.u32(shape.max_model_len),
        f"{arch}.embedding_length": gw.u32(shape.hidden_dim),
        f"{arch}.feed_forward_length": gw.u32(shape.ffn_dim),
        f"{arch}.attention.head_count": gw.u32(shape.num_heads),
        f"{arch}.attention.head_count_kv": gw.u32(shape.num_kv_heads),
        f"{arch}.attention.key_length": gw.u32(shape.head_dim),
        f"{arch}.attention.value_length": gw.u32(shape.head_dim),
        f"{arch}.attention.layer_norm_rms_epsilon": gw.f32(shape.norm_eps),
        f"{arch}.rope.freq_base": gw.f32(shape.rope_theta),
    }
    if arch == "llama":
        meta["llama.rope.dimension_count"] = gw.u32(shape.head_dim)
    if arch == "gemma3":
        meta["gemma3.attention.sliding_window"] = gw.u32(shape.window)
    if shape.rope_scaling == "linear":
        meta[f"{arch}.rope.scaling.type"] = gw.text("linear")
        meta[f"{arch}.rope.scaling.factor"] = gw.f32(8.0)
    if vocab is not None:
        meta |= _gguf_vocabulary(vocab, arch)
        if chat_template is not None:
            meta["tokenizer.chat_template"] = gw.text(chat_template)
    return meta


def _gguf_vocabulary(vocab: Vocabulary, arch: str) -> dict[str, gw.Value]:
    gpt2 = vocab.model == "gpt2"
    pre = ("qwen2" if arch.startswith("qwen") else "smollm") if gpt2 else "default"
    meta = {
        "tokenizer.ggml.model": gw.text(vocab.model),
        "tokenizer.ggml.pre": gw.text(pre),
        "tokenizer.ggml.tokens": gw.array(gw.STRING, vocab.tokens),
        "tokenizer.ggml.token_type": gw.array(gw.INT32, vocab.token_types),
        "tokenizer.ggml.bos_token_id": gw.u32(vocab.bos_id),
        "tokenizer.ggml.eos_token_id": gw.u32(vocab.eos_id),
        "tokenizer.ggml.unknown_token_id": gw.u32(vocab.unk_id),
        "tokenizer.ggml.padding_token_id": gw.u32(vocab.pad_id),
        "tokenizer.ggml.add_bos_token": gw.flag(arch == "gemma3" or not gpt2),
        "tokenizer.ggml.add_space_prefix": gw.flag(False),
    }
    if gpt2:
        meta["tokenizer.ggml.merges"] = gw.array(gw.STRING, vocab.merges)
    else:
        meta["tokenizer.ggml.scores"] = gw.array(gw.FLOAT32, vocab.scores)
    return meta


def _write_gguf(
    path: Path,
    meta: Mapping[str, gw.Value],
    tensors: Sequence[MadeTensor],
    num_shards: int,
    version: int,
    alignment: int,
) -> Path:
    shards = _split(tensors, num_shards)
    first = path
    for i, shard in enumerate(shards):
        target = path
        keys = dict(meta) if i == 0 else {}
        if num_shards > 1:
            target = path.with_name(f"{path.stem}-{i + 1:05d}-of-{num_shards:05d}.gguf")
            keys["split.no"] = gw.Value(gw.UINT16, i)
            keys["split.count"] = gw.Value(gw.UINT16, num_shards)
            keys["split.tensors.count"] = gw.Value(gw.INT32, len(tensors))
            if alignment != 32:
                keys["general.alignment"] = gw.u32(alignment)
        first = target if i == 0 else first
        entries = [gw.Tensor(t.name, t.shape[::-1], t.dtype, t.data) for t in shard]
        target.write_bytes(gw.gguf_bytes(keys, entries, version=version, alignment=alignment))
    return first


def hf_config(shape: Shape, vocab: Vocabulary | None) -> dict[str, Any]:
    """config.json as transformers writes it for this family."""
    names = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "gemma3": "Gemma3"}
    document: dict[str, Any] = {
        "architectures": [f"{names.get(shape.family, 'Other')}ForCausalLM"],
        "model_type": "gemma3_text" if shape.family == "gemma3" else shape.family,
        "hidden_size": shape.hidden_dim,
        "intermediate_size": shape.ffn_dim,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": shape.max_model_len,
        "rms_norm_eps": shape.norm_eps,
        "rope_theta": shape.rope_theta,
        "tie_word_embeddings": shape.tied_head,
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
    }
    if vocab is not None:
        document |= {"bos_token_id": vocab.bos_id, "eos_token_id": vocab.eos_id}
    if shape.family == "gemma3":
        del document["hidden_act"]
        document |= {
            "hidden_activation": "gelu_pytorch_tanh",
            "sliding_window": shape.window,
            "sliding_window_pattern": 6,
            "rope_local_base_freq": 10000.0,
            "query_pre_attn_scalar": shape.head_dim,
        }
    if shape.rope_scaling == "linear":
        document["rope_scaling"] = {"rope_type": "linear", "factor": 8.0}
    if shape.rope_scaling == "llama3":
        document["rope_scaling"] = {"rope_type": "llama3", **LLAMA3_SCALING}
    return document


def hf_name(family: str, name: str) -> str:
    """The Hugging Face name of a canonical tensor name."""
    top = {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
        "output.weight": "lm_head.weight",
    }
    if name in top:
        return top[name]
    _, layer, middle, kind = name.split(".")
    names = _HF_LAYER_NAMES | (_HF_GEMMA_NAMES if family == "gemma3" else {})
    return f"model.layers.{layer}.{names[middle]}.{kind}"


def _write_safetensors(
    folder: Path, family: str, tensors: Sequence[MadeTensor], num_shards: int
) -> None:
    weight_map: dict[str, str] = {}
    for i, shard in enumerate(_split(tensors, num_shards)):
        file_name = "model.safetensors"
        if num_shards > 1:
            file_name = f"model-{i + 1:05d}-of-{num_shards:05d}.safetensors"
        named = [(hf_name(family, tensor.name), tensor) for tensor in shard]
        weight_map |= {name: file_name for name, _ in named}
        (folder / file_name).write_bytes(safetensors_bytes(named))
    if num_shards > 1:
        total = sum(len(tensor.data) for tensor in tensors)
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        _write_json(folder / "model.safetensors.index.json", index)


def safetensors_bytes(named: Sequence[tuple[str, MadeTensor]]) -> bytes:
    """A safetensors file: header length, JSON header padded to 8 bytes, packed data."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    start = 0
    for name, tensor in named:
        end = start + len(tensor.data)
        header[name] = {
            "dtype": _SAFETENSORS_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
        start = end
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    return struct.pack("<Q", len(raw)) + raw + b"".join(tensor.data for _, tensor in named)


def _split(tensors: Sequence[MadeTensor], num_parts: int) -> list[Sequence[MadeTensor]]:
    per_part = -(-len(tensors) // num_parts)
    return [tensors[i * per_part : (i + 1) * per_part] for i in range(num_parts)]


def _write_json(path: Path, document: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=2), encoding="utf-8")
