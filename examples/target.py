"""Where an example runs: a model of this process, or a server."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator

from headrace import LLM
from headrace.program import Session


@contextlib.contextmanager
def session_of(description: str | None, arguments: list[str] | None = None) -> Iterator[Session]:
    """The session that the command line asks for."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", default="smollm2:135m", help="a name, a path or a Hub id")
    parser.add_argument("--url", help="a server instead, such as http://127.0.0.1:8000")
    parser.add_argument("--seed", type=int, default=1, help="decides all that is drawn")
    given = parser.parse_args(arguments)
    if given.url:
        with Session(given.url, model=given.model, seed=given.seed) as session:
            yield session
    else:
        with LLM(given.model) as llm, Session(llm, seed=given.seed) as session:
            yield session
