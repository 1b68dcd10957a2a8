"""Prometheus metrics of the gateway: vLLM's names, which routers and dashboards know, and ours.

The only label values are configured model names, finish reasons, causes of evictions and HTTP
status classes: nothing a client sends can add a series.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"

_SECONDS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1,
    2.5,
    5,
    10,
    30,
    60,
    120,
    300,
)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
_SMALL = (1, 2, 4, 8, 16)
_REASONS = ("stop", "length", "abort", "error")
_LABELS = ("model_name",)
# Of forecasts: kv.lookahead.forecast.SCORED.
_QUANTILES = ("0.5", "0.9")


class Allocation(Protocol):
    """What the allocation of blocks came to (engine.base.AllocationStats)."""

    @property
    def num_recomputed(self) -> int: ...
    @property
    def num_extents(self) -> int: ...
    @property
    def num_tables(self) -> int: ...
    @property
    def num_kept_free(self) -> int: ...
    @property
    def num_forecast(self) -> int: ...
    @property
    def losses(self) -> Sequence[float]: ...
    @property
    def covered(self) -> Sequence[int]: ...


class Progress(Protocol):
    """The state of an engine after a step (worker.frames.Progress)."""

    @property
    def num_running(self) -> int: ...
    @property
    def num_waiting(self) -> int: ...
    @property
    def num_free_blocks(self) -> int: ...
    @property
    def num_blocks(self) -> int: ...
    @property
    def num_steps(self) -> int: ...
    @property
    def num_preemptions(self) -> int: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def output_tokens(self) -> int: ...
    @property
    def last_step_s(self) -> float: ...
    @property
    def lease_wait_s(self) -> float: ...
    @property
    def last_step_rows(self) -> int: ...
    @property
    def last_chunks(self) -> Sequence[int]: ...
    @property
    def num_passes(self) -> int: ...
    @property
    def step_time_error(self) -> float: ...
    @property
    def step_time_margin(self) -> float: ...
    @property
    def itl_target_s(self) -> float: ...
    @property
    def num_cached_blocks(self) -> int: ...
    @property
    def num_idle_blocks(self) -> int: ...
    @property
    def num_inserted_blocks(self) -> int: ...
    @property
    def num_evicted_blocks(self) -> Mapping[str, int]: ...
    @property
    def allocation(self) -> Allocation: ...


class Ready(Protocol):
    """Sizes of a loaded model (worker.frames.Ready)."""

    @property
    def num_blocks(self) -> int: ...
    @property
    def block_len(self) -> int: ...
    @property
    def kv_bytes(self) -> int: ...
    @property
    def weights_bytes(self) -> int: ...
    @property
    def load_s(self) -> float: ...
    @property
    def queue_order(self) -> str: ...


class Metrics:
    """All series of one gateway, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        gauge, counter = self._gauge, self._counter
        self.running = gauge("vllm:num_requests_running", "Sequences in the running batch.")
        self.waiting = gauge("vllm:num_requests_waiting", "Sequences waiting to be run.")
        self.kv_usage = gauge("vllm:kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.")
        self.prompt_tokens = counter("vllm:prompt_tokens", "Prompt tokens computed.")
        self.generation_tokens = counter("vllm:generation_tokens", "Tokens generated.")
        self.preemptions = counter("vllm:num_preemptions", "Preemptions.")
        self.cached_tokens = counter("vllm:prefix_cache_hits", "Prompt tokens found in the cache.")
        self.queried_tokens = counter("vllm:prefix_cache_queries", "Prompt tokens looked up.")
        self.success = Counter(
            "vllm:request_success",
            "Ended requests by reason.",
            (*_LABELS, "finished_reason"),
            registry=self.registry,
        )
        histogram = self._histogram
        self.ttft = histogram("vllm:time_to_first_token_seconds", "Admission to first token.")
        self.itl = histogram("vllm:inter_token_latency_seconds", "Between tokens of a choice.")
        self.e2e = histogram("vllm:e2e_request_latency_seconds", "Admission to the end.")
        self.queue = histogram("vllm:request_queue_time_seconds", "Waiting for the first step.")
        self.inference = histogram("vllm:request_inference_time_seconds", "Prefill and decode.")
        self.prefill = histogram("vllm:request_prefill_time_seconds", "Prefill.")
        self.decode = histogram("vllm:request_decode_time_seconds", "Decode.")
        self.request_prompt = histogram("vllm:request_prompt_tokens", "Prompt length.", _TOKENS)
        self.request_output = histogram("vllm:request_generation_tokens", "Output length.", _TOKENS)
        self.request_n = histogram("vllm:request_params_n", "Choices asked for.", _SMALL)
        self.request_max = histogram("vllm:request_params_max_tokens", "max_tokens.", _TOKENS)
        self.step_tokens = histogram("vllm:iteration_tokens_total", "Rows per step.", _TOKENS)
        self.step_time = histogram("headrace:step_time_seconds", "Duration of an engine step.")
        self.lease_wait = counter(
            "headrace:lease_wait_seconds", "Waited for steps of other workers to end."
        )
        self.open_requests = gauge("headrace:open_requests", "Requests admitted and not ended.")
        self.open_prompt_tokens = gauge("headrace:open_prompt_tokens", "Their prompt tokens.")
        self.kv_blocks = gauge("headrace:kv_blocks", "Blocks of the KV pool.")
        self.kv_free_blocks = gauge(
            "headrace:kv_free_blocks", "Blocks of the KV pool that no request needs."
        )
        self.kv_bytes = gauge("headrace:kv_bytes", "Bytes of the KV pool.")
        self.weights_bytes = gauge("headrace:weights_bytes", "Bytes of the model's weights.")
        self.load_time = gauge("headrace:load_time_seconds", "How long the worker took to load.")
        self.is_up = gauge("headrace:model_up", "1 while the model is servable.")
        self.worker_starts = counter("headrace:worker_starts", "Starts of the worker process.")
        self.poisoned = counter("headrace:requests_refused_as_poison", "Were in two dying workers.")
        self.rejected = counter("headrace:requests_rejected", "Requests answered 429.")
        self.cache_config = Gauge(
            "vllm:cache_config_info",
            "Sizes of the KV cache.",
            (*_LABELS, "block_size", "num_gpu_blocks", "cache_dtype"),
            registry=self.registry,
        )
        self._add_scheduling()
        self._add_prefix_cache()
        self._add_allocation()
        self.http = Counter(
            "headrace:http_responses", "Responses by status.", ("status",), registry=self.registry
        )

    def _add_scheduling(self) -> None:
        """Order of the queue, chunks, and how well a step's time is foreseen."""
        self.queue_order = Gauge(
            "headrace:queue_order_info",
            "Whose prompt goes first.",
            (*_LABELS, "order"),
            registry=self.registry,
        )
        self.passes = self._counter(
            "headrace:queue_passes", "Admissions in place of a request that did not fit."
        )
        self.chunk = self._histogram(
            "headrace:prefill_chunk_tokens", "Rows of a prompt in one step.", _TOKENS
        )
        self.step_error = self._gauge(
            "headrace:step_time_error_ratio", "How far predictions of a step's time are off lately."
        )
        self.step_margin = self._gauge(
            "headrace:step_time_margin_ratio",
            "Times of a prediction that few steps with decodes and prompts exceed.",
        )
        self.itl_target = self._gauge(
            "headrace:itl_target_seconds", "Bound of the last step with decodes and an objective."
        )

    def _add_prefix_cache(self) -> None:
        """What the prefix cache holds and gives up; its hits are counted by request."""
        self.cached_blocks = self._gauge(
            "headrace:prefix_cache_blocks", "Blocks in the prefix cache."
        )
        self.idle_blocks = self._gauge(
            "headrace:prefix_cache_idle_blocks", "Blocks that only the prefix cache has."
        )
        self.inserted_blocks = self._counter(
            "headrace:prefix_cache_inserted_blocks", "Blocks that entered the prefix cache."
        )
        self.evicted_blocks = Counter(
            "headrace:prefix_cache_evicted_blocks",
            "Blocks that left the prefix cache, by cause.",
            (*_LABELS, "cause"),
            registry=self.registry,
        )

    def _add_allocation(self) -> None:
        """Preempted work, runs of blocks, and how well lengths of outputs are foreseen."""
        self.recomputed = self._counter(
            "headrace:recomputed_tokens", "Rows that had been computed before a preemption."
        )
        self.extents = self._counter(
            "headrace:kv_extents", "Runs of blocks in the block tables of sequences that ended."
        )
        self.tables = self._counter("headrace:kv_tables", "Those block tables.")
        self.kept_free = self._gauge(
            "headrace:kv_kept_free_blocks", "Free while a request that fits is not admitted."
        )
        self.forecasts = self._counter(
            "headrace:forecasts", "Outputs whose length was foreseen and became known."
        )
        labels = (*_LABELS, "quantile")
        self.forecast_loss = Counter(
            "headrace:forecast_loss_tokens",
            "Pinball loss of a quantile that was foreseen, summed over outputs.",
            labels,
            registry=self.registry,
        )
        self.forecast_covered = Counter(
            "headrace:forecasts_covered",
            "Outputs no longer than a quantile that was foreseen.",
            labels,
            registry=self.registry,
        )

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, _LABELS, registry=self.registry)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, _LABELS, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...] = _SECONDS) -> Histogram:
        return Histogram(name, text, _LABELS, registry=self.registry, buckets=buckets)

    def count_response(self, status: int) -> None:
        """An HTTP response was sent; 499 stands for a client that did not wait for it."""
        self.http.labels(str(status)).inc()

    def render(self) -> bytes:
        """The exposition text."""
        return generate_latest(self.registry)


