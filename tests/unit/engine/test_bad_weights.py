"""Weights that hold anything: a request fails alone, nothing crashes or hangs, no block is lost."""

from __future__ import annotations

import math
import random
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from headrace import _native
from headrace.engine.base import EngineConfig
from headrace.engine.engine import Engine
from headrace.engine.sampling import SamplingParams
from headrace.weights.base import DType
from tests.support.cpu_runs import load
from tests.support.engine_runs import Recorder, RequestRecord
from tests.support.fake_model import FakeTokenizer
from tests.support.make_model import make_gguf
from tests.support.sources import MemorySource, memory_source

VOCAB = FakeTokenizer.vocab_size
POISON = 5
EXTREMES = (math.nan, math.inf, -math.inf, 3e38, -3e38, 1e-45)

Asked = dict[str, tuple[list[int], SamplingParams]]


def _run(source: MemorySource, asked: Asked, *, isa: str, chunk: int) -> dict[str, RequestRecord]:
    backend = load(source, num_blocks=40, threads=2, isa=isa, max_step_rows=64)
    config = EngineConfig(max_num_seqs=8, max_step_tokens=chunk)
    engine = Engine(backend, FakeTokenizer(), 200, config)
    recorder = Recorder()
    for name, (prompt, params) in asked.items():
        engine.add(name, prompt, params)
    for _ in range(500):
        if not engine.has_work():
            break
        recorder.take(engine.step())
        engine.check()
    assert not engine.has_work()
    backend.close()
    return recorder.requests


def _source(tmp_path: Path, family: str, dtype: DType) -> MemorySource:
    made = make_gguf(
        tmp_path / "model.gguf",
        family=family,
        dtype=dtype,
        tokenizer=None,
        vocab_size=VOCAB,
        tied_head=False,
        window=20,
    )
    return memory_source(made)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_poisoned_token_fails_the_requests_that_hold_it(tmp_path: Path, value: float) -> None:
    """And no other: the requests beside them get what they get alone."""
    source = _source(tmp_path, "llama", DType.F32)
    table = source.made["token_embd.weight"]
    row_bytes = len(table.data) // VOCAB
    data = bytearray(table.data)
    for at in range(POISON * row_bytes, (POISON + 1) * row_bytes, 4):
        struct.pack_into("<f", data, at, value)
    source = MemorySource(
        source.config, {**source.made, table.name: replace(table, data=bytes(data))}
    )
    params = SamplingParams(
        n=3, max_tokens=20, seed=4, ignore_eos=True, prompt_logprobs=1, logit_bias={POISON: -100.0}
    )
    healthy: Asked = {f"healthy{i}": ([7 + i] * (9 + 14 * i), params) for i in range(2)}
    prompt = [9] * 20 + [POISON] + [9] * 20
    # One fails at a prompt logprob, one at its first token.
    sick: Asked = {
        "sick": (prompt, params),
        "sick as well": (prompt[:21], SamplingParams(max_tokens=20, seed=4)),
    }
    isa = _native.isa()
    together = _run(source, {**sick, **healthy}, isa=isa, chunk=16)
    assert together["sick"].failed
    assert together["sick as well"].failed
    for name, asked in healthy.items():
        assert not together[name].failed
        assert together[name] == _run(source, {name: asked}, isa=isa, chunk=64)[name]


def _damaged(source: MemorySource, rng: random.Random) -> MemorySource:
    """Some tensors with random bytes, extreme floats, or the same byte throughout."""
    made = dict(source.made)
    for name in rng.sample(sorted(made), rng.choice([1, 1, 3, 15])):
        data = bytearray(made[name].data)
        kind = rng.randrange(4)
        if kind == 0:
            data[:] = rng.randbytes(len(data))
        elif kind == 1:
            data[:] = bytes([rng.choice([0x00, 0x7B, 0x7C, 0x7F, 0x80, 0xFF])]) * len(data)
        else:
            for _ in range(rng.choice([1, 100])):
                struct.pack_into("<f", data, rng.randrange(len(data) - 3), rng.choice(EXTREMES))
        made[name] = replace(made[name], data=bytes(data))
    return MemorySource(source.config, made)


def _any_params(rng: random.Random, index: int) -> SamplingParams:
    return SamplingParams(
        n=rng.choice([1, 3]),
        max_tokens=6,
        seed=index,
        ignore_eos=True,
        temperature=rng.choice([0.0, 0.01, 1.0, 100.0]),
        top_p=rng.choice([0.0, 0.9, 1.0]),
        top_k=rng.choice([0, 3]),
        min_p=rng.choice([0.0, 0.1]),
        repetition_penalty=rng.choice([0.01, 1.0, 100.0]),
        logprobs=rng.choice([None, 3]),
        prompt_logprobs=rng.choice([None, 1]),
    )


@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        ("llama", DType.F32),
        ("llama", DType.Q4_1),
        ("qwen2", DType.F16),
        ("qwen3", DType.Q8_0),
        ("gemma3", DType.Q6_K),
        ("gemma3", DType.BF16),
    ],
)
def test_damaged_weights_end_every_request(tmp_path: Path, family: str, dtype: DType) -> None:
    """With a result or as failed, the same from every table and whatever the chunks."""
    source = _source(tmp_path, family, dtype)
    num_failed = num_ok = 0
    for seed in range(14):
        rng = random.Random(seed)
        damaged = _damaged(source, rng)
        asked: Asked = {}
        for i in range(3):
            prompt = [rng.randrange(2, VOCAB) for _ in range(rng.choice([3, 17, 30]))]
            asked[str(i)] = (prompt, _any_params(rng, i))
        first = _run(damaged, asked, isa=_native.isas()[0], chunk=64)
        second = _run(damaged, asked, isa="scalar", chunk=16)
        for name, record in first.items():
            num_failed += record.failed
            num_ok += not record.failed
            assert record.failed == second[name].failed
            assert record.failed or record == second[name]
    assert num_failed > 0
    assert num_ok > 0
