"""Runs every kernel table over the same inputs, under emulation where it must, and compares.

`headrace_digest` (native/digest) prints one digest per entry of a table. It is built for this
machine and, with a cross compiler, for aarch64, whose tables qemu runs. Where this processor lacks
AVX-512, SIMDe's plain C stands in for those instructions (`--emulate-avx512` asks for it anyway).
What a machine lacks is told with the package that has it; nothing is installed.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CROSS_BUILD = ROOT / "build" / "aarch64"
CROSS_COMPILER = "aarch64-linux-gnu-g++"
EMULATORS = ("qemu-aarch64", "qemu-aarch64-static")
PACKAGES = "g++-aarch64-linux-gnu qemu-user libsimde-dev"
PROGRAM = "headrace_digest"


@dataclass(frozen=True)
class Run:
    """One table and the way to run it here; `lacks` says what is missing, if anything is."""

    table: str
    way: str
    program: str = PROGRAM
    emulator: str | None = None
    lacks: str | None = None


def _call(command: list[str], *, env: dict[str, str] | None = None, text: str | None = None) -> str:
    """What the command prints; RuntimeError with everything it said if it fails."""
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=env, input=text)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def _has_simde() -> bool:
    command = [os.environ.get("CXX", "g++"), "-fsyntax-only", "-x", "c++", "-"]
    try:
        _call(command, text="#include <simde/x86/avx512.h>\n")
    except RuntimeError:
        return False
    return True


def _has_avx512() -> bool:
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    flags = info.partition("\nflags")[2].partition("\n")[0].split()
    return {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"} <= set(flags)


def _avx512(emulate: bool) -> Run:
    if _has_avx512() and not emulate:
        return Run("avx512", "native")
    lacks = None if _has_simde() else "the headers of SIMDe (package libsimde-dev)"
    return Run("avx512", "by SIMDe", f"{PROGRAM}_simde", lacks=lacks)


def _aarch64(table: str) -> Run:
    emulator = next((found for name in EMULATORS if (found := shutil.which(name))), None)
    lacks = None
    if shutil.which(CROSS_COMPILER) is None:
        lacks = f"{CROSS_COMPILER} (package g++-aarch64-linux-gnu)"
    elif emulator is None:
        lacks = "qemu-aarch64 (package qemu-user)"
    return Run(table, "aarch64 by qemu", emulator=emulator or EMULATORS[0], lacks=lacks)


def baseline() -> Run:
    """What every other run must equal: the scalar table on this machine."""
    return Run("scalar", "native")


def runs(emulate_avx512: bool = False) -> list[Run]:
    """Every other table that there is a way to run on a machine like this one."""
    if platform.machine() == "aarch64":
        return [Run("neon", "native")]
    return [Run("avx2", "native"), _avx512(emulate_avx512), _aarch64("neon"), _aarch64("scalar")]


def build(run: Run) -> Path:
    """Builds the program of a run, incrementally: its path. A cross build compiles all objects."""
    bin_folder = Path(sys.executable).parent
    path = {**os.environ, "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}"}
    if run.emulator is None:
        _call([str(ROOT / "scripts" / "build"), "--target", run.program], env=path)
        return ROOT / "build" / "dev" / run.program
    if not (CROSS_BUILD / "build.ninja").exists():
        options = [
            "-DHEADRACE_CROSS=ON",
            "-DCMAKE_SYSTEM_NAME=Linux",
            "-DCMAKE_SYSTEM_PROCESSOR=aarch64",
            f"-DCMAKE_CXX_COMPILER={CROSS_COMPILER}",
            "-DCMAKE_EXE_LINKER_FLAGS=-static",
        ]
        folders = ["-S", str(ROOT), "-B", str(CROSS_BUILD)]
        _call(["cmake", "--fresh", *folders, "-G", "Ninja", *options], env=path)
    _call(["cmake", "--build", str(CROSS_BUILD), "--target", "all", run.program], env=path)
    return CROSS_BUILD / run.program


def digests(run: Run) -> dict[str, str]:
    """Digest by entry of the run's table."""
    emulator = [] if run.emulator is None else [run.emulator]
    printed = _call([*emulator, str(build(run)), run.table])
    lines = (line.rpartition(" ") for line in printed.splitlines())
    return {entry: digest for entry, _, digest in lines}


def differing(expected: dict[str, str], got: dict[str, str]) -> list[str]:
    """Entries whose digests differ, or that only one side has."""
    return [entry for entry in expected | got if expected.get(entry) != got.get(entry)]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/emulate", description=__doc__)
    parser.add_argument("--emulate-avx512", action="store_true", help="even where it is native")
    options = parser.parse_args(arguments)
    expected = digests(baseline())
    print(f"scalar (native): {len(expected)} entries", flush=True)
    failed = skipped = 0
    for run in runs(options.emulate_avx512):
        label = f"{run.table} ({run.way})"
        if run.lacks:
            skipped += 1
            print(f"{label}: not run, this machine lacks {run.lacks}")
            continue
        different = differing(expected, digests(run))
        failed += bool(different)
        print(f"{label}: {len(expected) - len(different)} equal", flush=True)
        for entry in different:
            print(f"  differs: {entry}")
    if skipped:
        print(f"For what was not run: apt-get install {PACKAGES}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
