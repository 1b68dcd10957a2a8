"""llama.cpp under test, through llama-cpp-python in its own environment.

Decoding feeds fixed tokens: its sampling costs nothing.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import llama_cpp

from benchmarks.systems import protocol

BATCH_LEN = 2048


class Context:
    """One llama.cpp context for prefill and batched decoding."""

    def __init__(self, path: str, threads: int, ubatch: int, flash: bool) -> None:
        llama_cpp.llama_log_set(_silent, None)
        llama_cpp.llama_backend_init()
        model_params = llama_cpp.llama_model_default_params()
        self.model: Any = llama_cpp.llama_model_load_from_file(path.encode(), model_params)
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = 32 * 512
        params.n_batch = BATCH_LEN
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
        self.batch: Any = llama_cpp.llama_batch_init(BATCH_LEN, 0, 1)

    def clear(self) -> None:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.ctx), True)

    def truncate(self, sequence: int, length: int) -> None:
        memory = llama_cpp.llama_get_memory(self.ctx)
        llama_cpp.llama_memory_seq_rm(memory, sequence, length, -1)

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


class LlamaCpp:
    """See protocol.Adapter."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.version = str(llama_cpp.__version__)
        self._context = Context(args.model, args.threads, args.ubatch, args.flash)

    def prefill(self, prompt: list[int]) -> float:
        self._context.clear()
        started = time.perf_counter()
        self._feed(prompt, 0)
        return time.perf_counter() - started

    def decode(self, prompts: list[list[int]], tokens: int) -> float:
        self._context.clear()
        for sequence, prompt in enumerate(prompts):
            self._feed(prompt, sequence)
        started = time.perf_counter()
        for step in range(tokens):
            rows = [(p[step], len(p) + step, s, True) for s, p in enumerate(prompts)]
            self._context.run(rows)
        return time.perf_counter() - started

    def verify(self, tokens: list[int], rows: int, steps: int) -> float:
        """Seconds of `steps` steps of the last `rows` rows, whose KV is dropped before each."""
        start = len(tokens) - rows
        self._context.clear()
        self._feed(tokens[:start], 0)
        step = [(tokens[i], i, 0, True) for i in range(start, len(tokens))]
        self._context.run(step)
        started = time.perf_counter()
        for _ in range(steps):
            self._context.truncate(0, start)
            self._context.run(step)
        return time.perf_counter() - started

    def _feed(self, prompt: list[int], sequence: int) -> None:
        """Logits of the last token only."""
        last = len(prompt) - 1
        for start in range(0, len(prompt), BATCH_LEN):
            part = prompt[start : start + BATCH_LEN]
            rows = [(t, start + i, sequence, start + i == last) for i, t in enumerate(part)]
            self._context.run(rows)


def main() -> None:
    """Serve measurement commands."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--ubatch", type=int, default=512)
    parser.add_argument("--flash", action="store_true")
    args = parser.parse_args()
    protocol.run("llama.cpp", lambda: LlamaCpp(args))


if __name__ == "__main__":
    main()
