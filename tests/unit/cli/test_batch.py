"""`headrace batch`: the files, resuming, failures, and the whole verb on a tiny model."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.batch_file import (
    BatchInput,
    BatchRunner,
    answered_ids,
    open_output,
    read_input,
)
from headrace.errors import HeadraceError
from tests.unit.cli.conftest import Cli, environment

COMPLETIONS = "/v1/completions"


def line(custom_id: str, **body: object) -> str:
    return json.dumps({"custom_id": custom_id, "url": COMPLETIONS, "body": {"model": "m", **body}})


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{text}\n" for text in lines), encoding="utf-8")
    return path


def answers(path: Path) -> dict[str, Any]:
    # Not splitlines: a text may hold what Unicode calls the end of a line.
    found = [json.loads(text) for text in path.read_bytes().split(b"\n") if text]
    assert len({answer["custom_id"] for answer in found}) == len(found)
    return {answer["custom_id"]: answer["response"] for answer in found}


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("{", "line 2 is not JSON"),
        ("[" * 100_000, "line 2 is not JSON"),
        ("[]", "not a JSON object"),
        ('{"url": "/v1/completions", "body": {}}', "custom_id must be a text"),
        ('{"custom_id": 1, "url": "/v1/completions", "body": {}}', "custom_id must be a text"),
        ('{"custom_id": "b", "url": "/v1/embeddings", "body": {}}', "url must be one of"),
        ('{"custom_id": "b", "url": "/v1/completions", "method": "GET"}', "method must be POST"),
        ('{"custom_id": "b", "url": "/v1/completions"}', "body must be a JSON object"),
        (line("b", stream=True), "cannot stream"),
        (line("\ud800"), "half of a surrogate pair"),
        (line("a"), "'a' appears twice"),
        ('{"custom_id": "b", "url": "/v1/completions", "body": {}}', "body names no model"),
    ],
)
def test_a_bad_line_is_named_before_anything_runs(tmp_path: Path, bad: str, message: str) -> None:
    path = write(tmp_path / "in.jsonl", line("a"), bad)
    with pytest.raises(HeadraceError, match="line 2") as caught:
        read_input(path, None, frozenset())
    assert message in str(caught.value)


def test_input_counts_what_is_left(tmp_path: Path) -> None:
    path = write(tmp_path / "in.jsonl", line("a"), "", line("b"), line("c", model="other"))
    work = read_input(path, None, frozenset({"c"}))
    assert (work.num_lines, work.num_left, work.models) == (3, 2, frozenset({"m"}))
    work.served_names = {"m": "served"}
    assert [(i, json.loads(body)["model"]) for i, _, body in work.requests()] == [
        ("a", "served"),
        ("b", "served"),
    ]


def test_missing_input_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(HeadraceError, match="Cannot read"):
        read_input(tmp_path / "none.jsonl", None, frozenset())


def answer(custom_id: str) -> bytes:
    return json.dumps({"id": "batch_req_x", "custom_id": custom_id, "response": {}}).encode()


@pytest.mark.parametrize("num_bytes", [1, 9, 40])
def test_a_torn_last_answer_is_taken_away(tmp_path: Path, num_bytes: int) -> None:
    path = tmp_path / "out.jsonl"
    whole = answer("a") + b"\n" + answer("b") + b"\n"
    path.write_bytes(whole + answer("c")[:num_bytes])
    assert answered_ids(path, tmp_path / "in.jsonl") == {"a", "b"}
    assert path.read_bytes() == whole
    assert answered_ids(tmp_path / "none.jsonl", path) == frozenset()


@pytest.mark.parametrize(
    "content", [b"my precious notes\n", b"my precious notes", b'{"custom_id": "a"}\n', b"\xff\n"]
)
def test_a_file_that_is_no_output_is_not_touched(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(content)
    with pytest.raises(HeadraceError, match="no answer of a batch"):
        answered_ids(path, tmp_path / "in.jsonl")
    assert path.read_bytes() == content


def test_the_input_a_folder_and_a_device_are_no_output(tmp_path: Path) -> None:
    path = write(tmp_path / "in.jsonl", line("a"))
    with pytest.raises(HeadraceError, match="is the input"):
        answered_ids(path, path)
    for odd in (tmp_path, Path("/dev/full")):
        with pytest.raises(HeadraceError, match="no regular file"):
            answered_ids(odd, path)
    with pytest.raises(HeadraceError, match=r"Cannot write .*: No such file or directory"):
        open_output(tmp_path / "nowhere" / "out.jsonl")


def test_an_input_without_a_request_is_named(tmp_path: Path) -> None:
    with pytest.raises(HeadraceError, match="holds no request"):
        read_input(write(tmp_path / "in.jsonl", ""), None, frozenset())


class ScriptedServer:
    """Answers by what the prompt says; counts how many requests it holds at once."""

    def __init__(self) -> None:
        self.tries: dict[str, int] = {}
        self.num_now = 0
        self.num_most = 0

    async def post(self, _path: str, body: bytes) -> tuple[int, float | None, bytes]:
        prompt = json.loads(body)["prompt"]
        self.tries[prompt] = self.tries.get(prompt, 0) + 1
        self.num_now += 1
        self.num_most = max(self.num_most, self.num_now)
        await asyncio.sleep(0.001)
        self.num_now -= 1
        if prompt.startswith("busy") and self.tries[prompt] < 3:
            return 429, 0.001, b'{"error": {"message": "full"}}'
        if prompt.startswith("always busy"):
            return 429, 0.001, b'{"error": {"message": "full"}}'
        if prompt.startswith("dead"):
            return 500, None, b'{"error": {"message": "the worker is gone"}}'
        if prompt.startswith("wrong"):
            return 400, None, b'{"error": {"message": "no"}}'
        return 200, None, json.dumps({"id": f"cmpl-{prompt}", "text": prompt}).encode()


def run(tmp_path: Path, prompts: list[str]) -> tuple[ScriptedServer, int, dict[str, Any]]:
    path = write(tmp_path / "in.jsonl", *(line(prompt, prompt=prompt) for prompt in prompts))
    work: BatchInput = read_input(path, "m", frozenset())
    work.served_names = {"m": "m"}
    server, out = ScriptedServer(), BytesIO()
    num_failed = asyncio.run(BatchRunner(server.post, out, num_at_once=4).run(work))
    (tmp_path / "out.jsonl").write_bytes(out.getvalue())
    return server, num_failed, answers(tmp_path / "out.jsonl")


def test_all_are_answered_a_bounded_number_at_once(tmp_path: Path) -> None:
    prompts = [f"p{i}" for i in range(40)]
    server, num_failed, found = run(tmp_path, prompts)
    assert num_failed == 0
    assert {key: value["body"]["text"] for key, value in found.items()} == {p: p for p in prompts}
    assert server.num_most == 4


def test_refused_is_an_answer_and_broken_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server, num_failed, found = run(tmp_path, ["wrong", "dead", "busy", "always busy", "fine"])
    assert {key: value["status_code"] for key, value in found.items()} == {
        "wrong": 400,
        "busy": 200,
        "fine": 200,
    }
    assert num_failed == 2
    assert (server.tries["busy"], server.tries["always busy"]) == (3, 5)
    assert "dead: the worker is gone" in capsys.readouterr().err


def test_a_full_disk_ends_the_batch_with_one_sentence(tmp_path: Path) -> None:
    path = write(tmp_path / "in.jsonl", *(line(f"{i}", prompt=f"p{i}") for i in range(20)))
    work = read_input(path, "m", frozenset())
    work.served_names = {"m": "m"}
    server = ScriptedServer()
    with open_output(Path("/dev/full")) as out:
        runner = BatchRunner(server.post, out, num_at_once=2)
        with pytest.raises(HeadraceError, match="Cannot write an answer: No space left"):
            asyncio.run(runner.run(work))
    assert len(server.tries) <= 4  # nothing more is asked once an answer is lost


def test_an_output_that_cannot_be_written_is_told_before_anything_is_loaded(
    cli: Cli, tmp_path: Path
) -> None:
    in_path = write(tmp_path / "in.jsonl", line("a", prompt="x"))
    result = cli("batch", in_path, tmp_path / "nowhere" / "out.jsonl", "--model", "none")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("headrace: Cannot write ")
    assert result.stderr.count("\n") == 1


def test_the_verb_answers_resumes_and_agrees_with_itself(
    cli: Cli, tmp_path: Path, tiny_model: Path
) -> None:
    bodies = [{"prompt": f"hello {i}", "max_tokens": 5, "seed": i} for i in range(6)]
    in_path = write(
        tmp_path / "in.jsonl",
        *(line(str(i), **body) for i, body in enumerate(bodies)),
        line("bad", prompt="x", max_tokens=-1),
    )
    words = ("--model", tiny_model, "--kv-cache-memory", "16M")
    out_path = tmp_path / "out.jsonl"
    result = cli("batch", in_path, out_path, *words)
    assert (result.returncode, result.stdout) == (0, ""), result.stderr
    whole = answers(out_path)
    assert whole["bad"]["status_code"] == 400
    assert whole["0"]["body"]["model"] == "tiny"

    lines = out_path.read_text(encoding="utf-8").splitlines(keepends=True)
    out_path.write_text("".join(lines[:3]) + lines[3][:20], encoding="utf-8")
    result = cli("batch", in_path, out_path, *words)
    assert "4 of 4 requests answered" in result.stderr
    resumed = answers(out_path)
    choices = [{k: v["body"].get("choices") for k, v in a.items()} for a in (whole, resumed)]
    assert choices[0] == choices[1]
    assert "All 7 requests are answered" in cli("batch", in_path, out_path, *words).stderr


def test_the_verb_says_what_weights_are_multiplied_by(
    cli: Cli, tiny_model: Path, tmp_path: Path
) -> None:
    """The fingerprint of an answer tells the arithmetic."""
    source = write(tmp_path / "in.jsonl", line("a", prompt="hello", max_tokens=1))
    found = set()
    for kind in ("quantized", "float32"):
        out = tmp_path / f"{kind}.jsonl"
        words = ("--model", tiny_model, "--kv-cache-memory", "16M", "--activations", kind)
        assert cli("batch", source, out, *words).returncode == 0
        found.add(answers(out)["a"]["body"]["system_fingerprint"])
    assert len(found) == 2


def test_an_interrupted_batch_is_silent_and_resumes(
    cli: Cli, tmp_path: Path, tiny_model: Path
) -> None:
    bodies = [{"prompt": f"hello {i}", "max_tokens": 400, "ignore_eos": True} for i in range(40)]
    in_path = write(tmp_path / "in.jsonl", *(line(str(i), **b) for i, b in enumerate(bodies)))
    out_path = tmp_path / "out.jsonl"
    words = ("batch", in_path, out_path, "--model", tiny_model, "--max-num-seqs", 1)
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace.cli", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(tmp_path),
        start_new_session=True,
    )
    deadline_s = time.monotonic() + 60
    while not (out_path.exists() and out_path.stat().st_size):
        assert time.monotonic() < deadline_s
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (130, "")
    assert all(text.endswith("requests answered.") for text in errors.splitlines())
    assert 0 < len(answers(out_path)) < 40
    assert cli(*words).returncode == 0
    assert len(answers(out_path)) == 40


def test_a_model_that_does_not_load_is_one_sentence(cli: Cli, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    in_path = write(tmp_path / "in.jsonl", line("a", prompt="x"))
    result = cli("batch", in_path, tmp_path / "out.jsonl", "--model", broken)
    assert result.returncode == 1
    assert result.stderr.startswith("headrace: ")
    assert "Traceback" not in result.stderr
