"""The options that only `headrace serve` has."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from headrace.cli.options import parse_size


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
    typer.Argument(
        metavar="MODEL",
        help="Catalog names, .gguf files, Hugging Face folders or Hub ids. "
        "Default: the demonstration model smollm2:135m.",
    ),
]
Host = Annotated[
    str,
    typer.Option(
        "--host", metavar="ADDRESS", help="Address to bind; any but a loopback one needs a key."
    ),
]
Port = Annotated[
    int,
    typer.Option("--port", min=0, max=65535, metavar="PORT", help="TCP port; 0 takes a free one."),
]
ApiKey = Annotated[
    str | None,
    typer.Option(
        "--api-key",
        envvar="HEADRACE_API_KEY",
        metavar="KEY",
        help="Key that clients must send; the variable keeps it out of the process list.",
    ),
]
ServedModelName = Annotated[
    list[str] | None,
    typer.Option(
        "--served-model-name",
        metavar="NAME",
        help="Id of the first model in the API; repeat it for aliases.",
    ),
]
MemoryLimit = Annotated[
    int | None,
    typer.Option(
        "--memory-limit",
        parser=parse_size,
        metavar="SIZE",
        help="Memory for weights, cache and process together. Default: what is free.",
    ),
]
PackingOption = Annotated[
    Packing | None,
    typer.Option(
        "--packing", help="How the weights of a safetensors folder are kept. Default: 16 bits."
    ),
]
CorsOrigin = Annotated[
    list[str] | None,
    typer.Option(
        "--cors-origin", metavar="ORIGIN", help="Web origin that may call; may be repeated."
    ),
]
LogLevelOption = Annotated[LogLevel, typer.Option("--log-level", help="Least severity to log.")]
LogFormatOption = Annotated[
    LogFormat, typer.Option("--log-format", help="Log lines for people or for programs.")
]
ShutdownTimeout = Annotated[
    float,
    typer.Option(
        "--shutdown-timeout",
        min=0.0,
        metavar="SECONDS",
        help="How long running requests may go on after Ctrl-C or SIGTERM.",
    ),
]
StrictFields = Annotated[
    bool, typer.Option("--strict-fields", help="Refuse request fields that are not known.")
]
NoUi = Annotated[bool, typer.Option("--no-ui", help="Do not serve the chat page.")]
