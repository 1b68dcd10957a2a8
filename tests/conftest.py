"""Fixtures that every test may use: the real models, found once."""

from __future__ import annotations

from pathlib import Path

import hypothesis
import pytest

from tests.support import real_models

# No test fails because the machine is busy.
hypothesis.settings.register_profile("suite", deadline=None)
hypothesis.settings.load_profile("suite")

_LARGE_MODEL_FIXTURES = {"gemma3_path", "qwen25_path"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of the larger models belong to `make test-models` by the fixtures that they ask for."""
    for item in items:
        if _LARGE_MODEL_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.models)


def _real_model(model: real_models.RealModel) -> Path:
    path = real_models.find(model)
    if path is None:
        pytest.skip(f"run `python scripts/fetch_test_models.py {model.name}` first")
    return path


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    return _real_model(real_models.SMOLLM2)


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    return _real_model(real_models.GEMMA3)


@pytest.fixture(scope="session")
def qwen25_path() -> Path:
    return _real_model(real_models.QWEN25)
