"""Builds and climbs the ladders of the kernel lab (native/lab).

python scripts/lab.py [NAME...]             checks and times the ladders of these names
python scripts/lab.py --update [NAME...]    and writes the results into docs/lab.md
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "lab"
PAGE = ROOT / "docs" / "lab.md"
TABLE = re.compile(r"<!-- lab: (?P<name>\w+) -->.*?<!-- /lab -->", re.DOTALL)


def build() -> None:
    # The environment's cmake and ninja stand beside its interpreter.
    tools = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    if not (BUILD / "build.ninja").exists():
        definitions = [f"-DPython_EXECUTABLE={sys.executable}", "-DHEADRACE_LAB=ON"]
        configure = ["cmake", "-S", str(ROOT), "-B", str(BUILD), "-G", "Ninja", *definitions]
        subprocess.run(configure, check=True, env=environment, stdout=subprocess.DEVNULL)
    make = ["cmake", "--build", str(BUILD), "--target", "headrace-lab"]
    subprocess.run(make, check=True, env=environment, stdout=subprocess.DEVNULL)


def with_tables(page: str, output: str) -> str:
    """`page` with every table that `output` has too replaced by it."""
    tables = {match["name"]: match[0] for match in TABLE.finditer(output)}
    return TABLE.sub(lambda match: tables.get(match["name"], match[0]), page)


def main(words: list[str]) -> int:
    build()
    program = str(BUILD / "headrace-lab")
    if words[:1] != ["--update"]:
        return subprocess.run([program, *words], check=False).returncode
    done = subprocess.run([program, "--markdown", *words[1:]], stdout=subprocess.PIPE, check=False)
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(with_tables(page, done.stdout.decode()), encoding="utf-8")
    return done.returncode


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
