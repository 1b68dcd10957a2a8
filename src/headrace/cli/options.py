"""Options that several verbs share, and the parsers of their values."""

from __future__ import annotations

import re
from typing import Annotated

import typer

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_size(text: str) -> int:
    """Bytes of `2G`, `512MiB`, `1.5 GB` or `1048576`; all units are powers of 1024."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:I?B)?\s*", text.upper())
    if found is None:
        raise typer.BadParameter(f"{text!r} is no size; write 512M, 2G or a number of bytes.")
    num_bytes = int(float(found[1]) * _UNITS[found[2]])
    if num_bytes <= 0:
        raise typer.BadParameter(f"{text!r} is no size above zero.")
    return num_bytes


Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A catalog name (smollm2:135m), a .gguf file, a Hugging Face folder, "
        "or a Hub id: org/repo[@revision][:QUANT].",
    ),
]
KvCacheMemory = Annotated[
    int | None,
    typer.Option(
        "--kv-cache-memory",
        parser=parse_size,
        metavar="SIZE",
        help="Memory for keys and values, such as 512M. Default: a quarter of what is free, "
        "at most 2G.",
    ),
]
MaxNumSeqs = Annotated[
    int,
    typer.Option(
        "--max-num-seqs",
        min=1,
        max=4096,
        metavar="N",
        help="Sequences that run at the same time.",
    ),
]
MaxModelLen = Annotated[
    int | None,
    typer.Option(
        "--max-model-len",
        min=1,
        metavar="TOKENS",
        help="Longest prompt plus output. Default: what the model was trained for.",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads",
        min=1,
        max=1024,
        metavar="N",
        help="Default: the cores this process may use.",
    ),
]
MaxTokens = Annotated[
    int | None,
    typer.Option(
        "--max-tokens",
        min=1,
        metavar="N",
        help="Longest answer. Default: until the model ends it.",
    ),
]
Temperature = Annotated[
    float,
    typer.Option("--temperature", min=0.0, metavar="T", help="0 always takes the likeliest token."),
]
TopP = Annotated[
    float, typer.Option("--top-p", min=0.0, max=1.0, metavar="P", help="Nucleus sampling.")
]
TopK = Annotated[
    int,
    typer.Option(
        "--top-k", min=0, metavar="K", help="Sample from the likeliest K only; 0: from all."
    ),
]
MinP = Annotated[
    float,
    typer.Option(
        "--min-p",
        min=0.0,
        max=1.0,
        metavar="P",
        help="Least share of the best token's probability.",
    ),
]
Seed = Annotated[
    int | None,
    typer.Option("--seed", metavar="N", help="Same seed, same text. Default: drawn anew."),
]
Stop = Annotated[
    list[str] | None,
    typer.Option("--stop", metavar="TEXT", help="End before this text; may be repeated."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
