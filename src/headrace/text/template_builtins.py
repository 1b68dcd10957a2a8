"""Methods, filters, tests and globals of chat templates, each bounded before it runs.

What is not named here does not exist for a template: among jinja2's own, whatever is random, makes
HTML, or cannot be bounded.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

import jinja2
from jinja2.exceptions import SecurityError
from jinja2.filters import FILTERS as DEFAULT_FILTERS
from jinja2.filters import do_batch, make_attrgetter, sync_do_slice
from jinja2.sandbox import safe_range
from jinja2.tests import TESTS as DEFAULT_TESTS
from jinja2.utils import Namespace, pass_environment

from headrace.text.template_meter import MAX_ITEMS, LimitError, Meter

_MAX_INDENT = 16
_MAX_NUMERAL_LEN = 400
_MAX_PRECISION = 100
_PERCENT_SPEC = re.compile(r"[-#0+ .\d*hlL]*")
# A width of four digits or more, or one taken from an argument.
_WIDE_PERCENT = re.compile(r"\d{4}|\*")
_WIDE_BRACES = re.compile(r"\{[^{}]*(?:\d{4}|\{)")
_REACHING_BRACES = re.compile(r"\{[^{}:!]*[.\[]")
_FIELD_LEN = 1000  # what a width of three digits can make of an empty value
_LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"


class RaisedError(jinja2.TemplateError):
    """The template itself refused its input, by raise_exception."""


def check_percent_format(meter: Meter, text: str, args: Any) -> None:
    """Raises LimitError unless `text % args` is bounded."""
    num_fields = 0
    at = text.find("%") + 1
    while at > 0:
        num_fields += 1
        spec = _PERCENT_SPEC.match(text, _after_key(meter, text, at))
        if spec is None or _WIDE_PERCENT.search(spec[0]):
            raise LimitError("formats a value wider than 999 characters")
        at = text.find("%", spec.end() + 1) + 1
    num_uses = num_fields if isinstance(args, dict) else 1
    meter.charge(len(text) + num_fields * _FIELD_LEN + num_uses * meter.weigh_text(args))


def _after_key(meter: Meter, text: str, at: int) -> int:
    """Skips the `(key)` of a % field; parentheses nest."""
    depth = 0
    while at < len(text):
        meter.tick()
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth == 0:
            return at + (text[at] == ")")
        at += 1
    return at


def check_brace_format(meter: Meter, text: str, args: Any, kwargs: Any) -> None:
    """Raises LimitError unless `text.format(*args, **kwargs)` is bounded."""
    fields = text.replace("{{", "").replace("}}", "")
    if _WIDE_BRACES.search(fields):
        raise LimitError("formats a value wider than 999 characters")
    if _REACHING_BRACES.search(fields):
        raise SecurityError("a format string may not reach into its arguments")
    meter.charge(len(text) + fields.count("{") * (_FIELD_LEN + meter.weigh((args, kwargs))))


# Methods. Each takes the meter, the object and the arguments.


def _replace(meter: Meter, text: str, old: str, new: str, count: int = -1) -> str:
    num_found = text.count(old)
    if count >= 0:
        num_found = min(num_found, count)
    meter.charge(len(text) + num_found * max(0, len(new) - len(old)))
    return text.replace(old, new, count)


def _join(meter: Meter, separator: str, items: Any) -> str:
    texts: list[str] = []
    for item in items:
        meter.tick()
        texts.append(item)
        meter.check_items(len(texts))
    meter.charge(sum(map(len, texts)) + len(separator) * len(texts))
    return separator.join(texts)


def _split(meter: Meter, text: str, sep: str | None = None, maxsplit: int = -1) -> list[str]:
    return _parts(meter, text, text.split(sep, _bounded_splits(maxsplit)))


def _rsplit(meter: Meter, text: str, sep: str | None = None, maxsplit: int = -1) -> list[str]:
    meter.check_search(text, sep)
    return _parts(meter, text, text.rsplit(sep, _bounded_splits(maxsplit)))


def _bounded_splits(maxsplit: int) -> int:
    return MAX_ITEMS if maxsplit < 0 else min(maxsplit, MAX_ITEMS)


def _parts(meter: Meter, text: str, parts: list[str]) -> list[str]:
    meter.check_items(len(parts))
    meter.charge(len(text))
    return parts


def _splitlines(meter: Meter, text: str, keepends: bool = False) -> list[str]:
    if len(text) > MAX_ITEMS:
        meter.check_items(sum(text.count(end) for end in _LINE_ENDS))
    return _parts(meter, text, text.splitlines(keepends))


def _padding(name: str) -> Callable[..., str]:
    def pad(meter: Meter, text: str, width: int, *fill: str) -> str:
        meter.charge(max(len(text), width))
        padded: str = getattr(text, name)(width, *fill)
        return padded

    return pad


def _format(meter: Meter, text: str, *args: Any, **kwargs: Any) -> str:
    check_brace_format(meter, text, args, kwargs)
    return text.format(*args, **kwargs)


def _slow_search(name: str) -> Callable[..., Any]:
    """A method that takes the product of two lengths: from the right, or of single characters."""

    def run(meter: Meter, text: str, wanted: str | None = None, *args: int) -> Any:
        meter.check_search(text, wanted)
        meter.read(text)
        return getattr(text, name)(wanted, *args)

    return run


def _plain(name: str) -> Callable[..., Any]:
    """A method that makes little more than it is given."""

    def run(meter: Meter, owner: Any, *args: Any, **kwargs: Any) -> Any:
        meter.read(owner, *args)
        return getattr(owner, name)(*args, **kwargs)

    return run


_STR_METHODS: dict[str, Callable[..., Any]] = {
    **{
        name: _plain(name)
        for name in (
            "capitalize",
            "casefold",
            "count",
            "endswith",
            "find",
            "index",
            "isalnum",
            "isalpha",
            "isascii",
            "isdecimal",
            "isdigit",
            "isidentifier",
            "islower",
            "isnumeric",
            "isprintable",
            "isspace",
            "istitle",
            "isupper",
            "lower",
            "partition",
            "removeprefix",
            "removesuffix",
            "startswith",
            "swapcase",
            "title",
            "upper",
        )
    },
    **{name: _padding(name) for name in ("center", "ljust", "rjust", "zfill")},
    **{
        name: _slow_search(name)
        for name in ("lstrip", "rfind", "rindex", "rpartition", "rstrip", "strip")
    },
    "format": _format,
    "join": _join,
    "replace": _replace,
    "rsplit": _rsplit,
    "split": _split,
    "splitlines": _splitlines,
}
# By the type that defines them: an object of a subclass has them too.
METHODS: dict[type, dict[str, Callable[..., Any]]] = {
    str: _STR_METHODS,
    dict: {name: _plain(name) for name in ("copy", "get", "items", "keys", "values")},
    list: {name: _plain(name) for name in ("copy", "count", "index")},
    tuple: {name: _plain(name) for name in ("count", "index")},
    float: {"is_integer": _plain("is_integer")},
}


# Filters. Each takes the meter and then what the filter of jinja2 takes.


@pass_environment
def _filter_join(
    meter: Meter, environment: jinja2.Environment, value: Any, d: str = "", attribute: Any = None
) -> str:
    getter = make_attrgetter(environment, attribute) if attribute is not None else lambda item: item
    return _join(meter, _text(meter, d), (_text(meter, getter(item)) for item in value))


def _text(meter: Meter, value: Any) -> str:
    meter.charge(meter.weigh_text(value))
    return str(value)


def _filter_replace(meter: Meter, value: Any, old: Any, new: Any, count: int | None = None) -> str:
    limit = -1 if count is None else count
    return _replace(meter, _text(meter, value), _text(meter, old), _text(meter, new), limit)


def _filter_center(meter: Meter, value: Any, width: int = 80) -> str:
    meter.charge(width)
    return _text(meter, value).center(width)


def _filter_indent(
    meter: Meter, value: Any, width: int | str = 4, first: bool = False, blank: bool = False
) -> Any:
    text = _text(meter, value)
    num_lines = 1 + sum(text.count(end) for end in _LINE_ENDS)
    meter.check_items(num_lines)
    meter.charge(len(text) + num_lines * (len(width) if isinstance(width, str) else width))
    return DEFAULT_FILTERS["indent"](text, width, first, blank)


def _filter_format(meter: Meter, value: Any, *args: Any, **kwargs: Any) -> str:
    if args and kwargs:
        raise jinja2.TemplateError("can't handle positional and keyword arguments together")
    check_percent_format(meter, str(value), kwargs or args)
    return str(value) % (kwargs or args)


@pass_environment
def _filter_sum(
    meter: Meter, environment: jinja2.Environment, value: Any, attribute: Any = None, start: Any = 0
) -> Any:
    if not isinstance(start, int | float):
        raise jinja2.TemplateError("the filter sum adds numbers")
    return DEFAULT_FILTERS["sum"](environment, value, attribute, start)


def _filter_tojson(
    meter: Meter,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """As transformers has it: no HTML escapes."""
    weight = meter.weigh(value)
    if indent is not None and not (type(indent) is int and 0 <= indent <= _MAX_INDENT):
        raise LimitError(f"indents JSON by more than {_MAX_INDENT}")
    if separators is not None and sum(map(len, separators)) > _MAX_INDENT:
        raise LimitError("separates JSON by long texts")
    # A line of JSON weighs at least 8, and starts with the indents of all that it is in.
    meter.charge(weight * (12 if ensure_ascii else 6))
    meter.charge(weight * meter.nesting(value) * (indent or 0) // 4)
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _number(name: str) -> Callable[..., Any]:
    def run(meter: Meter, value: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(value, str) and len(value) > _MAX_NUMERAL_LEN:
            raise LimitError(f"reads a number of more than {_MAX_NUMERAL_LEN} digits")
        return DEFAULT_FILTERS[name](value, *args, **kwargs)

    return run


def _filter_round(
    meter: Meter, value: Any, precision: int = 0, method: Any = "common"
) -> int | float:
    if abs(precision) > _MAX_PRECISION:
        raise LimitError(f"rounds to more than {_MAX_PRECISION} digits")
    rounded: int | float = DEFAULT_FILTERS["round"](value, precision, method)
    return rounded


def _filter_trim(meter: Meter, value: Any, chars: str | None = None) -> str:
    text = _text(meter, value)
    meter.check_search(text, chars)
    return text.strip(chars)


def _chunks(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(meter: Meter, value: Any, size: int, fill_with: Any = None) -> Any:
        meter.check_items(size)
        _check_sequence(meter, value)
        return function(value, size, fill_with)

    return run


def _filter_list(meter: Meter, value: Any) -> list[Any]:
    _check_sequence(meter, value)
    items: list[Any] = []
    for item in value:
        items.append(item)
        meter.check_items(len(items))
    return items


def _check_sequence(meter: Meter, value: Any) -> None:
    """An iterator has no length, and is metered already."""
    if hasattr(value, "__len__"):
        meter.check_items(len(value))
    meter.read(value)


def _checked(name: str, check: Callable[[Meter, Any], None]) -> Callable[..., Any]:
    """A filter of jinja2 whose first argument is checked; some take the environment before it."""
    inner = DEFAULT_FILTERS[name]
    position = 1 if hasattr(inner, "jinja_pass_arg") else 0

    def run(meter: Meter, *args: Any, **kwargs: Any) -> Any:
        if len(args) > position:
            check(meter, args[position])
        return inner(*args, **kwargs)

    if position:
        run.jinja_pass_arg = inner.jinja_pass_arg  # type: ignore[attr-defined]  # jinja2's mark
    return run


def _growth(factor: int) -> Callable[[Meter, Any], None]:
    """The check of a filter that makes at most `factor` characters of each."""
    return lambda meter, value: meter.charge(factor * meter.weigh(value))


def _read(meter: Meter, value: Any) -> None:
    """The check of a filter that makes little more than it is given."""
    meter.read(value)


_FILTERS: dict[str, Callable[..., Any]] = {
    **{
        name: _checked(name, _read)
        for name in (
            "abs",
            "capitalize",
            "count",
            "d",
            "default",
            "filesizeformat",
            "items",
            "length",
            "lower",
            "safe",
            "string",
            "truncate",
            "upper",
        )
    },
    **{name: _checked(name, _growth(6)) for name in ("e", "escape", "forceescape")},
    "urlencode": _checked("urlencode", _growth(12)),
    **{
        name: _checked(name, _check_sequence)
        for name in (
            "attr",
            "dictsort",
            "first",
            "groupby",
            "last",
            "map",
            "max",
            "min",
            "reject",
            "rejectattr",
            "reverse",
            "select",
            "selectattr",
            "sort",
            "title",
            "unique",
        )
    },
    **{name: _number(name) for name in ("float", "int")},
    "batch": _chunks(do_batch),
    "center": _filter_center,
    "format": _filter_format,
    "indent": _filter_indent,
    "join": _filter_join,
    "list": _filter_list,
    "replace": _filter_replace,
    "round": _filter_round,
    "slice": _chunks(sync_do_slice),
    "sum": _filter_sum,
    "tojson": _filter_tojson,
    "trim": _filter_trim,
}


def metered_filters(meter_of: Callable[[], Meter]) -> dict[str, Any]:
    """All filters of a template; `meter_of` gives the meter of the current rendering."""

    def metered(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            meter = meter_of()
            meter.tick()
            return meter.take(function(meter, *args, **kwargs))

        return run

    return {name: metered(function) for name, function in _FILTERS.items()}


# On a text, the % of these would format.
_NUMBER_TESTS = ("divisibleby", "even", "odd")


def metered_tests(meter_of: Callable[[], Meter]) -> dict[str, Any]:
    def metered(name: str, function: Any) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(*args: Any) -> Any:
            if name in _NUMBER_TESTS and not all(isinstance(arg, int | float) for arg in args):
                raise jinja2.TemplateError(f"the test {name!r} is for numbers")
            meter_of().read(*args)
            return function(*args)

        return run

    return {name: metered(name, function) for name, function in DEFAULT_TESTS.items()}


# Globals.


class TemplateNamespace(Namespace):
    """Holds what a template changes. Its text does not show its contents, which may hold itself."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise SecurityError(f"a namespace has no place for {name!r}")
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<namespace>"


def make_namespace(*args: Any, **kwargs: Any) -> TemplateNamespace:
    namespace = TemplateNamespace()
    for name, value in dict(*args, **kwargs).items():
        namespace[name] = value
    return namespace


def make_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


def raise_exception(message: Any) -> None:
    raise RaisedError(str(message))


def strftime_now(format: str) -> str:
    if len(format) > 100:
        raise LimitError("asks for a date in a long format")
    return datetime.now().strftime(format)


GLOBALS: dict[str, Callable[..., Any]] = {
    "dict": make_dict,
    "namespace": make_namespace,
    "raise_exception": raise_exception,
    "range": safe_range,
    "strftime_now": strftime_now,
}
