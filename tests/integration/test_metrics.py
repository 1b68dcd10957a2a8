"""/metrics of a running server: exact after a known set of requests, zero again after aborts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.http import complete, read_until, request, send_raw
from tests.support.serving import Server, eventually, serve_fake


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Server]:
    with serve_fake(tmp_path / "log") as running:
        yield running


def samples(server: Server) -> dict[str, float]:
    """Sample name, with the finish reason or status if it has one, to value."""
    text = request(server, "GET", "/metrics").body.decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            extra = sample.labels.get("finished_reason") or sample.labels.get("status")
            if "le" not in sample.labels:
                found[sample.name + (f"/{extra}" if extra else "")] = sample.value
    return found


def test_counts_are_exact(fresh: Server) -> None:
    for i in range(10):
        assert complete(fresh, "abcd", seed=i, max_tokens=5, stream=i % 2 == 0).status == 200
    assert complete(fresh, "ab", n=3, max_tokens=99).status == 200
    assert complete(fresh, "!fail").status == 500
    assert complete(fresh, "x", temperature=-1).status == 400
    assert request(fresh, "GET", "/livez").status == 200
    eventually(lambda: samples(fresh)["vllm:num_requests_running"] == 0)
    found = samples(fresh)
    expected = {
        "vllm:prompt_tokens_total": 10 * 4 + 2,
        "vllm:generation_tokens_total": 10 * 5 + 3 * 25,
        "vllm:request_success_total/length": 10,
        "vllm:request_success_total/stop": 3,
        "vllm:request_success_total/error": 1,
        "vllm:request_success_total/abort": 0,
        "vllm:e2e_request_latency_seconds_count": 11,
        "vllm:time_to_first_token_seconds_count": 11,
        "vllm:inter_token_latency_seconds_count": 10 * 4 + 3 * 24,
        "vllm:request_prompt_tokens_sum": 42,
        "vllm:request_generation_tokens_sum": 125,
        "vllm:request_params_n_sum": 10 + 3 + 1,
        "vllm:num_requests_waiting": 0,
        "vllm:kv_cache_usage_perc": 0,
        "headrace:open_requests": 0,
        "headrace:open_prompt_tokens": 0,
        "headrace:model_up": 1,
        "headrace:http_responses_total/400": 1,
        "headrace:http_responses_total/500": 1,
    }
    assert {name: found[name] for name in expected} == expected


def test_gauges_are_zero_after_aborts(fresh: Server) -> None:
    fields = {"model": "fake", "prompt": "!slow", "max_tokens": 3000, "ignore_eos": True}
    body = json.dumps({**fields, "stream": True}).encode()
    connections = [fresh.connect() for _ in range(5)]
    for connection in connections:
        send_raw(connection, "/v1/completions", body)
        read_until(connection, b"data: ")
    found = samples(fresh)
    assert found["headrace:open_requests"] == 5
    assert found["vllm:num_requests_running"] == 5
    assert found["vllm:kv_cache_usage_perc"] > 0
    for connection in connections:
        connection.close()
    eventually(lambda: samples(fresh)["headrace:open_requests"] == 0)
    eventually(lambda: samples(fresh)["vllm:num_requests_running"] == 0)
    found = samples(fresh)
    assert found["vllm:kv_cache_usage_perc"] == 0
    assert found["vllm:request_success_total/abort"] == 5
    assert found["headrace:http_responses_total/200"] >= 5


def test_labels_come_only_from_the_configuration(fresh: Server) -> None:
    before = set(samples(fresh))
    for i in range(5):
        request(fresh, "POST", f"/path-{i}", {"model": f"m{i}"}, {"user-agent": f"agent-{i}"})
        complete(fresh, f"p{i}", model=f"m{i}", user=f"u{i}")
    assert {name for name in set(samples(fresh)) - before if "http_responses" not in name} == set()
