"""One server with the fake engine for all tests of a module, and clients for it."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from tests.support.serving import Server, serve_fake


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serve_fake(tmp_path_factory.mktemp("server") / "log") as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as made:
        yield made
