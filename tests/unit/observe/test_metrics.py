"""Metrics: names that others know, counters that survive a worker's restart."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.engine.base import AllocationStats
from headrace.kv.lookahead.forecast import SCORED
from headrace.observe.metrics import Metrics, ModelMetrics
from tests.support.scripted_worker import READY, progress

LABELS = {"model_name": "m"}


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def model(metrics: Metrics) -> ModelMetrics:
    made = ModelMetrics(metrics, "m")
    made.on_ready(READY)
    return made


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, {**LABELS, **labels})


def test_gauges_follow_the_engine(metrics: Metrics, model: ModelMetrics) -> None:
    model.on_progress(progress(num_running=3, num_waiting=2, num_free_blocks=16))
    assert value(metrics, "vllm:num_requests_running") == 3
    assert value(metrics, "vllm:num_requests_waiting") == 2
    assert value(metrics, "vllm:kv_cache_usage_perc") == 0.75
    model.on_down()
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert value(metrics, f"vllm:{name}") == 0
    assert value(metrics, "headrace:model_up") == 0


def test_counters_go_on_over_a_restart(metrics: Metrics, model: ModelMetrics) -> None:
    model.on_progress(progress(1, prompt_tokens=10, output_tokens=1))
    model.on_progress(
        progress(2, prompt_tokens=10, output_tokens=5, num_preemptions=1, lease_wait_s=0.5)
    )
    model.on_down()
    model.on_ready(READY)
    model.on_progress(progress(1, prompt_tokens=7, output_tokens=2, lease_wait_s=0.25))
    assert value(metrics, "vllm:prompt_tokens_total") == 17
    assert value(metrics, "vllm:generation_tokens_total") == 7
    assert value(metrics, "vllm:num_preemptions_total") == 1
    assert value(metrics, "headrace:lease_wait_seconds_total") == 0.75
    assert value(metrics, "headrace:worker_starts_total") == 2


def test_the_prefix_cache_is_seen(metrics: Metrics, model: ModelMetrics) -> None:
    first = {"capacity": 2, "expired": 0}
    model.on_progress(
        progress(
            num_cached_blocks=9, num_idle_blocks=4, num_inserted_blocks=11, num_evicted_blocks=first
        )
    )
    model.on_progress(
        progress(num_inserted_blocks=12, num_evicted_blocks={"capacity": 5, "expired": 1})
    )
    evicted = "headrace:prefix_cache_evicted_blocks_total"
    assert value(metrics, evicted, cause="capacity") == 5
    assert value(metrics, evicted, cause="expired") == 1
    model.on_ready(READY)
    model.on_progress(
        progress(num_cached_blocks=3, num_inserted_blocks=3, num_evicted_blocks=first)
    )
    assert value(metrics, "headrace:prefix_cache_blocks") == 3
    assert value(metrics, "headrace:prefix_cache_idle_blocks") == 0
    assert value(metrics, "headrace:prefix_cache_inserted_blocks_total") == 15
    assert value(metrics, evicted, cause="capacity") == 7
    model.on_down()
    assert value(metrics, "headrace:prefix_cache_blocks") == 0


def test_heartbeats_are_no_steps(metrics: Metrics, model: ModelMetrics) -> None:
    for num_steps in (0, 1, 1, 1, 2):
        model.on_progress(progress(num_steps))
    assert value(metrics, "headrace:step_time_seconds_count") == 2
    assert value(metrics, "vllm:iteration_tokens_total_count") == 2


def test_how_steps_are_shared(metrics: Metrics, model: ModelMetrics) -> None:
    model.on_progress(progress(1, last_chunks=[16, 300], num_passes=2, step_time_error=0.25))
    model.on_progress(progress(1, last_chunks=[16, 300], num_passes=2, step_time_error=0.25))
    model.on_progress(progress(2, num_passes=3, itl_target_s=0.05, step_time_margin=1.25))
    assert value(metrics, "headrace:prefill_chunk_tokens_count") == 2
    assert value(metrics, "headrace:prefill_chunk_tokens_sum") == 316
    assert value(metrics, "headrace:queue_passes_total") == 3
    assert value(metrics, "headrace:step_time_error_ratio") == 0
    assert value(metrics, "headrace:step_time_margin_ratio") == 1.25
    assert value(metrics, "headrace:itl_target_seconds") == 0.05
    assert value(metrics, "headrace:queue_order_info", order="fcfs") == 1


def test_what_the_allocation_of_blocks_came_to(metrics: Metrics, model: ModelMetrics) -> None:
    first = AllocationStats(num_recomputed=10, num_extents=3, num_tables=2, num_kept_free=5)
    second = AllocationStats(
        num_recomputed=30,
        num_extents=9,
        num_tables=6,
        num_forecast=4,
        losses=[80.0, 25.5],
        covered=[1, 3],
    )
    model.on_progress(progress(1, allocation=first))
    assert value(metrics, "headrace:kv_kept_free_blocks") == 5
    for _ in range(2):
        model.on_progress(progress(2, allocation=second))
    model.on_ready(READY)
    model.on_progress(progress(1, allocation=second))
    assert value(metrics, "headrace:kv_kept_free_blocks") == 0
    assert value(metrics, "headrace:recomputed_tokens_total") == 60
    assert value(metrics, "headrace:kv_extents_total") == 18
    assert value(metrics, "headrace:kv_tables_total") == 12
    assert value(metrics, "headrace:forecasts_total") == 8
    for quantile, loss, covered in (("0.5", 160.0, 2), ("0.9", 51.0, 6)):
        assert value(metrics, "headrace:forecast_loss_tokens_total", quantile=quantile) == loss
        assert value(metrics, "headrace:forecasts_covered_total", quantile=quantile) == covered
    assert [str(q) for q in SCORED] == ["0.5", "0.9"], "the labels"


def test_a_request(metrics: Metrics, model: ModelMetrics) -> None:
    model.on_admission(2, 50)
    model.on_lengths(100, 20, 64)
    model.on_times(2.0, 0.25, 0.5, 1.0)
    model.count_end("stop")
    model.count_end("length")
    assert value(metrics, "vllm:request_prompt_tokens_sum") == 100
    assert value(metrics, "vllm:request_generation_tokens_sum") == 20
    assert value(metrics, "vllm:prefix_cache_hits_total") == 64
    assert value(metrics, "vllm:e2e_request_latency_seconds_sum") == 2
    assert value(metrics, "vllm:request_inference_time_seconds_sum") == 1.5
    assert value(metrics, "vllm:request_success_total", finished_reason="stop") == 1
    assert value(metrics, "vllm:request_params_n_sum") == 2


def test_two_models_keep_their_cache_sizes(metrics: Metrics, model: ModelMetrics) -> None:
    ModelMetrics(metrics, "other").on_ready(READY)
    text = metrics.render().decode()
    lines = [line for line in text.splitlines() if line.startswith("vllm:cache_config_info{")]
    assert len(lines) == 2


def test_the_text_parses_and_has_the_known_names(metrics: Metrics, model: ModelMetrics) -> None:
    model.on_progress(progress())
    families = {f.name for f in text_string_to_metric_families(metrics.render().decode())}
    for name in (
        "num_requests_running",
        "num_requests_waiting",
        "kv_cache_usage_perc",
        "cache_config_info",
        "prompt_tokens",
        "generation_tokens",
        "request_success",
        "num_preemptions",
        "prefix_cache_queries",
        "prefix_cache_hits",
        "time_to_first_token_seconds",
        "inter_token_latency_seconds",
        "e2e_request_latency_seconds",
        "request_queue_time_seconds",
        "request_inference_time_seconds",
        "request_prefill_time_seconds",
        "request_decode_time_seconds",
        "request_prompt_tokens",
        "request_generation_tokens",
        "request_params_n",
        "request_params_max_tokens",
        "iteration_tokens_total",
    ):
        assert f"vllm:{name}" in families, name