class _AllocationMetrics:
    """Those of one model about the allocation of blocks."""

    def __init__(self, metrics: Metrics, model_name: str) -> None:
        self._recomputed = metrics.recomputed.labels(model_name)
        self._extents = metrics.extents.labels(model_name)
        self._tables = metrics.tables.labels(model_name)
        self._kept_free = metrics.kept_free.labels(model_name)
        self._forecasts = metrics.forecasts.labels(model_name)
        self._losses = [metrics.forecast_loss.labels(model_name, q) for q in _QUANTILES]
        self._covered = [metrics.forecast_covered.labels(model_name, q) for q in _QUANTILES]

    def set(self, now: Allocation, last: Allocation | None) -> None:
        """Count what is new."""
        self._kept_free.set(now.num_kept_free)
        self._recomputed.inc(now.num_recomputed - (last.num_recomputed if last else 0))
        self._extents.inc(now.num_extents - (last.num_extents if last else 0))
        self._tables.inc(now.num_tables - (last.num_tables if last else 0))
        if last is None or now.num_forecast != last.num_forecast:
            self._forecasts.inc(now.num_forecast - (last.num_forecast if last else 0))
            for i, counter in enumerate(self._losses[: len(now.losses)]):
                counter.inc(now.losses[i] - (last.losses[i] if last and last.losses else 0.0))
            for i, counter in enumerate(self._covered[: len(now.covered)]):
                counter.inc(now.covered[i] - (last.covered[i] if last and last.covered else 0))


