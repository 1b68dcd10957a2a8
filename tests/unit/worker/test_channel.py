"""The socket between gateway and worker: hostile bytes, bounds, a private place."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from random import Random

import pytest
import zmq

from headrace.engine.sampling import SamplingParams
from headrace.gateway.link import WorkerLink
from headrace.worker import frames
from headrace.worker.channel import make_runtime_dir, remove_runtime_dir
from headrace.worker.config import WorkerConfig, receive_config, send_config
from headrace.worker.frames import Cancel, Submit, ToGateway
from tests.support.scripted_worker import HELLO, READY, ScriptedWorker, delta, progress


@pytest.fixture
def folder() -> Iterator[Path]:
    made = make_runtime_dir()
    yield made
    remove_runtime_dir(made)


Pair = tuple[WorkerLink, ScriptedWorker, list[ToGateway]]


@pytest.fixture
async def pair(folder: Path) -> AsyncIterator[Pair]:
    """A link with a scripted worker behind it, and the list of frames that came."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    got: list[ToGateway] = []
    endpoint = f"ipc://{folder}/w"
    link = WorkerLink(context, endpoint, got.extend)
    with ScriptedWorker(endpoint) as worker:
        yield link, worker, got
        link.close()
    context.destroy(linger=0)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


async def test_frames_in_both_directions(pair: Pair) -> None:
    link, worker, got = pair
    worker.send(HELLO, READY)
    await until(lambda: len(got) == 2)
    assert got == [HELLO, READY]
    sent = Submit(request_id="r", prompt_ids=[1, 2], params=SamplingParams(seed=1 << 63))
    assert link.send([sent, Cancel(request_id="r")])
    assert await asyncio.to_thread(worker.receive) == [sent, Cancel(request_id="r")]


async def test_nothing_is_lost_or_reordered_under_load(pair: Pair) -> None:
    """Sends in both directions at one time: the descriptor is edge-triggered."""
    link, worker, got = pair
    worker.send(HELLO)
    await until(lambda: got == [HELLO])  # only then is there somebody to send to
    got.clear()

    def chatter() -> int:
        received = 0
        for i in range(2000):
            worker.send(delta("r", "x", num_output=i))
            received += len(worker.channel.receive(0.0))
        while received < 500:
            received += len(worker.receive())
        return received

    task = asyncio.create_task(asyncio.to_thread(chatter))
    for i in range(500):
        assert link.send([Cancel(request_id=str(i))])
        await asyncio.sleep(0)
    assert await task == 500
    await until(lambda: len(got) == 2000)
    assert [frame.num_output for frame in got if isinstance(frame, frames.Delta)] == list(
        range(2000)
    )


async def test_hostile_bytes_from_the_worker_are_dropped(pair: Pair) -> None:
    _, worker, got = pair
    random = Random(5)
    valid = frames.encode([HELLO, delta("r", "x")])
    for _ in range(300):
        damaged = bytearray(valid)
        damaged[random.randrange(len(damaged))] = random.randrange(256)
        worker.send_bytes(random.randbytes(random.randrange(64)))
        worker.send_bytes(bytes(damaged[: random.randrange(len(damaged))]))
    worker.send(progress(7))
    await until(lambda: progress(7) in got)


async def test_hostile_bytes_from_the_gateway_are_dropped(pair: Pair) -> None:
    link, worker, _ = pair
    random = Random(6)
    for _ in range(300):
        link._socket.send(random.randbytes(random.randrange(64)))
    link.send([Cancel(request_id="last")])
    received = await asyncio.to_thread(worker.receive)
    assert received[-1] == Cancel(request_id="last")


async def test_a_batch_above_the_limit_does_not_come_through(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZeroMQ drops the peer that sends it; the process goes on."""
    monkeypatch.setattr(frames, "MAX_FRAME_BYTES", 1000)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    got: list[ToGateway] = []
    link = WorkerLink(context, f"ipc://{folder}/w", got.extend)
    with ScriptedWorker(f"ipc://{folder}/w") as worker:
        worker.send(HELLO)
        await until(lambda: got == [HELLO])
        worker.send(delta("r", "x" * 5000))
        await asyncio.sleep(0.2)
        assert got == [HELLO]
        link.close()
    context.destroy(linger=0)


async def test_a_worker_that_does_not_read_is_noticed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.worker.channel.HIGH_WATER", 10)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    link = WorkerLink(context, f"ipc://{folder}/w", lambda batch: None)
    sent = [link.send([Cancel(request_id="r" * 10_000)]) for _ in range(10_000)]
    assert not all(sent)
    link.close()
    context.destroy(linger=0)


def test_the_folder_is_private(folder: Path) -> None:
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_the_folder_follows_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value in ("/does/not/exist", "/" + "x" * 200):
        monkeypatch.setenv("XDG_RUNTIME_DIR", value)
        made = make_runtime_dir()
        assert len(os.fsencode(made)) < 90
        remove_runtime_dir(made)
        assert not made.exists()


def test_the_configuration_travels_by_descriptor() -> None:
    config = WorkerConfig(model_name="m", model_path="/p", endpoint="ipc://x", parent_pid=7)
    assert receive_config(send_config(config)) == config
