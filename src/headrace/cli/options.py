"""Parameters that several verbs share."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from headrace.cli.params import Arg, Opt, choice, integer, number, size


class KvDtype(StrEnum):
    """Stored type of keys and values."""

    FP16 = "fp16"
    INT8 = "int8"


class Activations(StrEnum):
    """What quantized weights are multiplied by."""

    QUANTIZED = "quantized"
    FLOAT32 = "float32"


ANY_INTEGER = integer(-(1 << 63), (1 << 64) - 1)

Model = Annotated[
    str,
    Arg(
        "MODEL",
        "A catalog name (smollm2:135m), a .gguf file, a Hugging Face folder, "
        "or a Hub id: org/repo[@revision][:QUANT].",
    ),
]
KvCacheMemory = Annotated[
    int | None,
    Opt(
        "--kv-cache-memory",
        "Memory for keys and values, such as 512M. Default: a quarter of what is free, at most 2G.",
        "SIZE",
        size,
    ),
]
KvDtypeOption = Annotated[
    KvDtype,
    Opt(
        "--kv-dtype",
        "How keys and values are kept: int8 takes half the memory at a small loss.",
        "fp16|int8",
        choice(KvDtype),
    ),
]
MaxNumSeqs = Annotated[
    int, Opt("--max-num-seqs", "Sequences that run at the same time.", "N", integer(1, 4096))
]
MaxModelLen = Annotated[
    int | None,
    Opt(
        "--max-model-len",
        "Longest prompt plus output. Default: what the model was trained for.",
        "TOKENS",
        integer(1),
    ),
]
Threads = Annotated[
    int | None,
    Opt("--threads", "Default: the cores this process may use.", "N", integer(1, 1024)),
]
Isa = Annotated[
    str | None,
    Opt("--isa", "Kernels to use: avx512, avx2, scalar. Default: the best.", "NAME"),
]
ActivationsOption = Annotated[
    Activations,
    Opt(
        "--activations",
        "What quantized weights are multiplied by: quantized (8 or 16 bits) or float32 "
        "(more exact, slower).",
        "KIND",
        choice(Activations),
    ),
]
MaxTokens = Annotated[
    int | None,
    Opt("--max-tokens", "Longest answer. Default: until the model ends it.", "N", integer(1)),
]
Temperature = Annotated[
    float, Opt("--temperature", "0 always takes the likeliest token.", "T", number(0, 100))
]
TopP = Annotated[float, Opt("--top-p", "Nucleus sampling.", "P", number(0, 1))]
TopK = Annotated[
    int, Opt("--top-k", "Sample from the likeliest K only; 0: from all.", "K", integer(0))
]
MinP = Annotated[
    float, Opt("--min-p", "Least share of the best token's probability.", "P", number(0, 1))
]
Seed = Annotated[
    int | None, Opt("--seed", "Same seed, same text. Default: drawn anew.", "N", ANY_INTEGER)
]
Stop = Annotated[list[str] | None, Opt("--stop", "End before this text; may be repeated.", "TEXT")]
System = Annotated[str | None, Opt("--system", "System message.", "TEXT")]
Json = Annotated[bool, Opt("--json", "Print JSON.")]