class ModelMetrics:
    """The series of one model, looked up once. Called for every step and delta: keep it thin."""

    def __init__(self, metrics: Metrics, model_name: str) -> None:
        self._name = model_name
        self._all = metrics
        self.ttft = metrics.ttft.labels(model_name)
        self.itl = metrics.itl.labels(model_name)
        self.e2e = metrics.e2e.labels(model_name)
        self._queue = metrics.queue.labels(model_name)
        self._inference = metrics.inference.labels(model_name)
        self._prefill = metrics.prefill.labels(model_name)
        self._decode = metrics.decode.labels(model_name)
        self._request_prompt = metrics.request_prompt.labels(model_name)
        self._request_output = metrics.request_output.labels(model_name)
        self._request_n = metrics.request_n.labels(model_name)
        self._request_max = metrics.request_max.labels(model_name)
        self._running = metrics.running.labels(model_name)
        self._waiting = metrics.waiting.labels(model_name)
        self._kv_usage = metrics.kv_usage.labels(model_name)
        self._kv_free = metrics.kv_free_blocks.labels(model_name)
        self._prompt_tokens = metrics.prompt_tokens.labels(model_name)
        self._generation_tokens = metrics.generation_tokens.labels(model_name)
        self._preemptions = metrics.preemptions.labels(model_name)
        self._cached = metrics.cached_tokens.labels(model_name)
        self._queried = metrics.queried_tokens.labels(model_name)
        self._step_tokens = metrics.step_tokens.labels(model_name)
        self._step_time = metrics.step_time.labels(model_name)
        self._lease_wait = metrics.lease_wait.labels(model_name)
        self._chunk = metrics.chunk.labels(model_name)
        self._step_error = metrics.step_error.labels(model_name)
        self._step_margin = metrics.step_margin.labels(model_name)
        self._itl_target = metrics.itl_target.labels(model_name)
        self._allocation = _AllocationMetrics(metrics, model_name)
        self._passes = metrics.passes.labels(model_name)
        self._cached_blocks = metrics.cached_blocks.labels(model_name)
        self._idle_blocks = metrics.idle_blocks.labels(model_name)
        self._inserted_blocks = metrics.inserted_blocks.labels(model_name)
        self._open_requests = metrics.open_requests.labels(model_name)
        self._open_tokens = metrics.open_prompt_tokens.labels(model_name)
        self._is_up = metrics.is_up.labels(model_name)
        self._starts = metrics.worker_starts.labels(model_name)
        self.poisoned = metrics.poisoned.labels(model_name)
        self.rejected = metrics.rejected.labels(model_name)
        self._success = {r: metrics.success.labels(model_name, r) for r in _REASONS}
        self._last: Progress | None = None
        self._cache_labels: tuple[str, ...] = ()

    def on_ready(self, ready: Ready) -> None:
        """A worker serves; its counters start at zero."""
        everything, name = self._all, self._name
        self._last = None
        self._starts.inc()
        self._is_up.set(1)
        self._kv_free.set(ready.num_blocks)
        everything.kv_blocks.labels(name).set(ready.num_blocks)
        everything.kv_bytes.labels(name).set(ready.kv_bytes)
        everything.weights_bytes.labels(name).set(ready.weights_bytes)
        everything.load_time.labels(name).set(ready.load_s)
        everything.queue_order.labels(name, ready.queue_order).set(1)
        if self._cache_labels:
            everything.cache_config.remove(*self._cache_labels)
        self._cache_labels = (name, str(ready.block_len), str(ready.num_blocks), "fp16")
        everything.cache_config.labels(*self._cache_labels).set(1)

    def on_down(self) -> None:
        """No worker: nothing runs."""
        self._last = None
        self._is_up.set(0)
        self._running.set(0)
        self._waiting.set(0)
        self._kv_usage.set(0)
        self._cached_blocks.set(0)
        self._idle_blocks.set(0)

    def on_progress(self, now: Progress) -> None:
        """Gauges as they are, counters by their difference to the last Progress of this worker."""
        last = self._last
        self._last = now
        self._running.set(now.num_running)
        self._waiting.set(now.num_waiting)
        self._kv_free.set(now.num_free_blocks)
        used = now.num_blocks - now.num_free_blocks
        self._kv_usage.set(used / now.num_blocks if now.num_blocks else 0.0)
        self._prompt_tokens.inc(now.prompt_tokens - (last.prompt_tokens if last else 0))
        self._generation_tokens.inc(now.output_tokens - (last.output_tokens if last else 0))
        self._lease_wait.inc(now.lease_wait_s - (last.lease_wait_s if last else 0.0))
        self._preemptions.inc(now.num_preemptions - (last.num_preemptions if last else 0))
        self._note_cache(now, last)
        if now.num_steps != (last.num_steps if last else 0):
            self._step_time.observe(now.last_step_s)
            self._step_tokens.observe(now.last_step_rows)
            for rows in now.last_chunks:
                self._chunk.observe(rows)
            self._step_error.set(now.step_time_error)
            self._step_margin.set(now.step_time_margin)
            self._itl_target.set(now.itl_target_s)
            self._passes.inc(now.num_passes - (last.num_passes if last else 0))
            self._allocation.set(now.allocation, last.allocation if last else None)

    def _note_cache(self, now: Progress, last: Progress | None) -> None:
        self._cached_blocks.set(now.num_cached_blocks)
        self._idle_blocks.set(now.num_idle_blocks)
        before = last.num_inserted_blocks if last else 0
        self._inserted_blocks.inc(now.num_inserted_blocks - before)
        evicted = last.num_evicted_blocks if last else {}
        for cause, num_blocks in now.num_evicted_blocks.items():
            more = num_blocks - evicted.get(cause, 0)
            if more or last is None:
                self._all.evicted_blocks.labels(self._name, cause).inc(more)

    def on_admission(self, num_choices: int, max_tokens: int | None) -> None:
        """A request was let in."""
        self._request_n.observe(num_choices)
        if max_tokens is not None:
            self._request_max.observe(max_tokens)

    def set_open(self, num_requests: int, num_tokens: int) -> None:
        """Requests admitted and not ended, and their prompt tokens."""
        self._open_requests.set(num_requests)
        self._open_tokens.set(num_tokens)

    def on_lengths(self, num_prompt: int, num_output: int, num_cached: int) -> None:
        """Tokens of a request that ended well. Its choices were counted by `count_end`."""
        self._request_prompt.observe(num_prompt)
        self._request_output.observe(num_output)
        self._queried.inc(num_prompt)
        self._cached.inc(num_cached)

    def on_times(self, e2e_s: float, queue_s: float, prefill_s: float, decode_s: float) -> None:
        """Times of a request that ended well."""
        self.e2e.observe(e2e_s)
        self._queue.observe(queue_s)
        self._prefill.observe(prefill_s)
        self._decode.observe(decode_s)
        self._inference.observe(prefill_s + decode_s)

    def count_end(self, reason: str) -> None:
        """`reason`: stop, length, abort or error."""
        self._success[reason].inc()
