"""Builds a StepPlan from the scheduler's rows: values only, everything a backend needs."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from headrace.backends.base import StepPlan, WantedRow
from headrace.engine.request import SequenceState
from headrace.engine.scheduler import Decision, ScheduledRows
from headrace.engine.step_time import StepLoad


class WantedEntry(msgspec.Struct, frozen=True, gc=False):
    """What the wanted row w of a plan is for: a sample of `seq` (as choice `choice` of its request)
    or the logprob of prompt position `prompt_pos` (>= 0)."""

    seq: SequenceState
    choice: int
    prompt_pos: int = -1


@dataclass(slots=True)
class BuiltStep:
    """A plan, the rows and copies of each sequence, and what each wanted row is for."""

    plan: StepPlan
    rows: list[tuple[SequenceState, int]]
    entries: list[WantedEntry]
    copies: list[tuple[SequenceState, list[tuple[int, int]]]]


def note_scheduled(decision: Decision, rows: Sequence[tuple[SequenceState, int]]) -> None:
    """Of what was admitted more may have been found than when the step was planned: let the
    decision say which rows do run. They are not computed yet."""
    decision.rows = [ScheduledRows(seq.key, num_rows) for seq, num_rows in rows]
    decision.load = StepLoad()
    for seq, num_rows in rows:
        decision.load.add(seq.computed, num_rows)


def build_step(num_groups: int, rows: Sequence[tuple[SequenceState, int]]) -> BuiltStep:
    """`rows`: (sequence, number of rows from its `computed` position), tables already grown."""
    plan = StepPlan(
        tokens=array("i"),
        positions=array("i"),
        seq_starts=array("i", [0]),
        tables=[array("i") for _ in range(num_groups)],
        table_starts=[array("i") for _ in range(num_groups)],
    )
    built = BuiltStep(plan, list(rows), [], [])
    for seq, num_rows in rows:
        _add_sequence(built, seq, num_rows)
    return built


def _add_sequence(built: BuiltStep, seq: SequenceState, num_rows: int) -> None:
    plan, start, first_row = built.plan, seq.computed, len(built.plan.tokens)
    end = start + num_rows
    if num_rows == 1:  # a decode, as most are
        plan.tokens.append(seq.tokens[start])
        plan.positions.append(start)
    else:
        plan.tokens.extend(seq.tokens[start:end])
        plan.positions.extend(range(start, end))
    plan.seq_starts.append(first_row + num_rows)
    for group, table in enumerate(seq.tables.tables):
        plan.table_starts[group].append(len(plan.tables[group]))
        plan.tables[group].extend(table)
    if seq.tables.pending_copies:
        copies = seq.tables.take_copies()
        plan.copies.extend(copies)
        built.copies.append((seq, copies))
    if seq.request.prompt_spec is not None:
        _want_prompt_logprobs(built, seq, first_row, end)
    if end == len(seq.tokens) and len(seq.tokens) < seq.request.max_len:
        for choice in range(seq.choice, seq.choice + 1 + seq.to_fork):
            _want_sample(built, seq, first_row + num_rows - 1, choice)


def _want_prompt_logprobs(built: BuiltStep, seq: SequenceState, first_row: int, end: int) -> None:
    """Rows at prompt positions p whose next token's logprob was not sent yet."""
    request, spec = seq.request, seq.request.prompt_spec
    if spec is None or seq.choice != 0:
        return
    first = max(seq.computed, request.prompt_done - 1, 0)
    for position in range(first, min(end, request.prompt_len - 1)):
        target = seq.tokens[position + 1]
        row = first_row + position - seq.computed
        built.plan.wanted.append(WantedRow(row, spec, sample=False, target=target))
        built.entries.append(WantedEntry(seq, 0, position + 1))


def _want_sample(built: BuiltStep, seq: SequenceState, row: int, choice: int) -> None:
    request = seq.request
    spec = seq.spec if choice == seq.choice else request.params.spec(request.seeds[choice])
    num_output = seq.num_output
    banned: tuple[int, ...] = ()
    if num_output < request.params.min_tokens:
        banned = tuple(sorted(request.stop_ids))
    built.plan.wanted.append(
        WantedRow(
            row,
            spec,
            output_pos=num_output,
            history=seq.tokens if spec.needs_history else None,
            prompt_len=request.prompt_len,
            banned=banned,
        )
    )
    built.entries.append(WantedEntry(seq, choice))
