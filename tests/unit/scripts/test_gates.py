"""Every gate finds a violation where one is, and none in a clean tree."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts import gates

Tree = Callable[[dict[str, str]], Path]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """Writes files, named by their paths, into an empty folder."""

    def make(files: dict[str, str]) -> Path:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return tmp_path

    return make


def function(num_lines: int) -> str:
    return "def f():\n" + "    pass\n" * (num_lines - 1)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("src/a.py", "x = 1\n" * 501, "501 lines, at most 500"),
        ("tests/a.py", "x = 1\n" * 801, "801 lines, at most 800"),
        ("native/a.cpp", "int x;\n" * 601, "601 lines, at most 600"),
        ("scripts/a", "x\n" * 501, "501 lines, at most 500"),
        ("src/a.py", "x" * 101 + "\n", "101 columns, at most 100"),
        ("src/a.css", "x" * 101 + "\n", "101 columns, at most 100"),
        ("src/a.py", function(61), "f has 61 lines, at most 60"),
        (
            "native/a.cpp",
            "namespace n {\nint* f(\n    int x) {\n" + "  x++;\n" * 58 + "}\n}\n",
            "f has 61 lines, at most 60",
        ),
    ],
)
def test_sizes_finds(tree: Tree, name: str, text: str, message: str) -> None:
    assert [v.split(": ", 1)[1] for v in gates.sizes(tree({name: text}))] == [message]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("src/a.py", "x = 1\n" * 440 + function(60)),
        ("tests/a.py", "x = 1\n" * 800),
        ("native/a.cpp", "struct S {\n" + "  int x;\n" * 100 + "};\n"),
        ("native/d.h", "template <class F>\nstruct S {\n" + "  int x;\n" * 100 + "};\n"),
        ("native/b.cpp", "namespace n {\n" + "int f() {\n  return 1;\n}\n" * 140 + "}\n"),
        ("docs/a.md", "x" * 300 + "\n"),
        ("src/b.py", "x" * 90 + "  # type: ignore[attr-defined]  # why\n"),
        ("native/c.h", "#define A(x) \\\n  x\nint f(int a,\n      int b) {\n  return 1;\n}\n"),
    ],
)
def test_sizes_passes(tree: Tree, name: str, text: str) -> None:
    assert list(gates.sizes(tree({name: text}))) == []


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("weights/a.py", "from headrace.engine import llm\n", 1),
        ("weights/a.py", "import headrace.engine.llm\n", 1),
        ("weights/a.py", "def f():\n    from headrace import engine\n", 2),
        ("kv/a.py", "from ..engine.base import Event\n", 1),
        ("api/openai/a.py", "from ...cli import main\n", 1),
        ("observe/a.py", "import os\n\nimport headrace.transport.base\n", 3),
    ],
)
def test_import_edges_finds_an_upward_import(tree: Tree, name: str, text: str, line: int) -> None:
    found = list(gates.import_edges(tree({f"src/headrace/{name}": text})))
    assert len(found) == 1
    assert found[0].startswith(f"src/headrace/{name}:{line}: ")


def test_import_edges_passes_downward_sideways_and_free(tree: Tree) -> None:
    root = tree(
        {
            "src/headrace/engine/a.py": "from headrace.kv import pool\nimport headrace.engine.b\n",
            "src/headrace/weights/a.py": "from headrace.models.config import ModelConfig\n",
            "src/headrace/kv/a.py": "from . import b\nfrom headrace.errors import X\nimport os\n",
            "src/headrace/__init__.py": "from headrace.engine.llm import LLM\n",
            "src/headrace/cli/a.py": "import headrace\nfrom headrace.worker import life\n",
        }
    )
    assert list(gates.import_edges(root)) == []


def test_import_edges_knows_every_package(tree: Tree) -> None:
    found = list(gates.import_edges(tree({"src/headrace/newcomer/a.py": "x = 1\n"})))
    assert found == ["src/headrace/newcomer/a.py:1: package newcomer has no place in LAYERS"]


@pytest.mark.parametrize(
    "text",
    [
        "import numpy as np\n",
        "from torch import nn\n",
        "try:\n    import numpy\nfinally:\n    pass\n",
    ],
)
def test_heavy_imports_finds(tree: Tree, text: str) -> None:
    assert len(list(gates.heavy_imports(tree({"src/headrace/kv/a.py": text})))) == 1


def test_heavy_imports_passes(tree: Tree) -> None:
    lazy = "def f():\n    import numpy\n"
    typing_only = "if TYPE_CHECKING:\n    import numpy\n"
    root = tree(
        {
            "src/headrace/kv/a.py": lazy,
            "src/headrace/kv/b.py": typing_only,
            "src/headrace/backends/reference/a.py": "import numpy\n",
            "tests/a.py": "import numpy\n",
        }
    )
    assert list(gates.heavy_imports(root)) == []


@pytest.mark.parametrize(
    "text",
    ["import pickle\n", "from marshal import loads\n", "eval('1')\n", "def f():\n    exec('1')\n",
     "torch.load('x')\n"],
)  # fmt: skip
def test_unsafe_calls_finds(tree: Tree, text: str) -> None:
    assert len(list(gates.unsafe_calls(tree({"src/headrace/kv/a.py": text})))) == 1


def test_unsafe_calls_passes(tree: Tree) -> None:
    root = tree(
        {"src/headrace/kv/a.py": "model.eval()\nre.compile('x')\n", "tests/a.py": "eval('1')"}
    )
    assert list(gates.unsafe_calls(root)) == []


def flags_of(tree: Tree, name: str, flags: str) -> list[str]:
    root = tree({name: ""})
    command = f"c++ {flags} -c {root / name}"
    entry = {"file": str(root / name), "command": command, "directory": str(root)}
    tree({"build/dev/compile_commands.json": json.dumps([entry])})
    return list(gates.compile_flags(root))


GOOD = "-O3 -ffp-contract=off -fno-fast-math"
ARM = "-march=armv8.2-a+dotprod"


@pytest.mark.parametrize(
    ("name", "flags", "message"),
    [
        ("native/a.cpp", "-O3 -fno-fast-math", "compiled without -ffp-contract=off"),
        ("native/a.cpp", "-O3 -ffp-contract=off", "compiled without -fno-fast-math"),
        ("native/a.cpp", "-ffp-contract=off -fno-fast-math", "compiled without -O3"),
        ("native/a.cpp", f"{GOOD} -march=native", "compiled with -march=native"),
        ("native/a.cpp", f"{GOOD} -Ofast", "compiled with -Ofast"),
        ("native/a.cpp", f"{GOOD} -ffp-contract=fast", "compiled with -ffp-contract=fast"),
        ("native/a.cpp", f"{GOOD} -flto=auto", "compiled with -flto=auto"),
        ("native/a_scalar.cpp", f"{GOOD} -mavx2", "compiled with -mavx2"),
        ("native/a.cpp", f"{GOOD} {ARM}", f"compiled with {ARM}"),
        ("native/a_neon.cpp", f"{GOOD} -march=native", "compiled with -march=native"),
    ],
)
def test_compile_flags_finds(tree: Tree, name: str, flags: str, message: str) -> None:
    assert flags_of(tree, name, flags) == [f"{name}: {message}"]


def test_compile_flags_passes(tree: Tree) -> None:
    assert flags_of(tree, "native/a.cpp", GOOD) == []
    assert flags_of(tree, "native/a_avx2.cpp", f"{GOOD} -mavx2 -mfma") == []
    assert flags_of(tree, "native/a_neon.cpp", f"{GOOD} {ARM}") == []


def test_compile_flags_wants_a_build(tree: Tree) -> None:
    assert "missing" in next(gates.compile_flags(tree({"a": ""})))


@pytest.mark.parametrize(
    ("source", "num_found"),
    [
        ("inline int f(int x) { return x + 1; }\nint (*p)(int) = f;\n", 1),
        ("namespace {\nint f(int x) { return x + 1; }\n}\nint (*p)(int) = f;\n", 0),
    ],
)
@pytest.mark.parametrize(
    "name", ["build/dev/x/a_avx2", "build/dev/a_avx512", "build/aarch64/a_neon"]
)
def test_isa_leaks(tree: Tree, name: str, source: str, num_found: int) -> None:
    root = tree({"a.cpp": source, f"{name}.keep": ""})
    target = root / f"{name}.cpp.o"
    subprocess.run(["g++", "-O0", "-c", root / "a.cpp", "-o", target], check=True)
    assert len(list(gates.isa_leaks(root))) == num_found


@pytest.mark.parametrize(
    "text",
    ["see /" + "work/main\n", "cd /" + "home/someone/x\n", "from https://files." + "pypi.org/x\n"],
)
def test_leaks_finds(tree: Tree, text: str) -> None:
    assert len(list(gates.leaks(tree({"docs/a.md": text})))) == 1


def test_leaks_passes(tree: Tree) -> None:
    root = tree({"docs/a.md": "a/work/b and http://127.0.0.1:8000/ and framework/\n"})
    (root / "binary").write_bytes(b"\xff\xfe/" + b"work/")
    assert list(gates.leaks(root)) == []


PROJECT = '[project]\ndependencies = ["a>=1"]\n'
LOCK = "a==1 \\\n    --hash=sha256:00\n"


def test_locks(tree: Tree) -> None:
    root = tree({"pyproject.toml": PROJECT})
    digest = gates.lock_digest(root)
    locked = f"# pyproject {digest}\n{LOCK}"
    tree({f"requirements/{name}.txt": locked for name in ("runtime", "build", "dev")})
    assert list(gates.locks(root)) == []
    tree({"requirements/dev.txt": locked + "--index-url x\nb==1\n"})
    assert [v.split(": ")[1] for v in gates.locks(root)] == [
        "a lock names no place to fetch from",
        "b has no hash",
    ]
    tree({"requirements/dev.txt": locked, "pyproject.toml": PROJECT.replace(">=1", ">=2")})
    assert len([v for v in gates.locks(root) if "older than pyproject.toml" in v]) == 3
    (root / "requirements" / "dev.txt").unlink()
    assert any("missing" in v for v in gates.locks(root))


def test_only_files_of_the_project_are_seen(tree: Tree) -> None:
    root = tree({".gitignore": "out/\n", "out/a.py": "x" * 200, "src/a.py": "x = 1\n"})
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    assert [path.name for path in gates.tracked_files(root)] == [".gitignore", "a.py"]


def test_unknown_gate_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert gates.main(["nonsense"]) == 2
    assert "unknown gate nonsense" in capsys.readouterr().err
