"""`headrace doctor`: what this machine offers, what lacks, and whether a model fits."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Annotated

from headrace.cli import console, options
from headrace.cli.console import human_bytes
from headrace.cli.params import Arg

# Less free disk than this is worth a warning: the smallest useful models are about as large.
LOW_DISK_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. `state`: ok, warn (works, worse than it could), bad (does not)."""

    name: str
    state: str
    value: str
    hint: str = ""


def doctor(
    model: Annotated[str | None, Arg("MODEL", "Also tell whether this model fits.")] = None,
    json: options.Json = False,
) -> None:
    """Report what this machine offers.

    Status 1 if something that headrace needs is missing.
    """
    checks: list[Callable[[], Finding]] = [
        _system, _python, _native_module, _cores, _memory, _compiler, _cache,
    ]  # fmt: skip
    findings = [check() for check in checks]
    if model is not None:
        findings.append(_model(model))
    if json:
        console.print_json([asdict(finding) for finding in findings])
    else:
        for finding in findings:
            hint = f"\n{' ' * 18}{finding.hint}" if finding.hint else ""
            print(f"{finding.state:<5} {finding.name:<11} {finding.value}{hint}")
    sys.exit(1 if any(finding.state == "bad" for finding in findings) else 0)


def _system() -> Finding:
    value = f"{platform.system()} {platform.release()} on {platform.machine()}"
    if platform.system() != "Linux" or platform.machine() not in {"x86_64", "aarch64"}:
        return Finding("system", "bad", value, "headrace runs on Linux on x86-64 or aarch64.")
    return Finding("system", "ok", value)


def _python() -> Finding:
    return Finding("python", "ok", f"{platform.python_version()} in {sys.prefix}")


def _native_module() -> Finding:
    try:
        from headrace import _native

        used, tables = _native.isa(), _native.isas()
    except ImportError as error:
        return Finding("native", "bad", str(error), "Build it with `make build`.")
    except ValueError as error:
        return Finding("native", "bad", str(error), "Unset HEADRACE_ISA or name another.")
    value = f"kernels {used} (this processor supports {', '.join(tables)})"
    if used != tables[0]:
        return Finding("native", "warn", value, "HEADRACE_ISA asks for the slower one.")
    if used == "scalar":
        return Finding("native", "warn", value, "Without AVX2 and FMA everything is much slower.")
    return Finding("native", "ok", value)


def _cores() -> Finding:
    from headrace.cli.machine import usable_cores

    try:
        usable = usable_cores()
    except ImportError:
        usable = len(os.sched_getaffinity(0))
    total = os.cpu_count() or usable
    value = f"{usable} of {total} usable"
    hint = "" if usable == total else "The affinity mask or the cgroup's quota allows no more."
    return Finding("cores", "ok", value, hint)


def _memory() -> Finding:
    try:
        from headrace import _native

        memory = _native.memory_info()
    except ImportError:
        return Finding("memory", "warn", "unknown without the native module")
    return Finding(
        "memory",
        "ok",
        f"{human_bytes(memory.available_bytes)} of {human_bytes(memory.total_bytes)} available",
    )


def _compiler() -> Finding:
    from headrace.cli.machine import compiler_version

    version = compiler_version()
    if version is None:
        return Finding("compiler", "warn", "none", "Only needed to build headrace itself.")
    return Finding("compiler", "ok", version)


def _cache() -> Finding:
    from headrace.weights.store import cache_dir

    folder = cache_dir()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    value = f"{folder}, {human_bytes(free)} free"
    if not existing.is_dir():
        return Finding("cache", "bad", value, f"{existing} is no folder; set HEADRACE_CACHE.")
    if not os.access(existing, os.W_OK):
        return Finding("cache", "bad", value, "Not writable; set HEADRACE_CACHE.")
    if free < LOW_DISK_BYTES:
        return Finding("cache", "warn", value, "Little room for models; set HEADRACE_CACHE.")
    return Finding("cache", "ok", value)


def _model(name: str) -> Finding:
    """Fit by file size; a Hub model that is not here has no known size."""
    from headrace.cli.machine import available_bytes, file_bytes
    from headrace.weights.fit import Fit, model_fit, needed_bytes

    size = file_bytes(name)
    if not size:
        return Finding("model", "warn", f"the size of {name} is not known before it is pulled")
    available = available_bytes()
    fit = model_fit(size, available)
    value = (
        f"{name} needs {human_bytes(needed_bytes(size))} with the least cache, "
        f"{human_bytes(available)} are available"
    )
    if fit is Fit.NO:
        return Finding("model", "bad", value, "Choose a smaller model or quantization.")
    return Finding("model", "ok" if fit is Fit.YES else "warn", value)
