"""The command line: registers every verb and turns whatever happens into an exit status.

Exit status: 0 success, 1 an error said in one sentence on stderr, 2 wrong usage, 130 interrupted.
Modules of verbs import nothing heavy: `headrace --help` is as quick as Python.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, NoReturn

import typer

import headrace
from headrace.cli import batch, bench, chat, doctor, models, pull, run, serve, version
from headrace.cli.console import fail
from headrace.errors import HeadraceError

app = typer.Typer(
    name="headrace",
    help="Serve open-weight language models from zero: OpenAI-compatible, exact, on this machine.",
    epilog="Exit status: 0 success, 1 an error, 2 wrong usage, 130 interrupted. "
    "Results go to stdout, everything else to stderr.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # plain help: importing rich costs more than all the rest
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

app.command()(serve.serve)
app.command()(run.run)
app.command()(chat.chat)
app.command()(batch.batch)
app.command()(pull.pull)
app.add_typer(models.app, name="models")
app.command()(doctor.doctor)
app.command()(bench.bench)
app.command()(version.version)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"headrace {headrace.__version__}")
        raise typer.Exit


@app.callback()
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


def main() -> NoReturn:
    """Run the command line and exit."""
    try:
        app(prog_name="headrace")
    except (HeadraceError, ImportError) as error:
        is_unbuilt = isinstance(error, ImportError) and "_native" in str(error)
        if os.environ.get("HEADRACE_DEBUG") == "1" or not (
            is_unbuilt or isinstance(error, HeadraceError)
        ):
            raise
        fail("The native module is not built; run `make build`." if is_unbuilt else str(error))
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader of stdout went away (`| head`); Python would complain again when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    sys.exit(0)
