"""llama.cpp's logits of given tokens, through llama-cpp-python in its own environment.

Reads {"tokens": [...]} per line on stdin; answers a line {"rows": n, "vocab": v} and n * v float32
on stdout. Run as a module from the repository's root, whose code it does not otherwise need.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys

import llama_cpp

from benchmarks.systems.llama_cpp_system import Context


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--flash", action="store_true")
    args = parser.parse_args()
    context = Context(args.model, args.threads, 512, args.flash)
    vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(context.model))
    _write_line({"version": llama_cpp.__version__})
    for line in sys.stdin:
        tokens = json.loads(line)["tokens"]
        context.clear()
        context.run([(token, i, 0, True) for i, token in enumerate(tokens)])
        logits = llama_cpp.llama_get_logits(context.ctx)
        _write_line({"rows": len(tokens), "vocab": vocab})
        sys.stdout.buffer.write(ctypes.string_at(logits, len(tokens) * vocab * 4))
        sys.stdout.buffer.flush()


def _write_line(values: dict[str, object]) -> None:
    sys.stdout.buffer.write(json.dumps(values).encode() + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
