"""`headrace bench serve`: load on any OpenAI-compatible server, and what it answers."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from headrace.bench.load.lengths import Lengths
from headrace.cli import console, options
from headrace.cli.params import Arg, Opt, choice, integer, number, utf8
from headrace.cli.serve_options import ApiKey

if TYPE_CHECKING:
    from headrace.bench.load.run import LoadPlan
    from headrace.bench.load.shapes import Shape
    from headrace.bench.load.stats import Objectives

DEFAULT_REQUESTS = 100
MS = number(0)

Url = Annotated[str, Arg("URL", "Where the server is, like http://127.0.0.1:8000.")]
Rate = Annotated[
    float | None,
    Opt(
        "--rate",
        "Open loop: requests per second, at random moments (Poisson), whatever is answered.",
        "R",
        number(0.0001, 1e6),
    ),
]
Concurrency = Annotated[
    int | None,
    Opt("--concurrency", "Closed loop: so many requests at once.", "N", integer(1, 100_000)),
]
Trace = Annotated[
    Path | None,
    Opt(
        "--trace",
        "Lengths of an Azure (CSV) or Mooncake (JSONL) trace, .gz or not; its times, too, without "
        "--rate and --concurrency.",
        "FILE",
        Path,
    ),
]
TimeScale = Annotated[
    float, Opt("--time-scale", "Play the trace so many times as fast.", "X", number(0.0001, 1e6))
]
Limit = Annotated[
    int | None, Opt("--limit", "Take the first N requests of the trace.", "N", integer(1))
]
Dataset = Annotated[
    Lengths,
    Opt("--dataset", "How made lengths are distributed.", "|".join(Lengths), choice(Lengths)),
]
PromptLen = Annotated[
    int, Opt("--prompt-len", "Mean tokens of made prompts.", "N", integer(1, 1_000_000))
]
OutputLen = Annotated[
    int, Opt("--output-len", "Mean tokens of made answers.", "N", integer(1, 1_000_000))
]
MaxPrompt = Annotated[
    int | None, Opt("--max-prompt", "Cut longer prompts to N tokens.", "N", integer(1))
]
MaxTokens = Annotated[
    int | None, Opt("--max-tokens", "Cut longer answers to N tokens.", "N", integer(1))
]
Requests = Annotated[
    int | None,
    Opt("--requests", f"Made requests. Default: {DEFAULT_REQUESTS}.", "N", integer(1, 10_000_000)),
]
Seed = Annotated[int, Opt("--seed", "Same seed, same load.", "N", options.ANY_INTEGER)]
Model = Annotated[
    str | None, Opt("--model", "Model to ask. Default: the server's first.", "NAME", utf8)
]
Chat = Annotated[bool, Opt("--chat", "Ask for chat completions.")]
StopEarly = Annotated[
    bool, Opt("--stop-early", "Let the model end its answers (ignore_eos is not sent).")
]
Timeout = Annotated[float, Opt("--timeout", "Longest time of a request.", "S", number(0.001, 1e6))]
TtftMs = Annotated[
    float | None, Opt("--ttft-ms", "Objective: the first token within so long.", "MS", MS)
]
TpotMs = Annotated[
    float | None, Opt("--tpot-ms", "Objective: every further token within so long.", "MS", MS)
]
E2eMs = Annotated[float | None, Opt("--e2e-ms", "Objective: all within so long.", "MS", MS)]
Csv = Annotated[Path | None, Opt("--csv", "Write a row for every request.", "FILE", Path)]
Plot = Annotated[
    Path | None,
    Opt("--plot", "Draw it (needs the extra: pip install 'headrace[bench]').", "FILE.png", Path),
]


def serve(
    url: Url,
    rate: Rate = None,
    concurrency: Concurrency = None,
    trace: Trace = None,
    time_scale: TimeScale = 1.0,
    limit: Limit = None,
    dataset: Dataset = Lengths.LOGNORMAL,
    prompt_len: PromptLen = 256,
    output_len: OutputLen = 64,
    max_prompt: MaxPrompt = None,
    max_tokens: MaxTokens = None,
    requests: Requests = None,
    seed: Seed = 0,
    model: Model = None,
    api_key: ApiKey = None,
    chat: Chat = False,
    stop_early: StopEarly = False,
    timeout: Timeout = 600.0,
    ttft_ms: TtftMs = None,
    tpot_ms: TpotMs = None,
    e2e_ms: E2eMs = None,
    csv: Csv = None,
    plot: Plot = None,
    json: options.Json = False,
) -> None:
    """Put load on a server and measure its answers.

    Latencies count from the moment at which a request was due. Without --rate, --concurrency and
    --trace one request runs at a time. Ctrl-C ends the run and keeps its results; status 1 if it
    ended early or nothing succeeded.
    """
    from headrace.bench.load.run import LoadPlan
    from headrace.bench.load.stats import Objectives

    if rate is not None and concurrency is not None:
        console.usage_error("--rate is an open loop, --concurrency a closed one; give one of them.")
    if trace is not None and requests is not None:
        console.usage_error("--requests is for made requests; --limit shortens a trace.")
    if trace is not None:
        shapes = _traced(trace, limit, time_scale)
    else:
        shapes = _made(requests or DEFAULT_REQUESTS, prompt_len, output_len, dataset, seed)
    shapes = _cut(shapes, max_prompt, max_tokens)
    if rate is not None:
        shapes = _poisson(shapes, rate, seed)
    elif trace is None:
        concurrency = concurrency or 1
    plan = LoadPlan(shapes, concurrency, model, seed, chat, not stop_early, timeout)
    _run(url, api_key, plan, Objectives(ttft_ms, tpot_ms, e2e_ms), csv, plot, json)


def _run(
    url: str,
    api_key: str | None,
    plan: LoadPlan,
    objectives: Objectives,
    csv: Path | None,
    plot: Path | None,
    json: bool,
) -> None:
    from headrace.bench.load.plot import check_matplotlib, write_plot
    from headrace.bench.load.report import HEAD, latency_rows, lines_of, write_csv
    from headrace.bench.load.run import run_load
    from headrace.bench.load.stats import summarize
    from headrace.urls import parse_url

    target = parse_url(url, api_key)
    if plot is not None:
        check_matplotlib()
    for path in (csv, plot):
        if path is not None:
            path.open("ab").close()  # what is wrong with it is said before the run
    loop = "an open loop" if plan.concurrency is None else f"{plan.concurrency} at once"
    console.say(f"Sending {len(plan.shapes)} requests to {url}, {loop}.")
    run = run_load(target, plan)
    summary = summarize(run, objectives)
    if csv is not None:
        write_csv(csv, run, objectives)
    if plot is not None:
        write_plot(plot, run)
    if json:
        console.print_json(summary)
    else:
        console.print_table(HEAD, latency_rows(summary))
    for line in lines_of(summary, objectives):
        print(line) if not json else console.say(line)
    sys.exit(1 if run.stopped or not summary["completed"] else 0)


def _made(count: int, prompt_len: int, output_len: int, dataset: Lengths, seed: int) -> list[Shape]:
    from headrace.bench.load.shapes import made_shapes

    return made_shapes(count, prompt_len, output_len, dataset, seed)


def _traced(path: Path, limit: int | None, time_scale: float) -> list[Shape]:
    from headrace.bench.load.traces import read_trace

    return [replace(shape, at_s=shape.at_s / time_scale) for shape in read_trace(path, limit)]


def _cut(shapes: list[Shape], max_prompt: int | None, max_tokens: int | None) -> list[Shape]:
    from headrace.bench.load.shapes import cut

    return [cut(shape, max_prompt, max_tokens) for shape in shapes]


def _poisson(shapes: list[Shape], rate: float, seed: int) -> list[Shape]:
    from headrace.bench.load.shapes import poisson

    return poisson(shapes, rate, seed)
