"""Makes the environment of OpenVINO GenAI.

python -m benchmarks.rivals.openvino [FOLDER]
"""

from __future__ import annotations

from benchmarks.rivals.environment import environment_from_arguments

NAME = "openvino"
VERSION = "2026.4.1.0"


def main() -> None:
    """Install its published wheel, which chooses its kernels at run time."""
    environment_from_arguments(NAME, __doc__).pip("install", f"openvino-genai=={VERSION}", "numpy")


if __name__ == "__main__":
    main()
