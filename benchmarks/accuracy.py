"""How near a system's next-token distribution is to float32 arithmetic on the dequantized weights.

    python -m benchmarks.accuracy MODEL.gguf --rival-python /path/to/its/python --out rows.csv

Per window of text: mean KL(truth || system) in nats, and how often both have the same best token.
The truth is the NumPy reference backend: float32 weights, activations, keys and values. Systems are
headrace's CPU backend, as it serves and with --activations float32 or int8 keys and values, and
llama.cpp (through llama-cpp-python in the environment of --rival-python or HEADRACE_RIVAL_PYTHON)
with and without its fused attention. The bound of the difference in agreement is that of a normal
mean over the windows, paired.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np

from benchmarks.accuracy_report import Window, mean_kl, top1_bound
from benchmarks.arguments import count
from benchmarks.lineup import OURS
from benchmarks.targets import MAX_KL_RATIO, MIN_TOP1_POINTS
from benchmarks.text import benchmark_text, kind_of_text
from headrace.backends.base import Backend
from headrace.backends.cpu import CpuBackend
from headrace.backends.reference import CPU_LIKE, EXACT, LOGITS, Numerics, ReferenceBackend
from headrace.bench.accuracy import Floats, chunk_plans, kl_of_rows, num_blocks
from headrace.engine.load import freq_factors
from headrace.models.registry import build_program
from headrace.models.views import with_logits
from headrace.text.tokenizer import load_tokenizer
from headrace.weights.base import WeightSource
from headrace.weights.open import open_source

HERE = Path(__file__).parent
CHUNK_LEN = 64
# Characters of text for a token, more than there are on average: the rest is not tokenized.
MAX_TOKEN_LEN = 8
# Rows of logits that are compared at once: what they need stays in cache.
SLICE_LEN = 4


@dataclass(frozen=True)
class Row:
    """One window of one system. KL in nats, of `tokens` positions."""

    window: int
    system: str
    tokens: int
    mean_kl: float
    median_kl: float
    max_kl: float
    agreements: int
    seconds: float


class System(Protocol):
    """Gives the logits [tokens, vocab] of a window of token ids."""

    name: str
    version: str

    def logits(self, tokens: Sequence[int]) -> Floats: ...

    def close(self) -> None: ...


class BackendSystem:
    """A backend of ours, in this process, in chunks of one sequence."""

    def __init__(self, name: str, backend: Backend) -> None:
        self.name = name
        self.version = backend.numerics_id[:12]
        self._backend = backend

    def logits(self, tokens: Sequence[int]) -> Floats:
        parts = [
            np.array(self._backend.hidden_states(plan, [LOGITS])[LOGITS], np.float32)
            for plan in chunk_plans(self._backend.layout, tokens, CHUNK_LEN)
        ]
        return np.concatenate(parts)

    def close(self) -> None:
        self._backend.close()


class CpuSystem(BackendSystem):
    """The CPU backend, whose logits need no detour over lists."""

    def __init__(self, name: str, backend: CpuBackend) -> None:
        super().__init__(name, backend)
        self._cpu = backend

    def logits(self, tokens: Sequence[int]) -> Floats:
        parts = []
        for plan in chunk_plans(self._cpu.layout, tokens, CHUNK_LEN):
            width, data = self._cpu.hidden_bytes(plan, [LOGITS])[LOGITS]
            parts.append(np.frombuffer(data, np.float32).reshape(-1, width))
        return np.concatenate(parts)


class ReferenceSystem(BackendSystem):
    """The NumPy backend, whose logits need no detour over lists."""

    def __init__(self, name: str, source: WeightSource, window: int, numerics: Numerics) -> None:
        self._reference = ReferenceBackend(
            source, num_blocks=num_blocks(source, window), numerics=numerics
        )
        super().__init__(name, self._reference)

    def logits(self, tokens: Sequence[int]) -> Floats:
        plans = chunk_plans(self._reference.layout, tokens, len(tokens))
        return np.concatenate([self._reference.logits(plan) for plan in plans]).astype(np.float32)


class RivalSystem:
    """llama.cpp in a process of its own (benchmarks/systems/llama_cpp_logits.py)."""

    def __init__(self, python: str, model: Path, threads: int, *, flash: bool) -> None:
        self.name = "llama.cpp" + ("+fa" if flash else "")
        command = [python, "-m", "benchmarks.systems.llama_cpp_logits", str(model.resolve())]
        command += ["--threads", str(threads), *(["--flash"] if flash else [])]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=HERE.parent
        )
        self.version = str(self._answer()["version"])

    def _pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        return self._process.stdin, self._process.stdout

    def _answer(self) -> dict[str, Any]:
        line = self._pipes()[1].readline()
        if not line:
            raise RuntimeError(f"{self.name} ended early")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def logits(self, tokens: Sequence[int]) -> Floats:
        stdin, stdout = self._pipes()
        stdin.write(json.dumps({"tokens": list(tokens)}).encode() + b"\n")
        stdin.flush()
        shape = self._answer()
        count = int(shape["rows"]) * int(shape["vocab"])
        return np.frombuffer(stdout.read(count * 4), np.float32).reshape(len(tokens), -1)

    def close(self) -> None:
        self._pipes()[0].close()
        self._process.wait(timeout=60)


def compare(window: int, system: str, truth: Floats, logits: Floats, seconds: float) -> Row:
    """KL of every position between two rows of logits. In float64, in slices that fit a cache."""
    slices = [slice(start, start + SLICE_LEN) for start in range(0, len(truth), SLICE_LEN)]
    with ThreadPoolExecutor(2) as pool:  # NumPy works without the GIL
        parts = pool.map(lambda s: kl_of_rows(truth[s], logits[s]), slices)
        kl = np.concatenate(list(parts))
    agreements = int((truth.argmax(axis=1) == logits.argmax(axis=1)).sum())
    return Row(
        window,
        system,
        len(kl),
        float(kl.mean()),
        float(np.median(kl)),
        float(kl.max()),
        agreements,
        seconds,
    )


def summarize(rows: Sequence[Row]) -> str:
    """A table over all windows; the error of the mean is over windows."""
    lines = [
        "| system | tokens | mean KL | standard error | worst KL | same best token |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for system in dict.fromkeys(row.system for row in rows):
        mine = [row for row in rows if row.system == system]
        tokens = sum(row.tokens for row in mine)
        means = np.array([row.mean_kl for row in mine])
        mean = sum(row.mean_kl * row.tokens for row in mine) / tokens
        error = means.std(ddof=1) / len(means) ** 0.5 if len(means) > 1 else float("nan")
        worst = max(row.max_kl for row in mine)
        share = sum(row.agreements for row in mine) / tokens
        lines.append(
            f"| {system} | {tokens} | {mean:.6f} | {error:.6f} | {worst:.4f} | {share:.4%} |"
        )
    return "\n".join(lines)


def windows_of(source: WeightSource, body: str, num_tokens: int, window: int) -> list[list[int]]:
    """Whole windows of token ids, each begun with BOS where the model's tokenizer adds it."""
    tokenizer = load_tokenizer(source.tokenizer, source.config.vocab_size)
    ids = tokenizer.encode(body[: MAX_TOKEN_LEN * (num_tokens + window)], add_special=False)
    bos = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
    step = window - len(bos)
    count = min(-(-num_tokens // window), len(ids) // step)
    return [[*bos, *ids[i * step : (i + 1) * step]] for i in range(count)]


def start_systems(args: argparse.Namespace, source: WeightSource) -> list[System]:
    """Ours, then the rival at both settings, then the emulation; what is left out is said."""
    program = with_logits(build_program(source.config, freq_factors(source)))
    layout_blocks = num_blocks(source, args.window)
    reference = ReferenceBackend(source, num_blocks=0)

    def ours(name: str, activations: str = "quantized", kv_dtype: str = "fp16") -> System:
        backend = CpuBackend.load(
            source,
            program,
            kv_bytes=layout_blocks * reference.layout.block_bytes,
            threads=args.threads,
            max_step_rows=CHUNK_LEN,
            activations=activations,
            kv_dtype=kv_dtype,
        )
        return CpuSystem(name, backend)

    systems = [ours(OURS)]
    if args.rival_python:
        for flash in (False, True):
            systems.append(RivalSystem(args.rival_python, args.model, args.threads, flash=flash))
    else:
        _say("llama.cpp is left out: give --rival-python or HEADRACE_RIVAL_PYTHON")
    if not args.plain:
        systems.append(ours(f"{OURS}, float32 activations", activations="float32"))
        systems.append(ours(f"{OURS}, int8 KV", kv_dtype="int8"))
    if args.emulation:
        systems.append(ReferenceSystem("headrace emulated", source, args.window, CPU_LIKE))
    return systems


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    """Measure every window with every system; rows as CSV, the table on stdout."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--threads", type=count, default=2)
    parser.add_argument("--rival-python", default=os.environ.get("HEADRACE_RIVAL_PYTHON"))
    parser.add_argument("--text", choices=["maths", "code", "prose"], help="default: by the model")
    parser.add_argument(
        "--plain", action="store_true", help="headrace as it serves by default only"
    )
    parser.add_argument("--emulation", action="store_true", help="also the NumPy emulation of ours")
    parser.add_argument("--out", type=Path, default=None, help="CSV of every window")
    args = parser.parse_args()
    source = open_source(args.model)
    text = benchmark_text(kind=args.text or kind_of_text(args.model.name))
    windows = windows_of(source, text.body, args.tokens, args.window)
    _say(f"text: {text.source}, {len(windows)} windows of {args.window} tokens")
    truth = ReferenceSystem("truth", source, args.window, EXACT)
    systems = start_systems(args, source)
    _say(", ".join(f"{s.name} {s.version}" for s in systems))
    rows: list[Row] = []
    for index, tokens in enumerate(windows):
        started = time.perf_counter()
        expected = truth.logits(tokens)
        truth_s = time.perf_counter() - started
        for system in systems:
            started = time.perf_counter()
            got = system.logits(tokens)
            seconds = time.perf_counter() - started
            rows.append(compare(index, system.name, expected, got, seconds))
        _say(f"{index + 1}/{len(windows)} truth {truth_s:.1f} s, " + summary_line(rows, index))
        if args.out is not None:
            write_rows(args.out, rows)
    for system in systems:
        system.close()
    print(summarize(rows))
    print("\n".join(verdicts(args.model.stem, rows)))


def verdicts(model: str, rows: Sequence[Row]) -> list[str]:
    """What the targets say of ours beside each rival."""
    windows = [Window(r.window, r.system, r.tokens, r.mean_kl, r.agreements) for r in rows]
    lines = []
    for rival in dict.fromkeys(r.system for r in rows if not r.system.startswith(OURS)):
        ratio = mean_kl(windows, OURS) / mean_kl(windows, rival)
        bound = top1_bound(windows, OURS, rival)
        lines.append(
            f"{model} beside {rival}: mean KL {ratio:.2f}x (target <= {MAX_KL_RATIO:.2f}), same"
            f" best token at least {bound:+.2f} points (target >= {MIN_TOP1_POINTS})"
        )
    return lines


def summary_line(rows: Sequence[Row], window: int) -> str:
    """The mean KL of one window of each system."""
    return ", ".join(f"{r.system} {r.mean_kl:.6f}" for r in rows if r.window == window)


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """All rows as CSV with a header."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([field.name for field in fields(Row)])
        writer.writerows(astuple(row) for row in rows)


if __name__ == "__main__":
    main()
