"""Frames: every one survives the wire, and nothing else gets through."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.base import RequestOptions
from headrace.engine.sampling import SamplingParams
from headrace.kv.radix.base import Retention
from headrace.worker import frames
from headrace.worker.frames import (
    Abandon,
    Cancel,
    Delta,
    Drain,
    Failed,
    Finished,
    Hello,
    LoadFailed,
    Progress,
    PromptLogprobs,
    Ready,
    Submit,
    TokenLogprob,
)

TO_WORKER = [Submit, Cancel, Abandon, Drain]
TO_GATEWAY = [Hello, Ready, LoadFailed, Delta, PromptLogprobs, Finished, Failed, Progress]


PARAMS = st.builds(
    SamplingParams,
    n=st.integers(1, 16),
    seed=st.none() | st.integers(0, (1 << 64) - 1),
    stop=st.lists(st.text(), max_size=3).map(tuple),
    logit_bias=st.dictionaries(st.integers(0, 9), st.floats(-1, 1), max_size=3),
)
SCALARS: dict[object, st.SearchStrategy[Any]] = {
    int: st.integers(-(1 << 63), (1 << 63) - 1),
    float: st.floats(allow_nan=False),
    str: st.text(max_size=5),
    bytes: st.binary(max_size=5),
    type(None): st.none(),
    SamplingParams: PARAMS,
    RequestOptions: st.builds(
        RequestOptions,
        priority=st.integers(-9, 9),
        salt=st.text(max_size=5),
        retention=st.builds(Retention, st.integers(0, 100), st.none() | st.floats(0, 9)),
    ),
}


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a field's type."""
    if hint in SCALARS:
        return SCALARS[hint]
    arguments = get_args(hint)
    if get_origin(hint) is list:
        return st.lists(values_of(arguments[0]), max_size=3)
    if get_origin(hint) is dict:
        return st.dictionaries(*map(values_of, arguments), max_size=3)
    if get_origin(hint) is tuple:
        return st.tuples(*map(values_of, arguments))
    if arguments:
        return st.one_of(*map(values_of, arguments))
    return structs_of(hint)


def structs_of(kind: Any) -> st.SearchStrategy[Any]:
    hints = get_type_hints(kind)
    return st.builds(kind, **{name: values_of(hints[name]) for name in kind.__struct_fields__})


def examples(kinds: Sequence[object]) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.one_of(*map(structs_of, kinds)), max_size=5)


@given(examples(TO_WORKER))
def test_frames_to_the_worker_survive(batch: list[Any]) -> None:
    assert frames.decode_to_worker(frames.encode(batch)) == batch


@given(examples(TO_GATEWAY))
def test_frames_to_the_gateway_survive(batch: list[Any]) -> None:
    assert frames.decode_to_gateway(frames.encode(batch)) == batch


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_or_frames(data: bytes) -> None:
    for decode in (frames.decode_to_worker, frames.decode_to_gateway):
        try:
            batch = decode(data)
        except msgspec.DecodeError:
            continue
        assert all(type(frame) in TO_WORKER + TO_GATEWAY for frame in batch)


@given(examples(TO_GATEWAY), st.integers(0, 10_000), st.integers(0, 255))
def test_damaged_frames_are_refused_or_frames(batch: list[Any], at: int, value: int) -> None:
    data = bytearray(frames.encode(batch))
    data[at % len(data)] = value
    with contextlib.suppress(msgspec.DecodeError):
        frames.decode_to_gateway(bytes(data))


def test_every_truncation_is_refused() -> None:
    entry = TokenLogprob(1, "a", b"a", -0.5, [(1, "a", b"a", -0.5)])
    batch = [PromptLogprobs(request_id="r", start=0, entries=[None, entry])]
    data = frames.encode(batch)
    for end in range(len(data)):
        with pytest.raises(msgspec.DecodeError):
            frames.decode_to_gateway(data[:end])


def test_frames_of_the_other_direction_are_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        frames.decode_to_gateway(frames.encode([Cancel(request_id="r")]))
    with pytest.raises(msgspec.ValidationError):
        frames.decode_to_worker(frames.encode([Hello(version=1, pid=1)]))
