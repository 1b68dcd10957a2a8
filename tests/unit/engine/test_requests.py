"""What one request asks of the backend and gets told: seeds, positions, history, bans, stops."""

from __future__ import annotations

import msgspec
import pytest

from headrace.backends.base import StepPlan, WantedRow
from headrace.engine.sampling import SamplingParams, mix64
from tests.support.engine_runs import check_preempted, fake_engine, run_alone

PROMPT = [10, 11, 12]


def _wanted(params: SamplingParams, monkeypatch: pytest.MonkeyPatch) -> list[WantedRow]:
    """Every row that a request alone wants; histories as they were at the time."""
    engine = fake_engine(64)
    rows: list[WantedRow] = []

    def submit(plan: StepPlan) -> StepPlan:
        for row in plan.wanted:
            history = None if row.history is None else row.history[:]
            rows.append(WantedRow(row.row, row.spec, output_pos=row.output_pos, history=history))
            rows[-1].prompt_len, rows[-1].banned = row.prompt_len, row.banned
        return plan

    monkeypatch.setattr(engine.backend, "submit", submit)
    engine.add("r", PROMPT, params)
    while engine.has_work():
        engine.step()
    return rows


def test_choice_seeds_are_the_splitmix64_sequence() -> None:
    """The upper 53 bits of splitmix64's published outputs from 0; choice 0 keeps the seed."""
    published = (0xE220_A839_7B1D_CDAF, 0x6E78_9E6A_A1B9_65F4, 0x06C4_5D18_8009_454F)
    assert [mix64(0, i) for i in range(4)] == [0, *(output >> 11 for output in published)]
    assert mix64(7, 0) == 7


def test_a_seed_that_was_drawn_is_reported_and_repeats_the_text() -> None:
    drawn = [run_alone(PROMPT, SamplingParams(max_tokens=9)) for _ in range(4)]
    assert len({record.seeds[0] for record in drawn}) == 4
    for record in drawn:
        again = run_alone(PROMPT, SamplingParams(max_tokens=9, seed=record.seeds[0]))
        assert again == record


def test_a_negative_seed_is_its_64_bits() -> None:
    record = run_alone(PROMPT, SamplingParams(max_tokens=1, seed=-2))
    assert record.seeds == [2**64 - 2]


def test_rows_carry_position_and_history(monkeypatch: pytest.MonkeyPatch) -> None:
    params = SamplingParams(max_tokens=5, seed=1, ignore_eos=True, presence_penalty=0.5)
    rows = _wanted(params, monkeypatch)
    output = run_alone(PROMPT, params).choices[0].token_ids
    assert [row.output_pos for row in rows] == [0, 1, 2, 3, 4]
    assert all(row.prompt_len == 3 for row in rows)
    histories = [None if row.history is None else list(row.history) for row in rows]
    assert histories == [PROMPT + output[:i] for i in range(5)]


def test_stop_ids_are_banned_for_min_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    params = SamplingParams(max_tokens=5, min_tokens=2, seed=1, stop_token_ids=(9, 5))
    bans = [row.banned for row in _wanted(params, monkeypatch)]
    assert bans[:3] == [(1, 5, 9), (1, 5, 9), ()]


@pytest.mark.parametrize("min_tokens", [0, 4])
def test_a_stop_string_cuts_the_text_where_it_begins(min_tokens: int) -> None:
    """Every token but the special ones is a letter. Without a match, what was held back goes out at
    the end; before min_tokens nothing matches."""
    num_stopped = 0
    for seed in range(12):
        params = SamplingParams(max_tokens=30, seed=seed, ignore_eos=True)
        whole = run_alone(PROMPT, params).choices[0]
        text = whole.text
        first = sum(token >= 2 for token in whole.token_ids[: max(0, min_tokens - 1)])
        for stop in (text[9], text[4:7], text[-1] + "a", text[1:3]):
            stopping = SamplingParams(
                max_tokens=30, min_tokens=min_tokens, seed=seed, ignore_eos=True, stop=(stop,)
            )
            choice = run_alone(PROMPT, stopping).choices[0]
            at = text.find(stop, first)
            assert choice.text == (text if at < 0 else text[:at])
            assert choice.stop_reason == (None if at < 0 else stop)
            num_stopped += at >= 0
    assert 0 < num_stopped < 48


def test_prompt_logprobs_come_once_whatever_is_recomputed() -> None:
    params = SamplingParams(max_tokens=60, seed=3, ignore_eos=True, prompt_logprobs=1)
    check_preempted(params)
    check_preempted(msgspec.structs.replace(params, prompt_logprobs_from=17))
