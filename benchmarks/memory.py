"""Peak memory of gateway and worker (sum of PSS) under a heavy mix of requests.

    python -m benchmarks.memory MODEL.gguf [--rounds 1] [--out figures.csv]

The mix fills the KV pool (256 MiB) and asks for log-probabilities of prompts of 2,048 tokens,
beside sampled streams. The bound is 1.1 x (model file + pool) + 150 MB.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

from benchmarks.arguments import count
from benchmarks.http_streams import wait_until_ready
from benchmarks.rows import Figure, write_figures

POOL_BYTES = 256 << 20


def descendants(pid: int) -> list[int]:
    """The process and all its children."""
    pids = [pid]
    for parent in pids:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            pids += [int(child) for child in task.read_text().split()]
    return pids


def pss_bytes(pid: int) -> int:
    """Proportional set size of a process, 0 when it is gone."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return next(int(x.split()[1]) << 10 for x in text.splitlines() if x.startswith("Pss:"))


def post(port: int, body: dict[str, object]) -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions",
        json.dumps({"model": "bench", **body}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=300) as response:
        while response.read(1 << 16):
            pass


def bodies(rng: random.Random) -> list[dict[str, object]]:
    """Heavy requests: prompt log-probabilities, choices, long sampled streams."""

    def prompt(length: int) -> list[int]:
        return [rng.randrange(1000, 30000) for _ in range(length)]

    echo = {"echo": True, "logprobs": 5, "max_tokens": 1}
    mix: list[dict[str, object]] = [{"prompt": prompt(2048), **echo} for _ in range(4)]
    mix += [{"prompt": prompt(200), "max_tokens": 400, "stream": True} for _ in range(12)]
    mix += [{"prompt": prompt(100), "max_tokens": 200, "n": 4, "logprobs": 5} for _ in range(4)]
    mix += [{"prompt": prompt(2048), **echo, "stream": True} for _ in range(4)]
    return mix


def measure(model: Path, port: int) -> int:
    """Peak bytes while the mix runs on a server of its own."""
    command = [sys.executable, "-m", "headrace.cli", "serve", str(model), "--port"]
    command += [str(port), "--served-model-name", "bench", "--kv-cache-memory", "256MiB"]
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    peak = 0
    try:
        wait_until_ready(port)
        clients = [
            threading.Thread(target=post, args=(port, body)) for body in bodies(random.Random(0))
        ]
        for client in clients:
            client.start()
        while any(client.is_alive() for client in clients):
            peak = max(peak, sum(pss_bytes(pid) for pid in descendants(server.pid)))
            time.sleep(0.05)
    finally:
        server.terminate()
        server.wait(timeout=60)
    return peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--port", type=int, default=8766)
    parser.add_argument("--rounds", type=count, default=1)
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    bound = 1.1 * (args.model.stat().st_size + POOL_BYTES) + 150e6
    figures: list[Figure] = []
    for number in range(args.rounds):
        peak = measure(args.model, args.port)
        print(f"peak PSS {peak / 1e6:.0f} MB, bound {bound / 1e6:.0f} MB", flush=True)
        figures.append(Figure(number, "peak PSS of gateway and worker", peak / 1e6, "MB"))
        figures.append(Figure(number, "bound", bound / 1e6, "MB"))
        if args.out is not None:
            write_figures(args.out, figures)


if __name__ == "__main__":
    main()
