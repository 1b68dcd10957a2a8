"""The parameters that only `headrace serve` has."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

from headrace.cli.params import Arg, Opt, choice, integer, number, size, utf8

if TYPE_CHECKING:
    from headrace.engine.base import Scheduling


class QueueOrder(StrEnum):
    """Whose prompt goes first: engine.order.QueueOrder, which the command line need not import."""

    FCFS = "fcfs"
    LPM = "lpm"
    DFS_WEIGHT = "dfs-weight"
    SHORTEST = "shortest"
    RESPONSE_RATIO = "response-ratio"


class KvAllocation(StrEnum):
    """Who gets KV blocks: kv.lookahead.base.Allocation, which the command line need not import."""

    ON_DEMAND = "on-demand"
    RESERVE_MAX = "reserve-max"
    LOOKAHEAD = "lookahead"


class LogLevel(StrEnum):
    """Least severity that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """Lines for people or for programs."""

    TEXT = "text"
    JSON = "json"


class Packing(StrEnum):
    """What the weights of safetensors files become in memory."""

    BF16 = "bf16"
    INT8 = "int8"
    INT4 = "int4"


Models = Annotated[
    list[str] | None,
    Arg(
        "MODEL",
        "Catalog names, .gguf files, Hugging Face folders or Hub ids. "
        "Default: the demonstration model smollm2:135m.",
    ),
]
Host = Annotated[
    str, Opt("--host", "Address to bind; any but a loopback one needs a key.", "ADDRESS")
]
Port = Annotated[int, Opt("--port", "TCP port; 0 takes a free one.", "PORT", integer(0, 65535))]
ApiKey = Annotated[
    str | None,
    Opt(
        "--api-key",
        "Key that clients must send; the variable keeps it out of the process list.",
        "KEY",
        utf8,
        envvar="HEADRACE_API_KEY",
    ),
]
ServedModelName = Annotated[
    list[str] | None,
    Opt(
        "--served-model-name",
        "Id of the first model in the API; repeat it for aliases.",
        "NAME",
        utf8,
    ),
]
MemoryLimit = Annotated[
    int | None,
    Opt(
        "--memory-limit",
        "Memory for weights, cache and process together. Default: what is free.",
        "SIZE",
        size,
    ),
]
PackingOption = Annotated[
    Packing | None,
    Opt(
        "--packing",
        "How the weights of a safetensors folder are kept. Default: 16 bits.",
        "bf16|int8|int4",
        choice(Packing),
    ),
]
QueueOrderOption = Annotated[
    QueueOrder,
    Opt(
        "--queue-order",
        "Whose prompt goes first: fcfs, lpm, dfs-weight, shortest or response-ratio. All of them "
        "bound how long anybody waits.",
        "ORDER",
        choice(QueueOrder),
    ),
]
MaxQueueWait = Annotated[
    float,
    Opt(
        "--max-queue-wait",
        "Who has waited so long goes first, whatever its priority.",
        "SECONDS",
        number(0),
    ),
]
MaxPartialPrefills = Annotated[
    int,
    Opt(
        "--max-partial-prefills",
        "Prompts that may be computed in pieces at the same time.",
        "N",
        integer(1, 4096),
    ),
]
ItlTarget = Annotated[
    float | None,
    Opt(
        "--itl-target-ms",
        "Time between two tokens that prompts beside them should keep within; 0: none, for the "
        "most tokens a second. Default: twice what decoding alone takes, at least 50.",
        "MS",
        number(0),
    ),
]
KvAllocationOption = Annotated[
    KvAllocation,
    Opt(
        "--kv-allocation",
        "Who gets KV blocks: lookahead admits by a forecast of output lengths, reserve-max by "
        "their limits, on-demand whoever fits now.",
        "POLICY",
        choice(KvAllocation),
    ),
]
CorsOrigin = Annotated[
    list[str] | None,
    Opt("--cors-origin", "Web origin that may call; may be repeated.", "ORIGIN", utf8),
]
LogLevelOption = Annotated[
    LogLevel,
    Opt("--log-level", "Least severity: debug, info, warning or error.", "LEVEL", choice(LogLevel)),
]
LogFormatOption = Annotated[
    LogFormat,
    Opt("--log-format", "Log lines for people or programs.", "text|json", choice(LogFormat)),
]
ShutdownTimeout = Annotated[
    float,
    Opt(
        "--shutdown-timeout",
        "How long running requests may go on after Ctrl-C or SIGTERM.",
        "SECONDS",
        number(0),
    ),
]
NoPrefixCache = Annotated[
    bool,
    Opt("--no-prefix-cache", "Do not keep what prompts have in common for later requests."),
]
MaxCachePriority = Annotated[
    int,
    Opt(
        "--max-cache-priority",
        "The highest cache.priority that a request may ask for; 50 is what others have, and what "
        "has more is kept before all of theirs.",
        "0..100",
        integer(0, 100),
    ),
]
StrictFields = Annotated[bool, Opt("--strict-fields", "Refuse request fields that are not known.")]
NoUi = Annotated[bool, Opt("--no-ui", "Do not serve the chat page.")]


def scheduling(
    order: QueueOrder,
    max_wait_s: float,
    max_partial: int,
    itl_target_ms: float | None,
    allocation: KvAllocation,
) -> Scheduling:
    """What the options about the queue and the steps come to."""
    from headrace.engine import base
    from headrace.engine import order as orders
    from headrace.kv.lookahead.base import Allocation

    return base.Scheduling(
        order=orders.QueueOrder(order.value),
        max_wait_s=max_wait_s,
        max_partial=max_partial,
        itl_target_s=None if itl_target_ms is None else itl_target_ms / 1e3,
        allocation=Allocation(allocation.value),
    )
