"""`headrace batch`: many requests from a file, through the server's own code without a socket."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from headrace.cli import options
from headrace.cli.console import say
from headrace.cli.params import Arg, Opt, utf8
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.cli.batch_file import BatchInput
    from headrace.gateway.config import ServeConfig


def batch(
    in_file: Annotated[Path, Arg("IN.jsonl", "Requests in OpenAI's batch format.", Path)],
    out_file: Annotated[Path, Arg("OUT.jsonl", "Answers are appended here, as they end.", Path)],
    model: Annotated[
        str | None,
        Opt("--model", "Use this model for every line, whatever its body names.", "MODEL", utf8),
    ] = None,
    max_num_seqs: options.MaxNumSeqs = 64,
    threads: options.Threads = None,
    kv_cache_memory: options.KvCacheMemory = None,
    max_model_len: options.MaxModelLen = None,
    activations: options.ActivationsOption = options.Activations.QUANTIZED,
    kv_dtype: options.KvDtypeOption = options.KvDtype.FP16,
) -> None:
    """Answer the requests of a file; run again to resume.

    Each line of IN.jsonl has custom_id, url (/v1/chat/completions or /v1/completions) and body.
    Lines whose custom_id is in OUT.jsonl already are skipped. A request that the server could not
    finish is not written: the next run tries it again, and this one ends with status 1.
    """
    import asyncio

    from headrace.cli.batch_file import answered_ids, open_output, read_input
    from headrace.cli.serve import find_model
    from headrace.engine.base import THROUGHPUT
    from headrace.gateway.config import ServeConfig

    done = answered_ids(out_file, in_file)
    work = read_input(in_file, model, done)
    if not work.num_left:
        say(f"All {work.num_lines} requests are answered in {out_file}.")
        return
    open_output(out_file).close()  # whatever is wrong with it is said before anything is loaded
    specs = {name: find_model(name) for name in sorted(work.models)}
    config = ServeConfig(
        models=tuple(specs.values()),
        max_num_seqs=max_num_seqs,
        threads=threads,
        kv_cache_memory=kv_cache_memory,
        max_model_len=max_model_len,
        kv_dtype=kv_dtype.value,
        activations=activations.value,
        scheduling=THROUGHPUT,
        log_level="error",
        ui=False,
    )
    work.served_names = {name: spec.name for name, spec in specs.items()}
    num_failed = asyncio.run(_run(config, work, out_file))
    if num_failed:
        raise HeadraceError(
            f"{num_failed} requests could not be finished; run the same command to try them again."
        )


async def _run(config: ServeConfig, work: BatchInput, out_file: Path) -> int:
    """The number of requests that failed. Requests run as many at once as the engine takes."""
    from headrace.cli.batch_file import BatchRunner, open_output
    from headrace.cli.local_server import LocalServer

    async with LocalServer(config) as server:
        with open_output(out_file) as out:
            runner = BatchRunner(server.post, out, num_at_once=2 * config.max_num_seqs)
            return await runner.run(work)
