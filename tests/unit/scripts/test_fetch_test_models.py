"""The test models that scripts ask for are models that there are."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.support.real_models import MODELS

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"


def test_scripts_name_models_that_are_known() -> None:
    calls = {
        path.name: re.findall(r"fetch_test_models\.py *(.*)", path.read_text(encoding="utf-8"))
        for path in (SCRIPTS / "test", SCRIPTS / "test-models")
    }
    assert [len(found) for found in calls.values()] == [1, 1]
    names = " ".join(name for found in calls.values() for name in found).split()
    assert set(names) <= MODELS.keys()


def test_an_unknown_name_is_wrong_usage() -> None:
    result = subprocess.run(
        [sys.executable, SCRIPTS / "fetch_test_models.py", "nonsense"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("unknown model 'nonsense'; known: smollm2:135m, ")
