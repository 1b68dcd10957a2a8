"""A short check of the CPU backend against float32 arithmetic: the NumPy reference backend.

Off the serving path, so NumPy is imported here only when the check runs. `benchmarks/accuracy.py`
measures the same over long texts, beside other systems, with the parts of this module.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from headrace.backends.base import SamplingSpec, StepPlan, WantedRow
from headrace.backends.cpu import CpuBackend
from headrace.backends.layout import BLOCK_LEN, DEFAULT_KV_DTYPE, KVLayout
from headrace.engine.load import freq_factors
from headrace.errors import HeadraceError
from headrace.models.registry import build_program
from headrace.models.views import LOGITS, with_logits
from headrace.text.tokenizer import load_tokenizer
from headrace.weights.base import WeightSource
from headrace.weights.open import open_source

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# Few rows at once: their logits are wanted whole.
CHUNK_LEN = 32
Floats: TypeAlias = "npt.NDArray[np.float32]"
Doubles: TypeAlias = "npt.NDArray[np.float64]"

# Abraham Lincoln, Gettysburg, 1863.
TEXT = """\
Four score and seven years ago our fathers brought forth on this continent, a new nation, conceived
in Liberty, and dedicated to the proposition that all men are created equal. Now we are engaged in a
great civil war, testing whether that nation, or any nation so conceived and so dedicated, can long
endure. We are met on a great battle-field of that war. We have come to dedicate a portion of that
field, as a final resting place for those who here gave their lives that that nation might live. It
is altogether fitting and proper that we should do this. But, in a larger sense, we can not dedicate
-- we can not consecrate -- we can not hallow -- this ground. The brave men, living and dead, who
struggled here, have consecrated it, far above our poor power to add or detract. The world will
little note, nor long remember what we say here, but it can never forget what they did here. It is
for us the living, rather, to be dedicated here to the unfinished work which they who fought here
have thus far so nobly advanced."""


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Of `tokens` positions: KL(float32 || CPU backend) in nats, and how often the best token is
    the same."""

    tokens: int
    mean_kl: float
    max_kl: float
    same_best: float


def compare_with_reference(
    path: Path,
    threads: int | None = None,
    *,
    activations: str = "quantized",
    kv_dtype: str = DEFAULT_KV_DTYPE,
    text: str = TEXT,
) -> Accuracy:
    """Run both backends over a text. Raises HeadraceError for a model that has no plain logits."""
    import numpy as np

    from headrace.backends.reference import ReferenceBackend

    source = open_source(path)
    try:
        tokens = load_tokenizer(source.tokenizer, source.config.vocab_size).encode(text)
        tokens = tokens[: source.config.max_model_len]
        reference = ReferenceBackend(source, num_blocks=num_blocks(source, len(tokens)))
        ours = _cpu_backend(
            source,
            kv_bytes=num_blocks(source, len(tokens)) * reference.layout.block_bytes,
            threads=threads,
            activations=activations,
            kv_dtype=kv_dtype,
        )
        kls, num_same = [], 0
        for plan in chunk_plans(reference.layout, tokens):
            truth = reference.logits(plan)
            got = np.array(ours.hidden_states(plan, [LOGITS])[LOGITS], np.float32)
            kls.append(kl_of_rows(truth, got))
            num_same += int((truth.argmax(axis=1) == got.argmax(axis=1)).sum())
        kl = np.concatenate(kls)
        ours.close()
    finally:
        source.close()
    return Accuracy(len(kl), float(kl.mean()), float(kl.max()), num_same / len(kl))


def _cpu_backend(
    source: WeightSource, *, kv_bytes: int, threads: int | None, activations: str, kv_dtype: str
) -> CpuBackend:
    try:
        program = with_logits(build_program(source.config, freq_factors(source)))
    except ValueError as error:
        raise HeadraceError(
            f"The accuracy of {source.name!r} cannot be compared: {error}."
        ) from error
    return CpuBackend.load(
        source,
        program,
        kv_bytes=kv_bytes,
        threads=threads,
        max_step_rows=CHUNK_LEN,
        activations=activations,
        kv_dtype=kv_dtype,
    )


def num_blocks(source: WeightSource, length: int) -> int:
    """Blocks that hold one sequence, whatever the layer groups are."""
    return source.config.num_layers * (length // BLOCK_LEN + 1)


def chunk_plans(
    layout: KVLayout, tokens: Sequence[int], chunk_len: int = CHUNK_LEN
) -> Iterator[StepPlan]:
    """One sequence in chunks, every row wanted; group g has the blocks g, g + groups, ..."""
    groups = len(layout.groups)
    spec = SamplingSpec(temperature=0.0)
    for start in range(0, len(tokens), chunk_len):
        chunk = tokens[start : start + chunk_len]
        end = start + len(chunk)
        count = -(-end // BLOCK_LEN)
        yield StepPlan(
            tokens=array("i", chunk),
            positions=array("i", range(start, end)),
            seq_starts=array("i", [0, len(chunk)]),
            tables=[array("i", range(g, g + count * groups, groups)) for g in range(groups)],
            table_starts=[array("i", [0]) for _ in range(groups)],
            wanted=[WantedRow(row, spec) for row in range(len(chunk))],
        )


def log_softmax(logits: Floats) -> Doubles:
    """Rows of log-probabilities in float64."""
    import numpy as np

    x = logits.astype(np.float64)
    x -= x.max(axis=1, keepdims=True)
    x -= np.log(np.exp(x).sum(axis=1, keepdims=True))
    return x


def kl_of_rows(truth: Floats, system: Floats) -> Doubles:
    """KL(truth || system) in nats, of every row of logits."""
    import numpy as np

    expected = log_softmax(truth)
    kl: Doubles = (np.exp(expected) * (expected - log_softmax(system))).sum(axis=1)
    return kl
