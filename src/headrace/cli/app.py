"""The typer application: help, errors and suggestions for every verb, from their declarations."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any

import typer

import headrace
from headrace.cli import models
from headrace.cli.params import Arg, Param, Parser, params_of
from headrace.cli.verbs import GROUPS, VERBS, load


def register(
    app: typer.Typer, verb: Callable[..., None], name: str | None = None
) -> Callable[..., None]:
    """Add a verb to an application, its declared parameters as typer's own."""
    declared = {param.name: param for param in params_of(verb)}
    signature = inspect.signature(verb, eval_str=True)
    parameters = [
        parameter.replace(annotation=_annotation(parameter, declared[key]))
        if key in declared
        else parameter
        for key, parameter in signature.parameters.items()
    ]

    def call(*args: Any, **kwargs: Any) -> None:
        verb(*args, **kwargs)

    call.__name__ = verb.__name__
    call.__doc__ = verb.__doc__
    call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # read by typer
    app.command(name or verb.__name__)(call)
    return call


def _annotation(parameter: inspect.Parameter, param: Param) -> Any:
    """`Annotated[type, typer.Option(...)]` (or Argument) of a declared parameter."""
    spec = param.spec
    value_type = parameter.annotation.__origin__
    parser = None if param.is_flag or spec.parser is str else _explained(spec.parser)
    if isinstance(spec, Arg):
        info: Any = typer.Argument(metavar=spec.metavar, help=spec.help, parser=parser)
    else:
        info = typer.Option(
            spec.flag,
            metavar=spec.metavar or None,
            help=spec.help,
            parser=parser,
            envvar=spec.envvar,
        )
    return Annotated[value_type, info]


def _explained(parser: Parser) -> Parser:
    """The same parser; what is wrong with a value becomes a usage error."""

    def read(value: Any) -> Any:
        if not isinstance(value, str):  # a default that was never text
            return value
        try:
            return parser(value)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return read


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"headrace {headrace.__version__}")
        raise typer.Exit


def _root(
    _: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version and exit.",
            callback=_print_version,
            is_eager=True,
        ),
    ] = False,
) -> None:
    pass


def make_app() -> typer.Typer:
    """The whole command line."""
    app = typer.Typer(
        name="headrace",
        help="Serve open-weight language models from zero: OpenAI-compatible, exact.",
        epilog="Exit status: 0 success, 1 an error, 2 wrong usage, 130 interrupted. "
        "Results go to stdout, everything else to stderr.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,  # plain help: importing rich costs more than all the rest
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    app.callback()(_root)
    for name in VERBS:
        register(app, load(name))
    for name, verbs in GROUPS.items():
        group = typer.Typer(
            help=import_module(f"headrace.cli.{name}").__doc__,
            no_args_is_help=True,
            rich_markup_mode=None,
        )
        for verb in verbs:
            register(group, load(name, verb))
        app.add_typer(group, name=name)
    app.add_typer(models.make_app(register), name="models")
    return app
