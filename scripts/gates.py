"""The house rules that no linter knows: sizes, import edges, forbidden calls, compile flags, locks.

Every gate is a function from the root of a tree to the violations it finds there, one line each.
`python scripts/gates.py` runs all; names as arguments choose some.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

MAX_FILE_LINES = {"tests": 800, "native": 600}
DEFAULT_MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
MAX_WIDTH = 100
CODE_SUFFIXES = {".py", ".pyi", ".cpp", ".h", ".js", ".css", ".html", ".sh", ".cmake"}
SCRIPT_FOLDERS = {"scripts", ".ci"}

# A package may import itself and those after it. docs/architecture.md says why.
LAYERS = (
    "cli", "bench", "api", "gateway", "fleet", "sim", "worker", "program", "engine", "speculate",
    "kv", "text", "backends", "weights", "models", "transport", "observe",
)  # fmt: skip
# What everything may speak of.
FREE_MODULES = {"headrace.errors", "headrace.config", "headrace.urls", "headrace._native"}

# Importing one of these costs start-up time and memory that the serving path may not spend.
HEAVY_MODULES = {"numpy", "torch", "transformers", "gguf", "pandas", "scipy"}
HEAVY_ALLOWED = ("backends/reference", "backends/cuda")
UNSAFE_MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
UNSAFE_CALLS = {"eval", "exec", "compile", "__import__", "torch.load", "yaml.load"}

REQUIRED_FLAGS = ("-ffp-contract=off", "-fno-fast-math", "-O3")
FORBIDDEN_FLAG = re.compile(
    r"-(Ofast|ffast-math|funsafe-math-optimizations|fassociative-math|freciprocal-math"
    r"|ffp-contract=(?!off)\w+|march=.*|mtune=.*|flto.*)$"
)
ISA_FLAG = re.compile(r"-m(avx|fma|f16c|bmi|sse4|amx)\w*$|-march=armv8\.2-a\+dotprod$")
# Files whose names end so are compiled for an instruction set of their own.
ISA_SUFFIXES = ("_avx2", "_avx512", "_neon")
# Of this machine, and of aarch64 where scripts/emulate has made it.
BUILD_FOLDERS = ("build/dev", "build/aarch64")

TYPE_OR_NAMESPACE = re.compile(
    r"(template\s*<.*>\s*)?(namespace|extern|struct|class|enum|union)\b[^()]*\{"
)

# A silenced check and its reason may stand beyond the width, as ruff has it.
PRAGMA = re.compile(r"\s+# (type: ignore|noqa).*$")

# A path of somebody's machine, or a package registry: neither belongs into a file of the product.
LEAK = re.compile(
    r"(?:^|[^A-Za-z0-9_.])/(?:work|farm|root|home/\w+)/|://[^/ ]*(?:pypi|npmjs|pythonhosted|debian)"
)


def tracked_files(root: Path) -> list[Path]:
    """Files git tracks or would track; all files of a folder that is no checkout."""
    if not (root / ".git").exists():
        return sorted(path for path in root.rglob("*") if path.is_file())
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others"]
    listed = subprocess.run([*command, "--exclude-standard"], capture_output=True, check=True)
    names = sorted(set(listed.stdout.decode().split("\0")) - {""})
    return [root / name for name in names if (root / name).is_file()]


def python_files(root: Path) -> list[Path]:
    return [path for path in tracked_files(root) if path.suffix == ".py"]


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def where(root: Path, path: Path, line: int) -> str:
    return f"{path.relative_to(root)}:{line}"


def is_code(root: Path, path: Path) -> bool:
    relative = path.relative_to(root)
    is_script = relative.parts[0] in SCRIPT_FOLDERS and not path.suffix
    return path.suffix in CODE_SUFFIXES or is_script or path.name in {"Makefile", "CMakeLists.txt"}


def sizes(root: Path) -> Iterator[str]:
    """Files, functions and lines stay small enough to be read at once."""
    for path in tracked_files(root):
        if not is_code(root, path):
            continue
        lines = path.read_text(encoding="utf-8").splitlines()
        limit = MAX_FILE_LINES.get(path.relative_to(root).parts[0], DEFAULT_MAX_FILE_LINES)
        if len(lines) > limit:
            yield f"{where(root, path, limit)}: {len(lines)} lines, at most {limit}"
        for number, line in enumerate(lines, 1):
            width = len(PRAGMA.sub("", line))
            if width > MAX_WIDTH:
                yield f"{where(root, path, number)}: {width} columns, at most {MAX_WIDTH}"
        functions = cpp_functions(lines) if path.suffix in {".cpp", ".h"} else ()
        if path.suffix == ".py":
            functions = python_functions(parse(path))
        for name, start, length in functions:
            if length > MAX_FUNCTION_LINES:
                message = f"{name} has {length} lines, at most {MAX_FUNCTION_LINES}"
                yield f"{where(root, path, start)}: {message}"


def python_functions(tree: ast.Module) -> Iterator[tuple[str, int, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield node.name, node.lineno, node.end_lineno - node.lineno + 1


def cpp_functions(lines: list[str]) -> Iterator[tuple[str, int, int]]:
    """Functions at namespace scope: clang-format puts their last brace into the first column."""
    head = 0  # the line where the current declaration began
    opened: tuple[str, int] | None = None
    for number, line in enumerate(lines, 1):
        if opened is None and line[:1] not in {"", " ", "}", "#", "/"} and head == 0:
            head = number
        if opened is None and head and line.endswith("{"):
            text = " ".join(lines[head - 1 : number])
            if not TYPE_OR_NAMESPACE.match(text):
                opened = (text.split("(")[0].split()[-1].lstrip("*&"), head)
            head = 0
        elif line.endswith((";", "}")):
            head = 0
        if opened is not None and line == "}":
            yield opened[0], opened[1], number - opened[1] + 1
            opened = None


def imports(tree: ast.Module, package: str) -> Iterator[tuple[int, str]]:
    """Every imported module with its line; `from headrace import x` counts as `headrace.x`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, base]).rstrip(".")
            if base.count(".") < 1 and base.startswith("headrace"):
                for alias in node.names:
                    yield node.lineno, f"{base}.{alias.name}"
            else:
                yield node.lineno, base


