"""What `headrace serve` was asked for: models, address, limits. Plain values, checked once."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path

from headrace.engine.base import SERVING, Scheduling
from headrace.errors import ResourceError
from headrace.kv.radix.base import DEFAULT_PRIORITY

DEFAULT_PORT = 8000


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model to serve: `name` is its id in the API (never a path), `path` the file or folder.

    `is_default` marks the small demonstration model that is served when none was named.
    """

    name: str
    path: Path
    is_default: bool = False


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How a worker is watched and restarted. Times in seconds.

    A worker without news for `stall_s` is killed. The n-th restart in a row waits
    `backoff_s * 2^(n-1)`, at most `backoff_max_s`; after `max_failures` in a row the circuit is
    open and one trial is made every `open_s`. A worker that lived for `healthy_s` starts the count
    anew.
    """

    stall_s: float = 60.0
    load_s: float = 900.0
    backoff_s: float = 0.25
    backoff_max_s: float = 15.0
    max_failures: int = 5
    open_s: float = 60.0
    healthy_s: float = 60.0


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Bounds on what one connection may ask of the gateway. Bytes and seconds."""

    body_bytes: int = 10 << 20
    inflight_body_bytes: int = 32 << 20
    header_bytes: int = 32 << 10
    num_headers: int = 100
    header_s: float = 15.0
    body_idle_s: float = 15.0
    body_s: float = 120.0
    # What is left of a refused request is read for so long, that its sender gets to the answer.
    linger_bytes: int = 64 << 20
    linger_idle_s: float = 1.0
    linger_s: float = 10.0
    # A reader that takes nothing for this long is cut, and so is one that far behind in bytes.
    reader_stall_s: float = 60.0
    pending_bytes: int = 8 << 20
    keep_alive_s: float = 75.0
    # Silence on a stream after which a comment line keeps the connection alive.
    comment_s: float = 5.0
    # How long headers may be held back so that an early failure keeps its HTTP status.
    first_event_s: float = 5.0


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """Everything `serve` needs. Sizes in bytes, times in seconds.

    `served_model_name`: ids for the first model instead of its own name, the first is canonical.
    `max_cache_priority`: the highest that a request may ask for in `cache.priority`.
    `kv_cache_memory` is for each model; None: a quarter of the free memory, shared by all of them,
    at most 2 GiB each.
    `app`: import string of the function that makes the ASGI application of a gateway, so that the
    gateway names no dialect.
    """

    models: tuple[ModelSpec, ...]
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    api_key: str | None = field(default=None, repr=False)
    served_model_name: tuple[str, ...] = ()
    max_model_len: int | None = None
    memory_limit: int | None = None
    kv_cache_memory: int | None = None
    max_num_seqs: int = 64
    max_waiting: int = 512
    max_waiting_tokens: int = 1 << 20
    threads: int | None = None
    packing: str | None = None
    kv_dtype: str = "fp16"
    activations: str = "quantized"
    scheduling: Scheduling = SERVING
    prefix_cache: bool = True
    max_cache_priority: int = DEFAULT_PRIORITY
    cors_origins: tuple[str, ...] = ()
    log_level: str = "info"
    log_format: str = "text"
    shutdown_timeout_s: float = 30.0
    strict_fields: bool = False
    ui: bool = True
    restart: RestartPolicy = RestartPolicy()
    limits: HttpLimits = HttpLimits()
    app: str = "headrace.api.app:build_app"

    def names(self) -> list[tuple[str, ...]]:
        """The ids of each model; the first of them is canonical, the others are aliases."""
        names = [(model.name,) for model in self.models]
        return [self.served_model_name or names[0], *names[1:]]

    def check(self) -> None:
        """Raise ResourceError for what cannot be served safely."""
        if not self.models:
            raise ResourceError("No model was named; try `headrace serve smollm2:135m`.")
        if not 0 <= self.port <= 65535:
            raise ResourceError(f"Port {self.port} does not exist; choose one from 1 to 65535.")
        names = [name for names in self.names() for name in set(names)]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise ResourceError(
                f"Two models would be called {sorted(twice)[0]!r}; give the first one another name "
                "with --served-model-name."
            )
        if self.api_key is None and not is_loopback(self.host):
            raise ResourceError(
                f"Serving on {self.host} without a key would let anyone on the network use it; "
                "set HEADRACE_API_KEY (or --api-key), or bind to 127.0.0.1."
            )
        if self.api_key is not None and not self.api_key.strip():
            raise ResourceError("The API key is empty; give one of some length or none at all.")


def is_loopback(host: str) -> bool:
    """True when only this machine can reach a socket bound to `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
