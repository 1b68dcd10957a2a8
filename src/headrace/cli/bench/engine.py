"""`headrace bench engine`: speed of a model on this machine, beside the machine's own limits."""

from __future__ import annotations

import contextlib
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from headrace.cli import console, options
from headrace.cli.params import Opt, integer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.bench.engine import EngineBench, Figure, Limits, Plan, Run
    from headrace.engine.load import LoadOptions

HEAD = [
    "measurement", "tok/s", "least", "most", "of the roof", "step ms", "Python ms", "p99",
]  # fmt: skip
CSV_HEAD = "point,run,step,rows,context,wall_s,native_s\n"


PromptLen = Annotated[
    list[int] | None,
    Opt(
        "--prompt-len",
        "Tokens of a prefill; may be repeated. Default: 128, 512 and 2048.",
        "N",
        integer(1),
    ),
]
Batch = Annotated[
    list[int] | None,
    Opt(
        "--batch",
        "Sequences that decode at once; may be repeated. Default: 1, 8 and 32.",
        "N",
        integer(1, 4096),
    ),
]
Context = Annotated[
    list[int] | None,
    Opt(
        "--context",
        "Tokens before what is decoded; may be repeated. Default: 128 and 2048.",
        "N",
        integer(1),
    ),
]
Steps = Annotated[int, Opt("--steps", "Steps of a decode run.", "N", integer(1, 10000))]
Repeat = Annotated[
    int, Opt("--repeat", "Runs of each measurement; the median counts.", "N", integer(1, 1000))
]
Accuracy = Annotated[
    bool, Opt("--accuracy", "Also compare with float32 arithmetic, on a short text.")
]
Csv = Annotated[Path | None, Opt("--csv", "Write the times of every step.", "FILE", Path)]


def engine(
    model: options.Model,
    prompt_len: PromptLen = None,
    batch: Batch = None,
    context: Context = None,
    steps: Steps = 16,
    repeat: Repeat = 3,
    threads: options.Threads = None,
    activations: options.ActivationsOption = options.Activations.QUANTIZED,
    kv_cache_memory: options.KvCacheMemory = None,
    kv_dtype: options.KvDtypeOption = options.KvDtype.FP16,
    accuracy: Accuracy = False,
    csv: Csv = None,
    json: options.Json = False,
) -> None:
    """Measure a model's speed through the engine.

    The roof of decode is what the machine takes to read as many bytes as a step must: tensors as
    the file stores them, keys and values in their --kv-dtype. That of prefill is its multiply-adds
    at the rates of `bench roof`. Python is the time of a step outside the native core.
    """
    from headrace.bench.engine import Plan
    from headrace.engine.load import LoadOptions

    usual = Plan()
    plan = Plan(
        tuple(prompt_len or usual.prompt_lens),
        tuple(batch or usual.batches),
        tuple(context or usual.contexts),
        steps,
        repeat,
    )
    sizes = LoadOptions(
        threads=threads,
        kv_cache_bytes=kv_cache_memory,
        activations=activations.value,
        kv_dtype=kv_dtype.value,
    )
    report = _run(model, plan, sizes, csv)
    if accuracy:
        report["accuracy"] = _accuracy(model, sizes)
    if json:
        console.print_json(report)
    else:
        _print(report)


def _run(model: str, plan: Plan, sizes: LoadOptions, csv: Path | None) -> dict[str, Any]:
    """All that was measured, for JSON."""
    from headrace.bench.engine import EngineBench, Limits, Model, load
    from headrace.weights.resolve import resolve

    figures: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        raw = None if csv is None else stack.enter_context(csv.open("w", encoding="utf-8"))
        progress = stack.enter_context(console.ProgressLine(model))
        found = Model.open(resolve(model, progress=progress), sizes.kv_dtype)
        console.say(f"Loading {model}.")
        loaded = load(found, plan, sizes)
        stack.callback(loaded.close)
        limits = Limits(
            found.workload,
            sizes.threads,
            float_activations=sizes.activations == options.Activations.FLOAT32,
        )
        for figure, runs in _measure(EngineBench(loaded), limits, plan):
            if raw is not None:
                raw.write("" if figures else CSV_HEAD)
                raw.writelines(_csv_lines(figure.name, runs))
                raw.flush()
            figures.append(asdict(figure))
    return {
        "model": model,
        "isa": limits.isa,
        "threads": limits.threads,
        "activations": sizes.activations,
        "kv_dtype": sizes.kv_dtype,
        "weight_bytes_per_step": found.workload.weight_bytes,
        "roof": [asdict(rate) for rate in limits.rates],
        "figures": figures,
    }


def _measure(bench: EngineBench, limits: Limits, plan: Plan) -> Iterator[tuple[Figure, list[Run]]]:
    """Every point that fits; what does not is said."""
    from headrace.bench.engine import figure_of

    bench.warm_up()
    for length in plan.prompt_lens:
        name = f"prefill {length}"
        if _fits(bench, name, 1, length + 1):
            runs = [bench.prefill(length) for _ in range(plan.repeat)]
            yield figure_of(name, runs, length / limits.prefill_s(length)), runs
    for context in plan.contexts:
        for batch in plan.batches:
            name = f"decode {batch}, context {context}"
            if _fits(bench, name, batch, context + plan.output_len(batch, context, bench.chunk)):
                runs = list(bench.decode(batch, context, plan))
                seen = sum(run.context for run in runs) / len(runs)
                yield figure_of(name, runs, batch / limits.decode_s(batch, seen)), runs


def _fits(bench: EngineBench, name: str, batch: int, length: int) -> bool:
    reason = bench.does_not_fit(batch, length)
    console.say(f"Measuring {name}." if reason is None else f"Left out {name}: {reason}.")
    return reason is None


def _accuracy(model: str, sizes: LoadOptions) -> dict[str, float]:
    from headrace.bench.accuracy import compare_with_reference
    from headrace.weights.resolve import resolve

    console.say("Comparing with the NumPy reference backend.")
    return asdict(
        compare_with_reference(
            resolve(model),
            sizes.threads,
            activations=sizes.activations,
            kv_dtype=sizes.kv_dtype,
        )
    )


def _csv_lines(name: str, runs: list[Run]) -> Iterator[str]:
    for number, run in enumerate(runs):
        for step, (wall_s, native_s) in enumerate(run.steps):
            rows = run.tokens // len(run.steps)
            yield (
                f'"{name}",{number},{step},{rows},{run.context:.1f},{wall_s:.9f},{native_s:.9f}\n'
            )


def _print(report: dict[str, Any]) -> None:
    console.print_table(HEAD, [_row(figure) for figure in report["figures"]])
    rates = ", ".join(f"{r['name']} {r['together']:.1f} {r['unit']}" for r in report["roof"])
    print(f"\nroof: {rates}; {report['threads']} threads, kernels {report['isa']}")
    if "accuracy" in report:
        found = report["accuracy"]
        print(
            f"accuracy: mean KL {found['mean_kl']:.6f} nats from float32, same best token "
            f"{found['same_best']:.2%}, of {found['tokens']} tokens"
        )


def _row(figure: dict[str, Any]) -> list[str]:
    rates = (figure["median"], figure["least"], figure["most"])
    times = (figure["step_ms"], figure["python_median_ms"], figure["python_p99_ms"])
    return [
        figure["name"],
        *(f"{rate:.1f}" for rate in rates),
        f"{figure['roof_share']:.0%}",
        *(f"{time:.2f}" for time in times),
    ]
