"""Strict JSON: the same values as Python's decoder, and what that one lets pass is refused."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.api.json_body import LARGE_BYTES, MAX_DEPTH, decode
from headrace.errors import RequestError

ANY: msgspec.json.Decoder[Any] = msgspec.json.Decoder()

SCALARS = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.text()
NAMES = st.text(max_size=12)
VALUES = st.recursive(
    SCALARS, lambda v: st.lists(v, max_size=3) | st.dictionaries(NAMES, v, max_size=3)
)
OBJECTS = st.dictionaries(NAMES, VALUES, max_size=5)


def refuse(body: bytes) -> RequestError:
    with pytest.raises(RequestError) as caught:
        decode(body, ANY)
    assert caught.value.status == 400
    return caught.value


@given(OBJECTS, st.booleans())
def test_values_are_those_of_the_json_module(value: dict[str, Any], escaped: bool) -> None:
    body = json.dumps(value, ensure_ascii=escaped).encode()
    assert decode(body, ANY) == (value, value)


@given(OBJECTS)
def test_large_bodies_are_read_alike(value: dict[str, Any]) -> None:
    """Long strings are cut out of the second value only."""
    tricky = ['\\"' * 300, "\\" * 301, '"' * 300, "a" * LARGE_BYTES, ',[{"' * 100]
    value = {"tricky": tricky, **value}
    first, fields = decode(json.dumps(value).encode(), ANY)
    assert first == value
    assert set(fields) == set(value)
    for name, item in value.items():
        if isinstance(item, int | bool | None):
            assert fields[name] == item


@given(OBJECTS, st.text(max_size=10), st.booleans(), st.booleans())
def test_a_key_given_twice_is_refused(
    value: dict[str, Any], key: str, nested: bool, large: bool
) -> None:
    twice = f"{{{json.dumps(key)}: 1, {json.dumps(key, ensure_ascii=False)}: 2}}"
    inner = twice if nested else "0"
    rest = "" if nested else twice[1:-1] + ", "
    padding = "x" * LARGE_BYTES if large else ""
    body = f'{{{rest}"~a": {inner}, "~b": "{padding}"}}'.encode()
    assert "twice" in str(refuse(body))


@pytest.mark.parametrize("opening", ["[", '{"a":'])
@pytest.mark.parametrize("depth", [MAX_DEPTH - 1, MAX_DEPTH, 500, 100_000])
def test_nesting(opening: str, depth: int) -> None:
    closing = "]" if opening == "[" else "}"
    body = f'{{"x":{opening * depth}1{closing * depth}}}'.encode()
    if depth < MAX_DEPTH:
        decode(body, ANY)
    else:
        assert "deeper" in str(refuse(body))


def test_many_shallow_lists_are_no_nesting() -> None:
    decode(json.dumps({"x": [[]] * 1000}).encode(), ANY)


def test_brackets_in_strings_are_no_nesting() -> None:
    decode(json.dumps({"x": "[" * 1000, "y": "{" * 100_000}).encode(), ANY)


def test_commas_in_long_strings_are_no_values() -> None:
    decode(json.dumps({"x": "," * 1_000_000}).encode(), ANY)
    refuse(json.dumps({"x": [1] * 600_000}).encode())


def test_long_names_are_refused_in_large_bodies() -> None:
    refuse(json.dumps({"k" * 300: 1, "x": "y" * LARGE_BYTES}).encode())


@pytest.mark.parametrize(
    "body", [b'{"a": "' + b"x" * LARGE_BYTES, b'{"a": "' + b"x" * LARGE_BYTES + b'\\"}']
)
def test_a_string_without_end(body: bytes) -> None:
    refuse(body)


@given(st.binary(max_size=60))
def test_random_bytes(data: bytes) -> None:
    """An object or a RequestError, nothing else."""
    try:
        value, _ = decode(data, ANY)
    except RequestError:
        return
    assert isinstance(value, dict)


class Inner(msgspec.Struct):
    """For the paths below."""

    c: int


class Outer(msgspec.Struct):
    """For the paths below."""

    a: list[Inner]
    b: dict[int, float] = {}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "a"),
        ({"a": 1}, "a"),
        ({"a": [{}]}, "a.0.c"),
        ({"a": [{"c": 1}, {"c": "x"}]}, "a.1.c"),
        ({"a": [], "b": {"x": 1}}, "b"),
        ({"a": [], "b": {"1": "x"}}, "b"),
    ],
)
def test_the_field_at_fault_is_named(body: object, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        decode(json.dumps(body).encode(), msgspec.json.Decoder(Outer))
    assert caught.value.param == param
    assert caught.value.code == "invalid_value"