def import_edges(root: Path) -> Iterator[str]:
    """Imports point down the list of layers, never up."""
    rank = {name: index for index, name in enumerate(LAYERS)}
    source = root / "src" / "headrace"
    for path in python_files(root):
        if source not in path.parents or path.parent == source:
            continue
        parts = path.relative_to(source).parts
        layer = parts[0]
        if layer not in rank:
            if layer != "ui":
                yield f"{where(root, path, 1)}: package {layer} has no place in LAYERS"
            continue
        package = ".".join(["headrace", *parts[:-1]])
        for line, module in imports(parse(path), package):
            target = module.split(".")
            if target[0] != "headrace" or len(target) == 1 or module in FREE_MODULES:
                continue
            if target[1] in rank and rank[target[1]] < rank[layer]:
                yield f"{where(root, path, line)}: {layer} may not import {module}, which is above"


def module_level(tree: ast.Module) -> Iterator[ast.stmt]:
    """Statements that run when the module is imported; bodies of `if TYPE_CHECKING` do not."""
    pending: list[ast.stmt] = list(tree.body)
    while pending:
        node = pending.pop()
        yield node
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            pending.extend(node.orelse)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            children = ast.iter_child_nodes(node)
            pending.extend(child for child in children if isinstance(child, ast.stmt))


def heavy_imports(root: Path) -> Iterator[str]:
    """The serving path imports no array library when it starts."""
    source = root / "src" / "headrace"
    for path in python_files(root):
        if source not in path.parents:
            continue
        if str(path.relative_to(source)).startswith(HEAVY_ALLOWED):
            continue
        for node in module_level(parse(path)):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            for name in names:
                if name.split(".")[0] in HEAVY_MODULES:
                    yield f"{where(root, path, node.lineno)}: {name} imported at module level"


def unsafe_calls(root: Path) -> Iterator[str]:
    """Nothing in the product can run bytes that came from outside."""
    source = root / "src"
    for path in python_files(root):
        if source not in path.parents:
            continue
        tree = parse(path)
        for line, module in imports(tree, "headrace"):
            if module.split(".")[0] in UNSAFE_MODULES:
                yield f"{where(root, path, line)}: {module} can run code of its input"
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in UNSAFE_CALLS:
                name = ast.unparse(node.func)
                yield f"{where(root, path, node.lineno)}: {name}() can run code of its input"


