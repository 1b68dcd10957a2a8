"""The load generator against servers that do as they are told, also the worst."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest

from headrace.bench.load import run as run_module
from headrace.bench.load.run import LoadPlan, LoadRun, run_load
from headrace.bench.load.shapes import Shape, poisson
from headrace.bench.load.stats import Objectives, gaps_s, summarize
from headrace.errors import HeadraceError
from headrace.urls import Target, parse_url
from tests.support.scripted_server import (
    ScriptedServer,
    answer,
    chunk,
    event,
    http,
    stream_end,
    stream_head,
    token,
)

PROBE = 1  # the generator asks one completion before the run


def load(server: ScriptedServer, shapes: list[Shape], **options: Any) -> LoadRun:
    return run_load(parse_url(server.url), LoadPlan(shapes, **options))


def kinds(run: LoadRun) -> list[str]:
    return [outcome.error for outcome in run.outcomes]


def test_an_open_loop_never_waits_for_answers() -> None:
    """No answer begins before all requests are there: a loop that waited would never end."""
    count = 20
    all_here = threading.Barrier(count)

    def script(number: int, body: dict[str, Any]) -> Iterator[bytes]:
        if number >= PROBE:
            all_here.wait(60)
        yield from answer(body)

    shapes = poisson([Shape(0.0, 5, 3)] * count, 1000.0, seed=1)
    with ScriptedServer(script) as server:
        run = load(server, shapes)
    assert kinds(run) == [""] * count
    assert [o.scheduled_s for o in run.outcomes] == [shape.at_s for shape in shapes]
    assert all(o.late_s is not None and o.late_s >= 0 for o in run.outcomes)
    assert summarize(run, Objectives())["most_at_once"] == count


@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_closed_loop_has_so_many_at_once_and_no_more(concurrency: int) -> None:
    with ScriptedServer(lambda _, body: answer(body)) as server:
        run = load(server, [Shape(0.0, 4, 6)] * 12, concurrency=concurrency)
    assert kinds(run) == [""] * 12
    assert summarize(run, Objectives())["most_at_once"] <= concurrency
    assert len(server.bodies) == PROBE + 12


def test_counts_and_percentiles_are_those_of_what_was_sent() -> None:
    shapes = [Shape(0.0, 3 + index, 2 + index) for index in range(9)]
    with ScriptedServer(lambda _, body: answer(body)) as server:
        run = load(server, shapes, concurrency=2, seed=4)
    sent = server.bodies[PROBE:]
    assert sorted(body["max_tokens"] for body in sent) == [s.output_len for s in shapes]
    assert all(body["stream"] and body["ignore_eos"] for body in sent)
    assert len({body["prompt"] for body in sent}) == len(sent)
    summary = summarize(run, Objectives())
    assert summary["total_input_tokens"] == sum(shape.prompt_len for shape in shapes)
    assert summary["total_output_tokens"] == sum(shape.output_len for shape in shapes)
    for key, values in (
        ("ttft_ms", [outcome.ttft_s for outcome in run.outcomes]),
        ("tpot_ms", [outcome.tpot_s for outcome in run.outcomes]),
        ("e2e_ms", [outcome.e2e_s for outcome in run.outcomes]),
        ("itl_ms", gaps_s(run.outcomes)),
    ):
        exact = np.array(values, np.float64) * 1e3
        for percent in (50, 90, 99):
            assert summary[key][f"p{percent}"] == pytest.approx(np.percentile(exact, percent))
        assert summary[key]["max"] == exact.max()
        assert summary[key]["mean"] == pytest.approx(exact.mean())
    for outcome in run.outcomes:
        assert len(outcome.token_times) == outcome.output_tokens == outcome.output_len
        assert outcome.end_s is not None
        times = [outcome.scheduled_s, *outcome.token_times, outcome.end_s]
        assert all(a <= b for a, b in itertools.pairwise(times))


def test_the_same_seed_sends_the_same_and_equal_blocks_are_equal_text() -> None:
    shapes = [Shape(0.0, 1100, 1, (7, 8, 9)), Shape(0.0, 700, 1, (7, 5)), Shape(0.0, 9, 1)]
    seen = []
    for _ in range(2):
        with ScriptedServer(lambda _, body: answer(body)) as server:
            load(server, shapes, concurrency=1, seed=3)
        seen.append([body["prompt"].split() for body in server.bodies[PROBE:]])
    assert seen[0] == seen[1]
    first, second, third = seen[0]
    assert [len(words) for words in seen[0]] == [1100, 700, 9]
    assert first[:512] == second[:512] != first[512:1024]
    assert first[512:700] != second[512:]
    assert first[:9] != third


def test_prompts_are_as_long_as_the_server_counts_tokens() -> None:
    """A server to which every word is two tokens gets half as many words."""

    def script(_: int, body: dict[str, Any]) -> Iterator[bytes]:
        yield stream_head() + token("x")
        yield stream_end(2 * len(body["prompt"].split()), 1)

    with ScriptedServer(script) as server:
        run = load(server, [Shape(0.0, 100, 1)], concurrency=1)
    assert run.outcomes[0].prompt_tokens == 100


def error_event(_: dict[str, Any]) -> Iterator[bytes]:
    yield stream_head() + token("a")
    yield event({"error": {"message": "out of memory", "type": "server_error"}})


BAD: dict[str, tuple[str, Callable[[dict[str, Any]], Iterable[bytes]]]] = {
    "HTTP 429": ("slow down", lambda _: [http(b'{"error": {"message": "slow down"}}', "429 No")]),
    "HTTP 500": ("<h1>boom</h1>", lambda _: [http(b"<h1>boom</h1>", "500 No", "text/html")]),
    "ended early": ("stream ended", lambda _: [stream_head(), token("a")]),
    "bad answer": ("no HTTP", lambda _: [b"SSH-2.0-OpenSSH_9\r\n"]),
    "bad answer ": ("out of memory", error_event),
    "bad answer  ": ("no stream of events", lambda _: [http(b"{}")]),
    "bad answer   ": ("no chunk", lambda _: [stream_head(), chunk(b"data: {nonsense\n\n")]),
    "bad answer    ": ("no chunk", lambda _: [stream_head(), event({"choices": 3})]),
    "bad answer     ": ("headers", lambda _: [b"HTTP/1.1 200 OK\r\nA: " + b"x" * 200_000]),
    "ended early ": ("without an answer", lambda _: []),
}


@pytest.mark.parametrize("kind", BAD)
def test_what_goes_wrong_is_counted_by_kind_and_the_rest_goes_on(kind: str) -> None:
    message, bad = BAD[kind]

    def script(number: int, body: dict[str, Any]) -> Any:
        return bad(body) if number == PROBE + 1 else answer(body)

    with ScriptedServer(script) as server:
        run = load(server, [Shape(0.0, 5, 3)] * 4, concurrency=1)
    assert kinds(run) == ["", kind.strip(), "", ""]
    summary = summarize(run, Objectives(e2e_ms=1e9))
    assert (summary["completed"], summary["errors"]) == (3, {kind.strip(): 1})
    assert message in summary["error_examples"][kind.strip()]
    assert summary["good_share"] == 0.75


def test_a_request_that_never_ends_times_out() -> None:
    forever = threading.Event()

    def script(number: int, body: dict[str, Any]) -> Iterator[bytes]:
        if number == PROBE:
            yield stream_head() + token("a")
            forever.wait(30)
        yield from answer(body)

    with ScriptedServer(script) as server:
        run = load(server, [Shape(0.0, 5, 2)] * 2, concurrency=1, timeout_s=0.5)
        forever.set()
    assert kinds(run)[0] == "timeout"
    assert len(run.outcomes[0].token_times) == 1


def test_a_server_that_dies_midway_leaves_what_was_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_module, "PATIENCE_S", 0.3)
    monkeypatch.setattr(run_module, "PAUSE_S", 0.05)
    with ScriptedServer(lambda _, body: answer(body)) as server:

        def script(number: int, body: dict[str, Any]) -> Iterator[bytes]:
            if number == PROBE + 5:
                server.close()
                return
            yield from answer(body)

        server.script = script
        url = server.url
        run = run_load(parse_url(url), LoadPlan([Shape(0.0, 5, 3)] * 1000, concurrency=1))
    assert kinds(run)[:6] == [""] * 5 + ["ended early"]
    assert set(kinds(run)[6:]) == {"connection refused"}
    assert len(run.outcomes) < 1000
    assert run.stopped.startswith("The server has refused every connection for")
    assert summarize(run, Objectives())["completed"] == 5


def test_without_usage_every_piece_counts_as_a_token() -> None:
    def script(_: int, __: dict[str, Any]) -> Iterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
        for text in ("a", "", "b"):
            yield b'data: {"choices": [{"delta": {"content": "%s"}}]}\r\n\r\n' % text.encode()
        yield b": a comment\n\ndata: [DONE]\n\n"

    with ScriptedServer(script) as server:
        run = load(server, [Shape(0.0, 5, 3)], concurrency=1, chat=True)
    assert kinds(run) == [""]
    assert run.outcomes[0].output_tokens == 2
    assert server.heads[0].startswith("POST /v1/chat/completions HTTP/1.1\r\n")
    assert server.bodies[1]["messages"][0]["role"] == "user"


def test_the_key_is_sent_and_a_chosen_model_is_asked() -> None:
    with ScriptedServer(lambda _, body: answer(body)) as server:
        target = parse_url(server.url + "/v1/", "secret")
        run_load(target, LoadPlan([Shape(0.0, 5, 1)], 1, model="mine", ignore_eos=False))
    assert "\r\nAuthorization: Bearer secret" in server.heads[0]
    assert server.bodies[0]["model"] == "mine"
    assert "ignore_eos" not in server.bodies[0]


@pytest.mark.parametrize(
    ("models", "message"),
    [
        (b"SSH-2.0\r\n", "does not speak HTTP; is it a server of models?"),
        (b"", "does not speak HTTP"),
        (http(b"nothing", "404 Not Found"), r"has no /v1/models \(status 404\)"),
        (http(b'{"data": [{"name": 1}]}'), r"has no /v1/models \(status 200\)"),
        (http(b"{}", "401 No"), "wants a key; give --api-key"),
        (http(b'{"data": []}'), "has no model; name one with --model"),
    ],
)
def test_a_server_that_is_none_is_told_before_the_run(models: bytes, message: str) -> None:
    with (
        ScriptedServer(lambda _, body: answer(body), models) as server,
        pytest.raises(HeadraceError, match=message),
    ):
        load(server, [Shape(0.0, 5, 3)])


def test_a_first_request_that_fails_ends_it() -> None:
    body = b'{"error": {"message": "no such model."}}'
    with (
        ScriptedServer(lambda _, __: [http(body, "404 Not Found")]) as server,
        pytest.raises(HeadraceError, match=r"HTTP 404, no such model; is it the right --model\?$"),
    ):
        load(server, [Shape(0.0, 5, 3)], model="other")


def test_a_refusal_that_says_nothing_is_one_sentence() -> None:
    with (
        ScriptedServer(lambda _, __: [http(b"", "302 Found")]) as server,
        pytest.raises(HeadraceError, match=r"^The first request failed: HTTP 302\.$"),
    ):
        load(server, [Shape(0.0, 5, 3)])


def test_no_server_is_one_sentence() -> None:
    with ScriptedServer(lambda _, body: answer(body)) as server:
        target = parse_url(server.url)
    with pytest.raises(HeadraceError, match=r"cannot be reached \(.*\); is the server running\?"):
        run_load(target, LoadPlan([Shape(0.0, 5, 3)]))


@pytest.mark.parametrize(
    "url",
    ["", "localhost:8000", "ftp://x", "http://", "http://x:99999", "http://x:y", "http://[::1",
     "http://a b", "http://x\r\nHost: y", "http://x:0", "http://ü"],
)  # fmt: skip
def test_a_bad_url_is_one_sentence(url: str) -> None:
    with pytest.raises(HeadraceError, match=r"is no URL.*http://127\.0\.0\.1:8000"):
        parse_url(url)


def test_urls_and_keys() -> None:
    found = parse_url("https://models.example/base/v1/", "k")
    expected = Target(
        "https://models.example/base/v1/",
        "models.example",
        443,
        True,
        "/base",
        "models.example",
        "k",
    )
    assert found == expected
    assert parse_url("http://[::1]:80").host == "::1"
    with pytest.raises(HeadraceError, match="no header can carry"):
        parse_url("http://x", "a\r\nb")
