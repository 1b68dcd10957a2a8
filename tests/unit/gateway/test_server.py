"""Binding the port, and the lines of the banner."""

from __future__ import annotations

import dataclasses
import json
import shlex
import socket
from pathlib import Path

import pytest

from headrace.errors import ResourceError
from headrace.gateway import banner
from headrace.gateway.config import ModelSpec, ServeConfig
from headrace.gateway.listener import bind, url_of
from headrace.gateway.process import describe_exit
from headrace.gateway.service import ModelService
from headrace.gateway.text import TextPool
from headrace.observe.metrics import Metrics, ModelMetrics
from tests.support.fake_text import load_fake_text
from tests.support.scripted_worker import READY


def service_of(name: str, *, is_default: bool = False) -> ModelService:
    spec = ModelSpec(name, Path("/secret/path"), is_default)
    service = ModelService(spec, ServeConfig(models=(spec,)), ModelMetrics(Metrics(), name))
    service.ready = READY
    service.text = load_fake_text(spec)
    return service


def test_a_port_in_use_is_one_sentence() -> None:
    with bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(ResourceError, match=f"^Port {port} on 127.0.0.1 is in use; choose"):
            bind("127.0.0.1", port)


def test_unknown_hosts_and_foreign_addresses() -> None:
    with pytest.raises(ResourceError, match="is not known"):
        bind("no-such-host.invalid", 0)
    with pytest.raises(ResourceError, match=r"Cannot listen on 192\.0\.2\.1"):
        bind("192.0.2.1", 0)


def test_the_url_is_one_a_client_can_use() -> None:
    with bind("127.0.0.1", 0) as listener:
        assert url_of(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"
    with bind("0.0.0.0", 0) as listener:
        assert url_of(listener).startswith("http://127.0.0.1:")
    if socket.has_ipv6 and Path("/proc/net/if_inet6").exists():
        with bind("::1", 0) as listener:
            assert url_of(listener).startswith("http://[::1]:")


def test_the_curl_line_is_shell_and_json() -> None:
    line = banner.curl_line("http://h:1", service_of("it's"), with_key=False)
    words = shlex.split(line)
    assert words[:2] == ["curl", "http://h:1/v1/chat/completions"]
    body = json.loads(words[words.index("-d") + 1])
    assert body["model"] == "it's"
    assert body["messages"][0]["role"] == "user"


def test_a_base_model_is_shown_completions() -> None:
    line = banner.curl_line("http://h:1", service_of("base"), with_key=True)
    assert "/v1/completions" in line
    assert "$HEADRACE_API_KEY" in line
    assert "completions.create" in banner.python_snippet("http://h:1", service_of("base"), True)


@pytest.mark.parametrize("name", ["m", 'odd"name'])
def test_the_python_snippet_compiles(name: str) -> None:
    for with_key in (False, True):
        snippet = banner.python_snippet("http://h:1", service_of(name), with_key)
        compile(snippet, "snippet", "exec")


def test_the_banner_has_all_a_user_needs(capsys: pytest.CaptureFixture[str]) -> None:
    service = service_of("smollm2:135m", is_default=True)
    config = dataclasses.replace(ServeConfig(models=(service.spec,)), api_key="sk-secret")
    banner.print_banner(config, "http://127.0.0.1:8000", [service])
    shown = capsys.readouterr()
    assert shown.out == ""
    for part in ("http://127.0.0.1:8000", "curl ", "OpenAI(", "1,024 tokens", "demonstration"):
        assert part in shown.err
    assert "secret" not in shown.err


@pytest.mark.parametrize(
    ("status", "shown"), [(0, "exit status 0"), (3, "exit status 3"), (-9, "SIGKILL"), (-99, "99")]
)
def test_exits_have_names(status: int, shown: str) -> None:
    assert shown in describe_exit(status)


async def test_the_text_pool_runs_in_threads() -> None:
    import threading

    pool = TextPool()
    assert await pool.run(threading.get_ident) != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        await pool.run(lambda: 1 // 0)
    pool.close()
