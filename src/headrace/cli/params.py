"""How a verb declares its parameters, once: as metadata of its function's annotations.

`headrace.cli.app` turns the declarations into a typer application, which does help, errors and
suggestions. `parse` reads plain command lines itself, without importing typer: that takes longer
than all the rest of a short run. Whatever is not plain (help, a mistake) it leaves to typer.
"""

from __future__ import annotations

import math
import os
import re
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

MAX_SIZE = (1 << 63) - 1
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}

# Text of one value -> the value. Raises ValueError with a message for a person.
Parser = Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class Arg:
    """A positional argument; of type list[...] it takes all that follow."""

    metavar: str
    help: str
    parser: Parser = str


@dataclass(frozen=True, slots=True)
class Opt:
    """An option. Of type bool it is a flag; of type list[...] it may be repeated."""

    flag: str
    help: str
    metavar: str = ""
    parser: Parser = str
    envvar: str | None = None


@dataclass(frozen=True, slots=True)
class Param:
    """A declared parameter of a verb's function."""

    name: str
    spec: Arg | Opt
    is_flag: bool
    is_list: bool


def params_of(verb: Callable[..., None]) -> Iterator[Param]:
    """The parameters of a verb, in order."""
    for name, hint in get_type_hints(verb, include_extras=True).items():
        if get_origin(hint) is not Annotated:
            continue
        value_type, spec, *_ = get_args(hint)
        if isinstance(spec, Arg | Opt):
            kinds = _alternatives(value_type)
            is_list = any(get_origin(kind) is list for kind in kinds)
            yield Param(name, spec, bool in kinds, is_list)


def _alternatives(hint: Any) -> tuple[Any, ...]:
    """The members of `X | None`, or X alone."""
    return get_args(hint) if get_origin(hint) in {Union, types.UnionType} else (hint,)


def parse(
    verb: Callable[..., None], words: list[str], environment: Mapping[str, str] = os.environ
) -> dict[str, Any] | None:
    """The arguments to call `verb` with, or None if typer should have a look."""
    params = list(params_of(verb))
    options = {param.spec.flag: param for param in params if isinstance(param.spec, Opt)}
    values: dict[str, Any] = {}
    positional: list[str] = []
    pending = list(reversed(words))
    try:
        while pending:
            word = pending.pop()
            if word == "--":
                positional += reversed(pending)
                break
            if word == "-" or not word.startswith("-"):
                positional.append(word)
                continue
            flag, has_value, value = word.partition("=")
            param = options[flag]
            if param.is_flag:
                if has_value:
                    return None
                values[param.name] = True
            else:
                _store(values, param, value if has_value else pending.pop())
        _store_positional(values, params, positional)
        _store_environment(values, params, environment)
    except (LookupError, ValueError):
        return None
    return values if required(verb) <= values.keys() else None


def required(verb: Callable[..., None]) -> set[str]:
    """Names of the parameters without a default."""
    code = verb.__code__
    return set(code.co_varnames[: code.co_argcount - len(verb.__defaults__ or ())])


def _store(values: dict[str, Any], param: Param, text: str) -> None:
    value = param.spec.parser(text)
    if param.is_list:
        values.setdefault(param.name, []).append(value)
    else:
        values[param.name] = value


def _store_positional(values: dict[str, Any], params: list[Param], words: list[str]) -> None:
    """Raises LookupError if there are too many."""
    arguments = [param for param in params if isinstance(param.spec, Arg)]
    for index, word in enumerate(words):
        last = arguments[-1]
        param = last if last.is_list and index >= len(arguments) else arguments[index]
        _store(values, param, word)


def _store_environment(
    values: dict[str, Any], params: list[Param], environment: Mapping[str, str]
) -> None:
    for param in params:
        name = param.spec.envvar if isinstance(param.spec, Opt) else None
        if name is not None and param.name not in values and environment.get(name):
            _store(values, param, environment[name])


# ---- parsers of values ---------------------------------------------------------------------------


def integer(least: int, most: int | None = None) -> Parser:
    """Whole numbers of a range."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError(f"{text!r} is no whole number.") from None
        if value < least or (most is not None and value > most):
            raise ValueError(f"{value} is not {_range(least, most)}.")
        return value

    return read


def number(least: float, most: float | None = None) -> Parser:
    """Finite numbers of a range."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise ValueError(f"{text!r} is no number.") from None
        if not math.isfinite(value) or value < least or (most is not None and value > most):
            raise ValueError(f"{text} is not {_range(least, most)}.")
        return value

    return read


def _range(least: float, most: float | None) -> str:
    return f"{least} or more" if most is None else f"from {least} to {most}"


def utf8(text: str) -> str:
    """Text that a client can send and a server can answer: no bytes that are no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{text!r} is no UTF-8 text.") from None
    return text


def choice(kind: type[StrEnum]) -> Parser:
    """One of the members of an enumeration, by its value."""

    def read(text: str) -> StrEnum:
        try:
            return kind(text)
        except ValueError:
            known = ", ".join(member.value for member in kind)
            raise ValueError(f"{text!r} is none of: {known}.") from None

    return read


def size(text: str) -> int:
    """Bytes of `2G`, `512MiB`, `1.5 GB` or `1048576`; all units are powers of 1024."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:I?B)?\s*", text.upper())
    if found is None:
        raise ValueError(f"{text!r} is no size; write 512M, 2G or a number of bytes.")
    amount = float(found[1]) * _UNITS[found[2]]
    if amount > MAX_SIZE:
        raise ValueError(f"{text!r} is more than any machine has.")
    num_bytes = int(amount)
    if num_bytes <= 0:
        raise ValueError(f"{text!r} is no size above zero.")
    return num_bytes