def compile_flags(root: Path) -> Iterator[str]:
    """The numeric contract's flags reach every translation unit, and no others."""
    databases = [root / folder / "compile_commands.json" for folder in BUILD_FOLDERS]
    if not databases[0].exists():
        yield "build/dev/compile_commands.json: missing, run `make build` first"
        return
    entries: list[dict[str, str]] = []
    for database in databases:
        if database.exists():
            entries += json.loads(database.read_text(encoding="utf-8"))
    for entry in entries:
        path = Path(entry["file"])
        flags = shlex.split(entry["command"])
        try:
            name = str(path.relative_to(root))
        except ValueError:
            name = path.name  # nanobind's own files
        for flag in REQUIRED_FLAGS:
            if flag not in flags:
                yield f"{name}: compiled without {flag}"
        for flag in flags:
            is_isa = ISA_FLAG.match(flag)
            is_own = is_isa and path.stem.endswith(ISA_SUFFIXES)
            if (is_isa or FORBIDDEN_FLAG.match(flag)) and not is_own:
                yield f"{name}: compiled with {flag}"


def isa_leaks(root: Path) -> Iterator[str]:
    """No object of a higher instruction set offers a weak symbol that the linker could keep.

    Such a copy (an inline function, a std:: template) would end the process on a smaller machine.
    """
    folders = [root / folder for folder in BUILD_FOLDERS]
    patterns = [f"*{suffix}.cpp.o" for suffix in ISA_SUFFIXES]
    for path in sorted(
        p for folder in folders for pattern in patterns for p in folder.rglob(pattern)
    ):
        if "headrace_simde.dir" in path.parts:
            continue  # for any processor, and in no product
        command = ["nm", "--defined-only", "--demangle", str(path)]
        listed = subprocess.run(command, capture_output=True, text=True, check=True)
        for line in listed.stdout.splitlines():
            _, kind, symbol = line.split(maxsplit=2)
            if kind in "WVu":
                yield f"{path.name}: weak symbol {symbol}; give it internal linkage"


def leaks(root: Path) -> Iterator[str]:
    """No path of a machine and no host of a registry in any file."""
    for path in tracked_files(root):
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            found = LEAK.search(line)
            if found:
                yield f"{where(root, path, number)}: {found[0].strip()} does not belong here"


def lock_digest(root: Path) -> str:
    """Identifies the dependency tables that the locks were made from."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    tables = [project["project"]["dependencies"], project.get("dependency-groups", {})]
    return hashlib.sha256(json.dumps(tables, sort_keys=True).encode()).hexdigest()[:16]


def locks(root: Path) -> Iterator[str]:
    """Locks are hashed, name no host, and were made from the present dependency tables."""
    expected = f"# pyproject {lock_digest(root)}"
    for name in ("runtime", "build", "dev"):
        path = root / "requirements" / f"{name}.txt"
        if not path.exists():
            yield f"requirements/{name}.txt: missing, run scripts/lock"
            continue
        text = path.read_text(encoding="utf-8")
        if text.split("\n", 1)[0] != expected:
            yield f"{where(root, path, 1)}: older than pyproject.toml, run scripts/lock"
        for number, line in enumerate(text.splitlines(), 1):
            if "://" in line or "index-url" in line:
                yield f"{where(root, path, number)}: a lock names no place to fetch from"
            if re.match(r"[a-z0-9].*==", line) and not line.endswith("\\"):
                yield f"{where(root, path, number)}: {line.split('==')[0]} has no hash"


GATES: dict[str, Callable[[Path], Iterator[str]]] = {
    "sizes": sizes,
    "import-edges": import_edges,
    "heavy-imports": heavy_imports,
    "unsafe-calls": unsafe_calls,
    "compile-flags": compile_flags,
    "isa-leaks": isa_leaks,
    "leaks": leaks,
    "locks": locks,
}


def main(arguments: list[str]) -> int:
    root = Path(__file__).resolve().parent.parent
    if arguments == ["lock-digest"]:
        print(f"# pyproject {lock_digest(root)}")
        return 0
    unknown = [name for name in arguments if name not in GATES]
    if unknown:
        print(f"unknown gate {unknown[0]}; there are: {', '.join(GATES)}", file=sys.stderr)
        return 2
    num_violations = 0
    for name in arguments or GATES:
        for violation in GATES[name](root):
            print(f"{violation} [{name}]")
            num_violations += 1
    print(f"gates: {num_violations or 'no'} violations", file=sys.stderr)
    return 1 if num_violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
