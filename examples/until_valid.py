"""A loop until a check passes: an attempt that fails it is forgotten, text and cache."""

from __future__ import annotations

import json

from examples.target import session_of
from headrace.program import Session

PROMPT = """\
A record of a person in JSON, on one line, with the fields name, age and city:
{"name": "Ada Smith", "age": 36, "city": "London"}
Another one:
{"name": "Li Wei", "age": 52, "city": "Shanghai"}
Another one:
"""


def run(session: Session, max_attempts: int = 20) -> tuple[dict[str, object], int]:
    """A valid record, and how many attempts it took. Raises ValueError if there is none."""
    prompt = session.prompt(PROMPT)
    for attempt in range(1, max_attempts + 1):
        with prompt.fork(1) as tries:
            text = tries[0].gen("record", max_tokens=40, stop="\n", temperature=1.2)
            if (record := parse(text)) is not None:
                tries.join(keep=tries[0])
                return record, attempt
    raise ValueError(f"none of {max_attempts} records is valid")


def parse(text: str) -> dict[str, object] | None:
    """The record, if it is one: the check."""
    try:
        record = json.loads(text)
    except ValueError:
        return None
    valid = (
        isinstance(record, dict)
        and set(record) == {"name", "age", "city"}
        and isinstance(record["age"], int)
        and 0 < record["age"] < 130
    )
    return record if valid else None


if __name__ == "__main__":
    with session_of(__doc__) as opened:
        valid_record, attempts = run(opened)
        print(f"{json.dumps(valid_record)}  (attempt {attempts})")
