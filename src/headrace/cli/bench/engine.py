"""`headrace bench engine`: speed of a model on this machine, beside what its memory can deliver."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

from headrace.cli import console, options
from headrace.cli.params import Opt, integer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.engine.llm import LLM

# Read once per measurement; far larger than any cache.
READ_BYTES = 256 << 20
HEAD = ["measurement", "median", "least", "most", "unit", "of the roof"]


@dataclass(frozen=True, slots=True)
class Figure:
    """Median, least and most of one measured quantity over the repeats.

    `roof_share`: for decode, the bytes of the model's file read once per step (all streams share
    it), over the memory bandwidth measured in the same run. Reads of KV are not counted.
    """

    name: str
    unit: str
    median: float
    least: float
    most: float
    roof_share: float | None = None


def engine(
    model: options.Model,
    prompt_len: Annotated[
        int, Opt("--prompt-len", "Tokens of the prefill measurement.", "N", integer(1))
    ] = 512,
    output_len: Annotated[
        int, Opt("--output-len", "Tokens of the decode measurements.", "N", integer(2))
    ] = 64,
    batch: Annotated[
        list[int] | None,
        Opt(
            "--batch",
            "Streams at once; may be repeated. Default: 1 and 32.",
            "N",
            integer(1, 4096),
        ),
    ] = None,
    repeat: Annotated[int, Opt("--repeat", "Runs of each measurement.", "N", integer(1))] = 3,
    threads: options.Threads = None,
    kv_cache_memory: options.KvCacheMemory = None,
    json: options.Json = False,
) -> None:
    """Measure a model's speed beside the memory's."""
    from headrace.cli.machine import file_bytes
    from headrace.cli.session import open_llm

    batches = batch or [1, 32]
    console.say(f"Loading {model}.")
    with open_llm(
        model,
        threads=threads,
        kv_cache_bytes=kv_cache_memory,
        max_model_len=None,
        max_num_seqs=max(batches),
    ) as llm:
        figures = list(_figures(llm, file_bytes(model), prompt_len, output_len, batches, repeat))
    if json:
        console.print_json({"model": model, "figures": [asdict(figure) for figure in figures]})
    else:
        console.print_table(HEAD, [_row(figure) for figure in figures])


def _figures(
    llm: LLM,
    model_bytes: int,
    prompt_len: int,
    output_len: int,
    batches: list[int],
    repeat: int,
) -> Iterator[Figure]:
    memory = _measure("memory read", "GB/s", repeat, _read_gb_per_s)
    yield memory
    prefill = partial(_prefill_per_s, llm, prompt_len)
    yield _measure(f"prefill, {prompt_len} tokens", "tok/s", repeat, prefill)
    for num_streams in batches:
        decode = partial(_decode_per_s, llm, num_streams, output_len)
        figure = _measure(f"decode, {num_streams} at once", "tok/s", repeat, decode)
        read_per_s = figure.median / num_streams * model_bytes
        yield replace(figure, roof_share=read_per_s / (memory.median * 1e9))


def _row(figure: Figure) -> list[str]:
    values = (figure.median, figure.least, figure.most)
    share = "" if figure.roof_share is None else f"{figure.roof_share:.0%}"
    return [figure.name, *(f"{value:.1f}" for value in values), figure.unit, share]


def _measure(name: str, unit: str, repeat: int, once: Callable[[], float]) -> Figure:
    """One warm-up, then `repeat` runs."""
    import statistics

    console.say(f"Measuring {name}.")
    once()
    values = [once() for _ in range(repeat)]
    return Figure(name, unit, statistics.median(values), min(values), max(values))


def _prompt(llm: LLM, length: int, salt: int) -> list[int]:
    """Token ids from a linear congruence (Knuth's MMIX constants): no two prompts are alike."""
    state, ids = salt + 1, []
    for _ in range(length):
        state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        ids.append((state >> 33) % llm.tokenizer.vocab_size)
    return ids


def _prefill_per_s(llm: LLM, prompt_len: int) -> float:
    from headrace.engine.sampling import SamplingParams

    params = SamplingParams(max_tokens=1, temperature=0.0)
    output = llm.generate([_prompt(llm, prompt_len, time.monotonic_ns())], params)[0]
    return prompt_len / output.timings.prefill_s


def _decode_per_s(llm: LLM, num_streams: int, output_len: int) -> float:
    """Tokens after the first of every stream, over the longest time that one of them decoded."""
    from headrace.engine.sampling import SamplingParams

    params = SamplingParams(max_tokens=output_len, temperature=0.0, ignore_eos=True)
    salt = time.monotonic_ns()
    prompts = [_prompt(llm, 16, salt + index) for index in range(num_streams)]
    outputs = llm.generate(prompts, params)
    decode_s = max(output.timings.decode_s for output in outputs)
    return num_streams * (output_len - 1) / decode_s


def _read_gb_per_s() -> float:
    """Bytes per second that all cores together read from memory (a maximum over 64-bit words)."""
    from concurrent.futures import ThreadPoolExecutor

    import numpy as np

    from headrace.cli.machine import usable_cores

    num_threads = usable_cores()
    words = np.ones(READ_BYTES // 8, dtype=np.int64)
    parts = np.array_split(words, num_threads)
    with ThreadPoolExecutor(num_threads) as pool:
        started_s = time.perf_counter()
        list(pool.map(np.max, parts))
        elapsed_s = time.perf_counter() - started_s
    return READ_BYTES / elapsed_s / 1e9
