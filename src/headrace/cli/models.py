"""`headrace models`: what is here, what could be, and what it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import console, options
from headrace.cli.console import human_bytes, say
from headrace.cli.machine import available_bytes
from headrace.cli.params import Opt

if TYPE_CHECKING:
    from headrace.weights.pull import ModelInfo

Available = Annotated[
    bool, Opt("--available", "List the catalog instead: what `pull` knows by name.")
]
Yes = Annotated[bool, Opt("--yes", "Do not ask.")]


def make_app(register: Callable[[typer.Typer, Callable[..., None], str], object]) -> typer.Typer:
    """The group: `headrace models` alone lists."""
    app = typer.Typer(invoke_without_command=True, rich_markup_mode=None)

    @app.callback()
    def models(
        context: typer.Context,
        available: Annotated[bool, typer.Option("--available", help="As of list.")] = False,
        json: Annotated[bool, typer.Option("--json", help="As of list.")] = False,
    ) -> None:
        """List, describe and remove models."""
        if context.invoked_subcommand is None:
            list_models(available, json)

    register(app, list_models, "list")
    register(app, info, "info")
    register(app, rm, "rm")
    return app


def list_models(available: Available = False, json: options.Json = False) -> None:
    """List the models on this machine."""
    if available:
        _list_catalog(json)
    else:
        _list_local(json)


def _list_local(json: bool) -> None:
    from headrace.weights.pull import list_local

    found = list_local()
    if json:
        console.print_json([{**asdict(model), "path": str(model.path)} for model in found])
    elif found:
        rows = [(m.name, human_bytes(m.num_bytes), m.origin, str(m.path)) for m in found]
        console.print_table(["name", "size", "from", "path"], rows)
    else:
        say("No models yet; `headrace pull smollm2:135m` fetches the smallest one.")


def _list_catalog(json: bool) -> None:
    from headrace.weights.catalog import CATALOG
    from headrace.weights.fit import model_fit

    memory = available_bytes()
    fits = {entry.name: model_fit(entry.size_bytes, memory).value for entry in CATALOG}
    if json:
        console.print_json([{**asdict(entry), "fit": fits[entry.name]} for entry in CATALOG])
        return
    rows = [
        (e.name, e.parameters, human_bytes(e.size_bytes), fits[e.name], e.licence, e.note)
        for e in CATALOG
    ]
    console.print_table(["name", "weights", "size", "fits here", "licence", ""], rows)


def info(model: options.Model, json: options.Json = False) -> None:
    """Describe one model, and its file if it is here."""
    facts = {**_known(model), **_opened(model)}
    if json:
        console.print_json(facts)
        return
    width = max(len(key) for key in facts)
    for key, value in facts.items():
        print(f"{key.ljust(width)}  {human_bytes(int(value)) if key == 'size' else value}")


def _known(model: str) -> dict[str, str | int]:
    """What names say: nothing for a path."""
    from pathlib import Path

    from headrace.weights.pull import info as known

    if Path(model).expanduser().exists():
        return {"name": model}
    return _facts(known(model))


def _facts(known: ModelInfo) -> dict[str, str | int]:
    facts: dict[str, str | int] = {"name": known.name, "repository": known.repo}
    if known.entry is not None:
        facts["licence"] = known.entry.licence
        facts["parameters"] = known.entry.parameters
    if known.num_bytes:
        facts["size"] = known.num_bytes
    facts["path"] = str(known.path) if known.path is not None else "not on this machine"
    return facts


def _opened(model: str) -> dict[str, str | int]:
    """What the file itself says, if it is here."""
    from headrace.errors import ModelNotFoundError
    from headrace.weights.open import open_source
    from headrace.weights.resolve import resolve

    try:
        path = resolve(model, download=False)
    except ModelNotFoundError:
        return {}
    source = open_source(path)
    try:
        types = sorted({tensor.dtype.name for tensor in source.tensors.values()})
        config = source.config
        return {
            "path": str(path),
            "size": source.file_bytes,
            "family": config.family,
            "layers": config.num_layers,
            "hidden": config.hidden_dim,
            "vocabulary": config.vocab_size,
            "context": config.max_model_len,
            "weight types": " ".join(types),
            "chat template": "yes" if source.chat_template else "no",
        }
    finally:
        source.close()


def rm(model: options.Model, yes: Yes = False) -> None:
    """Remove a model from the cache. Files elsewhere are never touched."""
    from headrace.errors import ModelNotFoundError
    from headrace.weights.pull import info as known
    from headrace.weights.pull import remove

    if known(model).path is None:
        raise ModelNotFoundError(f"The model {model[:100]!r} is not in the cache.")
    if not yes:
        typer.confirm(f"Remove {model} from the cache?", abort=True, err=True)
    say(f"Removed {model}: {human_bytes(remove(model))} freed.")
