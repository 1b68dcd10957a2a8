"""OpenVINO GenAI under test, in its own environment, on the same GGUF file.

Two settings, as it has two engines: `paged` is its continuous batching (steps of our own, one step
holds a whole prompt), `sdpa` its plain pipeline, which runs one sequence. Greedy, no prefix cache.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import openvino
import openvino_genai

from benchmarks.systems import protocol

CACHE_GIB = 1
STEP_TOKENS = 4096


def _ids(prompt: list[int]) -> Any:
    return openvino.Tensor(np.array([prompt], np.int64))


def _greedy(tokens: int) -> Any:
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = tokens
    config.min_new_tokens = tokens
    config.ignore_eos = True
    config.do_sample = False
    return config


class Paged:
    """See protocol.Adapter."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.version = openvino_genai.get_version()
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = CACHE_GIB
        scheduler.max_num_batched_tokens = STEP_TOKENS
        scheduler.max_num_seqs = 64
        scheduler.dynamic_split_fuse = True
        scheduler.enable_prefix_caching = False
        properties = {"INFERENCE_NUM_THREADS": args.threads}
        self._pipeline: Any = openvino_genai.ContinuousBatchingPipeline(
            args.model, scheduler, "CPU", properties
        )
        self._next_id = 0

    def prefill(self, prompt: list[int]) -> float:
        started = time.perf_counter()
        handle = self._add(prompt, 1)
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
        seconds = time.perf_counter() - started
        del handle
        return seconds

    def decode(self, prompts: list[list[int]], tokens: int) -> float:
        """The first steps take all prompts; two more have every sequence decode before the clock
        starts, and what is left afterwards is run to its end untimed."""
        prompt_steps = -(-sum(map(len, prompts)) // STEP_TOKENS)
        extra = prompt_steps + 8
        handles = [self._add(prompt, tokens + extra) for prompt in prompts]
        for _ in range(prompt_steps + 2):
            self._pipeline.step()
        started = time.perf_counter()
        for _ in range(tokens):
            self._pipeline.step()
        seconds = time.perf_counter() - started
        if not self._pipeline.has_non_finished_requests():
            raise RuntimeError("sequences ended while they were timed")
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
        del handles
        return seconds

    def _add(self, prompt: list[int], tokens: int) -> Any:
        self._next_id += 1
        return self._pipeline.add_request(self._next_id, _ids(prompt), _greedy(tokens))


class Plain:
    """See protocol.Adapter. Times are its own raw metrics: when each token was there."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.version = openvino_genai.get_version()
        properties = {"INFERENCE_NUM_THREADS": args.threads, "ATTENTION_BACKEND": "SDPA"}
        self._pipeline: Any = openvino_genai.LLMPipeline(args.model, "CPU", **properties)

    def prefill(self, prompt: list[int]) -> float:
        started = time.perf_counter()
        self._generate(prompt, 1)
        return time.perf_counter() - started

    def decode(self, prompts: list[list[int]], tokens: int) -> float:
        if len(prompts) != 1:
            raise protocol.UnsupportedError("its plain pipeline runs one sequence")
        times = self._generate(prompts[0], tokens + 2)
        return float(times[-1] - times[-1 - tokens]) / 1e3

    def _generate(self, prompt: list[int], tokens: int) -> Any:
        """The times of the tokens, in milliseconds (its help says microseconds)."""
        ids = _ids(prompt)
        mask = openvino.Tensor(np.ones((1, len(prompt)), np.int64))
        inputs = openvino_genai.TokenizedInputs(ids, mask)
        result = self._pipeline.generate(inputs, _greedy(tokens))
        times = result.perf_metrics.raw_metrics.m_new_token_times
        if len(times) != tokens:
            raise RuntimeError(f"{len(times)} tokens instead of {tokens}")
        return times


def main() -> None:
    """Serve measurement commands."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--engine", choices=["paged", "sdpa"], default="paged")
    args = parser.parse_args()
    made = Paged if args.engine == "paged" else Plain
    protocol.run("openvino", lambda: made(args))


if __name__ == "__main__":
    main()
