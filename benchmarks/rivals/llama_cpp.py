"""Makes the environment of llama.cpp: llama-cpp-python, compiled for this very processor.

python -m benchmarks.rivals.llama_cpp [FOLDER]
"""

from __future__ import annotations

import os

from benchmarks.rivals.environment import environment_from_arguments

NAME = "llama-cpp"
PACKAGE = "llama-cpp-python"
VERSION = "0.3.36"


def main() -> None:
    """Build it from source; the published wheels are built for old processors."""
    environment = environment_from_arguments(NAME, __doc__)
    variables = {
        "CMAKE_ARGS": "-DGGML_NATIVE=ON -DCMAKE_BUILD_TYPE=Release",
        "CMAKE_BUILD_PARALLEL_LEVEL": str(os.cpu_count() or 1),
    }
    requirement = f"{PACKAGE}[server]=={VERSION}"
    environment.pip("install", "--no-binary", PACKAGE, requirement, "numpy", variables=variables)


if __name__ == "__main__":
    main()
