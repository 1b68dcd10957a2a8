"""32 concurrent streams over HTTP beside the offline engine, on the same requests.

    python -m benchmarks.http_streams MODEL [--streams 32] [--tokens 128] [--out figures.csv]

A raw-socket client reads server-sent events; its CPU seconds are reported, since on a small machine
it competes with the server. Gaps are times between two events of one stream, after every stream has
begun (steps without prefill).
"""

from __future__ import annotations

import argparse
import json
import random
import selectors
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from benchmarks.arguments import count
from benchmarks.rows import Figure, write_figures
from headrace import LLM, SamplingParams


@dataclass
class Stream:
    """One connection, the beginning of what it said, when its events arrived, and the last one."""

    sock: socket.socket
    times: list[float] = field(default_factory=list)
    head: bytes = b""
    last: bytes = b""
    buffer: bytes = b""
    ended: bool = False


def make_prompts(count: int, length: int) -> list[list[int]]:
    rng = random.Random(0)
    return [[rng.randrange(1000, 30000) for _ in range(length)] for _ in range(count)]


def run_offline(model: str, first: list[int], prompts: list[list[int]], tokens: int) -> float:
    """Tokens per second of the whole batch, prefill included, after a first prompt."""
    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    with LLM(model) as llm:
        llm.generate([first], params)
        started = time.perf_counter()
        llm.generate([list(p) for p in prompts], params)
        return len(prompts) * tokens / (time.perf_counter() - started)


def open_stream(port: int, body: Mapping[str, object]) -> Stream:
    """Ask for a completion that is streamed."""
    data = json.dumps(body).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n"
        "Connection: close\r\n\r\n"
    ).encode()
    sock = socket.create_connection(("127.0.0.1", port))
    sock.sendall(head + data)
    sock.setblocking(False)
    return Stream(sock)


def body_of(prompt: list[int], tokens: int) -> dict[str, object]:
    return {
        "model": "bench",
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }


def read_events(stream: Stream) -> None:
    """Count the complete `data:` lines that arrived."""
    data = stream.sock.recv(1 << 16)
    now = time.perf_counter()
    stream.head = stream.head or data
    stream.buffer += data
    *lines, stream.buffer = stream.buffer.split(b"\n")
    for line in lines:
        if line.startswith(b"data: [DONE]"):
            stream.ended = True
        elif line.startswith(b"data: "):
            stream.times.append(now)
            stream.last = line
    if not data:
        stream.ended = True


def run_http(port: int, prompts: list[list[int]], tokens: int) -> tuple[float, list[Stream]]:
    """Tokens per second over all streams, and the streams."""
    selector = selectors.DefaultSelector()
    started = time.perf_counter()
    streams = [open_stream(port, body_of(prompt, tokens)) for prompt in prompts]
    for stream in streams:
        selector.register(stream.sock, selectors.EVENT_READ, stream)
    while not all(s.ended for s in streams):
        for key, _ in selector.select(timeout=60):
            read_events(key.data)
            if key.data.ended:
                selector.unregister(key.data.sock)
                key.data.sock.close()
    return len(prompts) * tokens / (time.perf_counter() - started), streams


def gaps_ms(streams: list[Stream]) -> list[float]:
    """Gaps between events after the last stream has begun, sorted, in milliseconds."""
    begun = max(s.times[0] for s in streams)
    gaps = []
    for stream in streams:
        times = [t for t in stream.times if t >= begun]
        gaps += [1e3 * (b - a) for a, b in pairwise(times)]
    return sorted(gaps)


def wait_until_ready(port: int) -> None:
    for _ in range(600):
        try:
            with socket.create_connection(("127.0.0.1", port)) as sock:
                sock.sendall(f"GET /readyz HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
                if b" 200 " in sock.recv(100):
                    return
        except OSError:
            pass
        time.sleep(0.1)
    raise RuntimeError("the server did not become ready")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--port", type=int, default=8765)
    parser.add_argument("--rounds", type=count, default=3)
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    first, *prompts = make_prompts(args.streams + 1, 64)
    command = [sys.executable, "-m", "headrace.cli", "serve", args.model]
    command += ["--served-model-name", "bench", "--port", str(args.port)]
    figures: list[Figure] = []
    for number in range(args.rounds):
        offline = run_offline(args.model, first, prompts, args.tokens)
        server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            wait_until_ready(args.port)
            run_http(args.port, [first], 8)
            before = time.process_time()
            rate, streams = run_http(args.port, prompts, args.tokens)
            client_s = time.process_time() - before
        finally:
            server.terminate()
            server.wait(timeout=60)
        gaps = gaps_ms(streams)
        median, p99 = statistics.median(gaps), gaps[int(len(gaps) * 0.99)]
        values = {
            "offline": (offline, "tokens/s"),
            "HTTP": (rate, "tokens/s"),
            "HTTP over offline": (rate / offline, "x"),
            "gap of a stream, median": (median, "ms"),
            "gap of a stream, p99": (p99, "ms"),
            "gap of a stream, p99 over median": (p99 / median, "x"),
        }
        figures += [Figure(number, name, *value) for name, value in values.items()]
        if args.out is not None:
            write_figures(args.out, figures)
        print(
            f"round {number}: offline {offline:.0f} tok/s, http {rate:.0f} tok/s "
            f"({rate / offline:.2f}), gap median {median:.1f} ms, p99 {p99:.1f} ms "
            f"({p99 / median:.2f}x), client CPU {client_s:.2f} s of "
            f"{args.streams * args.tokens / rate:.2f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
