"""What may be served, and where."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from headrace.errors import ResourceError
from headrace.gateway.config import ModelSpec, ServeConfig, is_loopback

CONFIG = ServeConfig(models=(ModelSpec("m", Path("m")),))


def test_the_default_is_safe() -> None:
    CONFIG.check()
    assert is_loopback(CONFIG.host)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "::1", "[::1]", "localhost"])
def test_loopback_needs_no_key(host: str) -> None:
    dataclasses.replace(CONFIG, host=host).check()


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "192.168.1.5", "example.org", "127.0.0.1.nip.io"]
)
def test_other_addresses_need_one(host: str) -> None:
    config = dataclasses.replace(CONFIG, host=host)
    with pytest.raises(ResourceError, match="HEADRACE_API_KEY"):
        config.check()
    dataclasses.replace(config, api_key="k").check()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"models": ()}, "No model"),
        ({"port": 70000}, "Port 70000"),
        ({"api_key": "  "}, "empty"),
        ({"models": (ModelSpec("m", Path("a")), ModelSpec("m", Path("b")))}, "'m'"),
    ],
)
def test_what_cannot_be_served(changes: dict[str, object], says: str) -> None:
    with pytest.raises(ResourceError, match=says):
        dataclasses.replace(CONFIG, **changes).check()  # type: ignore[arg-type]  # any field


def test_the_key_is_not_shown() -> None:
    assert "secret" not in repr(dataclasses.replace(CONFIG, api_key="secret"))


def test_served_names_stand_for_the_first_model() -> None:
    twins = (ModelSpec("m", Path("a")), ModelSpec("m", Path("b")))
    config = dataclasses.replace(CONFIG, models=twins, served_model_name=("x", "y"))
    config.check()
    assert config.names() == [("x", "y"), ("m",)]
    with pytest.raises(ResourceError, match="'m'"):
        dataclasses.replace(config, served_model_name=("x", "m")).check()
