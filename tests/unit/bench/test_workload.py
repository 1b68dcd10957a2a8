"""What a step must read and multiply, against counts by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.bench.workload import Workload, workload_of
from headrace.models.program import Attend, Buffer, Embed, Head, Linear, Norm, Program
from headrace.weights.base import DType, TensorInfo


def tensor(name: str, dtype: DType, *shape: int, num_bytes: int) -> tuple[str, TensorInfo]:
    return name, TensorInfo(name, dtype, shape, num_bytes)


def test_a_tied_head_counts_once_and_an_embedding_alone_not_at_all() -> None:
    tensors = dict(
        [
            tensor("embed", DType.Q8_0, 100, 32, num_bytes=3400),
            tensor("norm", DType.F32, 32, num_bytes=128),
            tensor("q", DType.Q4_1, 64, 32, num_bytes=1280),
            tensor("bias", DType.F32, 64, num_bytes=256),
            tensor("o", DType.BF16, 32, 64, num_bytes=4096),
            tensor("head", DType.F16, 100, 32, num_bytes=6400),
        ]
    )

    def program(head: str) -> Program:
        ops = (
            Embed(-1, 0, "x", "embed", 1.0),
            Norm(0, 0, "h", "x", "norm", 1e-5),
            Linear(0, 0, "q", "h", ("q",), ("bias",)),
            Attend(0, 0, "a", "q", 4, 2, 16, 1.0, 8, 0.0),
            Linear(0, 0, "y", "a", ("o",)),
            Norm(-1, 0, "h", "x", "norm", 1e-5),
            Head(-1, 0, "h", head, 0.0),
        )
        return Program((Buffer("x", 32),), ops, (), (8,), 2, 16, 100)

    untied = workload_of(program("head"), tensors, 128)
    assert untied.weight_bytes == 128 + 1280 + 256 + 4096 + 6400
    assert (untied.integer_ops, untied.float_ops) == (2 * 64 * 32, 2 * 32 * 64)
    assert (untied.head_ops, untied.has_integer_head) == (2 * 100 * 32, False)
    assert untied.attention == ((64, 128, 8),)
    tied = workload_of(program("embed"), tensors, 128)
    assert tied.weight_bytes == 128 + 1280 + 256 + 4096 + 3400
    assert tied.has_integer_head


@given(st.integers(1, 80), st.integers(0, 90))
def test_what_a_prompt_sees_is_what_its_tokens_see(length: int, window: int) -> None:
    work = Workload(0, 0, 0, 0, False, ((64, 10, window), (32, 10, 0)))
    seen = [min(p, window) if window else p for p in range(1, length + 1)]
    assert work.attention_ops(length) == 4 * (64 * sum(seen) + 32 * sum(range(1, length + 1)))
    assert work.kv_bytes(length) == 10 * (seen[-1] + length)
