"""llama.cpp under test, through llama-cpp-python in its own environment.

Same commands as headrace_system.py. Decoding feeds fixed tokens: its sampling costs nothing.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from typing import Any

import llama_cpp


class Context:
    """One llama.cpp context for prefill and batched decoding."""

    def __init__(self, path: str, threads: int, ubatch: int, flash: bool) -> None:
        llama_cpp.llama_log_set(_silent, None)
        llama_cpp.llama_backend_init()
        model_params = llama_cpp.llama_model_default_params()
        self.model: Any = llama_cpp.llama_model_load_from_file(path.encode(), model_params)
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = 32 * 512
        params.n_batch = 2048
        params.n_ubatch = ubatch
        params.n_seq_max = 32
        params.n_threads = threads
        params.n_threads_batch = threads
        params.kv_unified = True
        if hasattr(params, "flash_attn_type"):
            params.flash_attn_type = 1 if flash else 0
        else:
            params.flash_attn = flash
        self.ctx: Any = llama_cpp.llama_init_from_model(self.model, params)
        self.batch: Any = llama_cpp.llama_batch_init(2048, 0, 1)

    def clear(self) -> None:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.ctx), True)

    def run(self, rows: list[tuple[int, int, int, bool]]) -> None:
        """Rows of (token, position, sequence, logits wanted)."""
        batch = self.batch
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[i] = token
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = wanted
        if llama_cpp.llama_decode(self.ctx, batch) != 0:
            raise RuntimeError("llama_decode failed")
        llama_cpp.llama_synchronize(self.ctx)


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]  # the rival has no types
def _silent(_level: int, _text: bytes, _data: object) -> None:
    return None


def _prompt(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(1000, 30000) for _ in range(length)]


def prefill(context: Context, rng: random.Random, tokens: int) -> tuple[float, int]:
    context.clear()
    prompt = _prompt(rng, tokens)
    rows = [(t, i, 0, i == tokens - 1) for i, t in enumerate(prompt)]
    started = time.perf_counter()
    context.run(rows)
    return time.perf_counter() - started, tokens


def decode(
    context: Context, rng: random.Random, sequences: int, length: int, tokens: int
) -> tuple[float, int]:
    context.clear()
    for sequence in range(sequences):
        prompt = _prompt(rng, length)
        context.run([(t, i, sequence, i == length - 1) for i, t in enumerate(prompt)])
    fixed = _prompt(rng, tokens)
    started = time.perf_counter()
    for step, token in enumerate(fixed):
        context.run([(token, length + step, s, True) for s in range(sequences)])
    return time.perf_counter() - started, sequences * tokens


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--ubatch", type=int, default=512)
    parser.add_argument("--flash", action="store_true")
    args = parser.parse_args()
    context = Context(args.model, args.threads, args.ubatch, args.flash)
    print(json.dumps({"ready": "llama.cpp", "version": llama_cpp.__version__}), flush=True)
    rng = random.Random(0)
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "prefill":
            seconds, count = prefill(context, rng, command["tokens"])
        else:
            seconds, count = decode(
                context, rng, command["sequences"], command["context"], command["tokens"]
            )
        print(json.dumps({"seconds": seconds, "tokens": count}), flush=True)


if __name__ == "__main__":
    main()
