"""Which systems take part in a run, each at every setting that may be its best."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.machine import multiplies_bf16
from benchmarks.process import Launch
from benchmarks.rivals import llama_cpp, openvino, vllm_cpu
from benchmarks.rivals.environment import python_of
from benchmarks.rivals.hf_folder import make_folder

OURS = "headrace"
SOURCE = Path(__file__).parent.parent / "src"
RIVALS = (llama_cpp.NAME, vllm_cpu.NAME, openvino.NAME)
_MODULE = "benchmarks.systems."


@dataclass(frozen=True)
class Lineup:
    """`rivals`: the folder of their environments (benchmarks.rivals), or None for ours alone.

    `only`: names of rivals; empty for all. `kv_dtypes`: ours runs once with each.
    """

    model: Path
    threads: int
    rivals: Path | None
    only: Sequence[str] = ()
    kv_dtypes: Sequence[str] = ()

    def launches(self) -> Iterator[Launch]:
        """Ours first. Converts the weights for a rival that reads no GGUF."""
        yield from self._ours()
        for name in self.only or RIVALS:
            python = self._python(name)
            if python is not None:
                yield from self._rival(name, python)

    def missing(self) -> dict[str, str]:
        """Rivals that have no environment, and how one is made."""
        if self.rivals is None:
            return {}
        return {
            name: f"no environment; python -m benchmarks.rivals.{name.replace('-', '_')} makes it"
            for name in self.only or RIVALS
            if self._python(name) is None
        }

    def _python(self, name: str) -> Path | None:
        return None if self.rivals is None else python_of(self.rivals, name)

    def _ours(self) -> Iterator[Launch]:
        threads = ["--threads", str(self.threads)]
        command = [sys.executable, "-m", _MODULE + "headrace_system", str(self.model), *threads]
        environment = {"PYTHONPATH": str(SOURCE)}
        if not self.kv_dtypes:
            yield Launch(OURS, command, environment)
        for kv_dtype in self.kv_dtypes:
            setting = ["--kv-dtype", kv_dtype]
            yield Launch(f"{OURS} kv={kv_dtype}", [*command, *setting], environment)

    def _rival(self, name: str, python: Path) -> Iterator[Launch]:
        module, model, settings = _SETTINGS[name]
        path = str(self.model)
        if model == "folder":
            assert self.rivals is not None
            path = str(make_folder(self.model, self.rivals / "weights" / self.model.stem))
        environment = {"PYTHONPATH": ""} | preloaded(python)
        for setting, flags in settings.items():
            command = [str(python), "-m", _MODULE + module, path, "--threads", str(self.threads)]
            yield Launch(f"{name} {setting}", [*command, *flags], environment)


def vllm_dtypes() -> tuple[str, ...]:
    """bfloat16 is several times slower where the processor does not multiply it (prompts of 512 on
    AVX2: 88 tokens/s, in float32 577), and to start takes minutes: it is left out there."""
    return ("float32", "bfloat16") if multiplies_bf16() else ("float32",)


# name -> (module, what it reads, setting -> flags)
_SETTINGS: dict[str, tuple[str, str, dict[str, list[str]]]] = {
    llama_cpp.NAME: (
        "llama_cpp_system",
        "file",
        {
            f"flash={'on' if flash else 'off'} ubatch={ubatch}": [
                "--ubatch",
                str(ubatch),
                *(["--flash"] if flash else []),
            ]
            for flash in (False, True)
            for ubatch in (512, 2048)
        },
    ),
    vllm_cpu.NAME: (
        "vllm_cpu_system",
        "folder",
        {dtype: ["--dtype", dtype] for dtype in vllm_dtypes()},
    ),
    openvino.NAME: (
        "openvino_system",
        "file",
        {engine: ["--engine", engine] for engine in ("paged", "sdpa")},
    ),
}


def preloaded(python: Path) -> dict[str, str]:
    """The OpenMP library that vLLM's manual says to preload, where the environment has it."""
    library = python.parent.parent / "lib" / "libiomp5.so"
    return {"LD_PRELOAD": str(library)} if library.exists() else {}
