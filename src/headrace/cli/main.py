"""The command line: finds the verb, calls it, and turns whatever happens into an exit status.

Exit status: 0 success, 1 an error said in one sentence on stderr, 2 wrong usage, 130 interrupted.
Nothing heavy is imported before it is needed; a plain command line does not even need typer.
"""

from __future__ import annotations

import io
import os
import sys
from typing import NoReturn

from headrace.cli.console import fail
from headrace.cli.params import parse
from headrace.cli.verbs import find
from headrace.errors import HeadraceError

UNBUILT = "The native module is not built; run `make build`."


def main() -> NoReturn:
    """Run the command line and exit."""
    _open_streams()
    _write_any_text()
    try:
        try:
            _run(sys.argv[1:])
        finally:
            sys.stdout.flush()  # here a full disk is still an error that can be said
    except HeadraceError as error:
        if _debug():
            raise
        fail(str(error))
    except ImportError as error:
        if "_native" not in str(error):
            raise
        fail(UNBUILT)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader of stdout went away (`| head`)
        _drop_output()
        sys.exit(1)
    except OSError as error:
        _drop_output()
        if _debug():
            raise
        where = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
        fail(f"{where}{error.strerror or error}.")
    sys.exit(0)


def _debug() -> bool:
    return os.environ.get("HEADRACE_DEBUG") == "1"


def _open_streams() -> None:
    """Streams that the caller closed (`>&-`) are empty ones. Each takes the lowest descriptor that
    is free, which is its own: else the first file or socket would, and be written to."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - for good


def _write_any_text() -> None:
    """What the locale's encoding lacks is written as a question mark."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _drop_output() -> None:
    """Python would complain again when it flushes the rest at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(words: list[str]) -> None:
    if not _call(words):
        from headrace.cli.app import make_app

        make_app()(prog_name="headrace")


def _call(words: list[str]) -> bool:
    """Call the verb if the line is plain; False leaves it to typer."""
    found = find(words)
    if found is None:
        return False
    verb, rest = found
    arguments = parse(verb, rest)
    if arguments is None:
        return False
    verb(**arguments)
    return True
