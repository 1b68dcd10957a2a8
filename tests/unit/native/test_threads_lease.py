"""The compute lease between real processes: exclusion, fairness, death, stops, hostile bytes."""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from headrace._native import ComputeLease, ThreadPool, testing

# Commands on stdin, one a line; an answer to each. Never more than one thread.
CHILD = """
import mmap, sys
from headrace._native import ComputeLease, testing
lease = ComputeLease(int(sys.argv[1]))
memory = mmap.mmap(int(sys.argv[2]), 4096)
for line in sys.stdin:
    name, *numbers = line.split()
    if name == "count":
        testing.lease_count(lease, memory, *map(int, numbers))
    else:
        getattr(testing, "lease_" + name)(lease)
    print(lease.num_waits, lease.num_recovered, lease.num_given_up, lease.num_refused, flush=True)
"""


class Child:
    """A process with the lease mapped. Closed by `Table`."""

    def __init__(self, lease_fd: int, memory_fd: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(lease_fd), str(memory_fd)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=(lease_fd, memory_fd),
        )

    def send(self, *words: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def counts(self) -> dict[str, int]:
        """Waits for the end of a command."""
        assert self.process.stdout is not None
        names = ("waits", "recovered", "given_up", "refused")
        line = self.process.stdout.readline()
        assert line, "the child ended early"
        return dict(zip(names, map(int, line.split()), strict=True))

    def do(self, *words: object) -> dict[str, int]:
        self.send(*words)
        return self.counts()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Table:
    """A lease, shared counters, and the processes around them."""

    def __init__(self) -> None:
        self.lease_fd = ComputeLease.make()
        self.memory_fd = os.memfd_create("counters")
        os.ftruncate(self.memory_fd, 4096)
        self.memory = mmap.mmap(self.memory_fd, 4096)
        self.children: list[Child] = []

    def child(self) -> Child:
        child = Child(self.lease_fd, self.memory_fd)
        self.children.append(child)
        return child

    def counter(self, index: int) -> int:
        return int.from_bytes(self.memory[8 * index : 8 * index + 8], "little")

    def close(self) -> None:
        for child in self.children:
            child.kill()
            for stream in (child.process.stdin, child.process.stdout):
                with contextlib.suppress(BrokenPipeError):
                    if stream is not None:
                        stream.close()
        self.memory.close()
        os.close(self.lease_fd)
        os.close(self.memory_fd)


@pytest.fixture
def table() -> Iterator[Table]:
    made = Table()
    yield made
    made.close()


def acquire_and_release(lease: ComputeLease) -> None:
    testing.lease_acquire(lease)
    testing.lease_release(lease)


def test_hundreds_of_thousands_of_acquisitions_of_one_process(table: Table) -> None:
    lease = ComputeLease(table.lease_fd)
    testing.lease_count(lease, table.memory, 1, 300_000, 0)
    assert table.counter(0) == table.counter(1) == 300_000
    assert (lease.num_waits, lease.waited_s, lease.num_refused) == (0, 0.0, 0)
    assert not lease.is_taken


def test_processes_exclude_each_other(table: Table) -> None:
    children = [table.child() for _ in range(3)]
    for i, child in enumerate(children):
        child.send("count", i + 1, 60_000, 0)
    counts = [child.counts() for child in children]
    assert table.counter(0) == 60_000
    assert sum(table.counter(i + 1) for i in range(3)) == 60_000
    assert all(c["recovered"] == c["given_up"] == c["refused"] == 0 for c in counts)


def test_nobody_starves_beside_those_who_want_it_again_at_once(table: Table) -> None:
    children = [table.child() for _ in range(3)]
    for child in children:
        child.do("beat")  # they have started
    for i, child in enumerate(children):
        child.send("count", i + 1, 1500, 200_000)
    for child in children:
        assert child.counts()["refused"] == 0
    assert min(table.counter(i + 1) for i in range(3)) >= 250


def test_a_killed_owner_frees_it_for_who_comes_later(table: Table) -> None:
    owner = table.child()
    owner.do("acquire")
    lease = ComputeLease(table.lease_fd)
    assert lease.is_taken
    owner.kill()
    acquire_and_release(lease)
    assert (lease.num_recovered, lease.num_given_up, lease.num_refused) == (1, 0, 0)


def test_a_killed_owner_frees_it_for_who_waits(table: Table) -> None:
    owner, waiter, second = table.child(), table.child(), table.child()
    owner.do("acquire")
    waiter.send("acquire")
    second.send("acquire")
    wait_until_asleep(waiter)
    wait_until_asleep(second)
    owner.kill()
    # One of the two has it now, and is killed as well.
    done = [waiter, second] if has_answer(waiter, second) else [second, waiter]
    assert done[0].counts() == {"waits": 1, "recovered": 1, "given_up": 0, "refused": 0}
    done[0].kill()
    assert done[1].counts() == {"waits": 1, "recovered": 1, "given_up": 0, "refused": 0}


def test_killed_waiters_are_forgotten(table: Table) -> None:
    owner, killed, waiter = table.child(), table.child(), table.child()
    owner.do("acquire")
    killed.send("acquire")
    wait_until_asleep(killed)
    waiter.send("acquire")
    wait_until_asleep(waiter)
    killed.kill()
    owner.do("release")
    assert waiter.counts() == {"waits": 1, "recovered": 0, "given_up": 0, "refused": 0}


def test_a_storm_with_deaths(table: Table) -> None:
    rng = random.Random(0)
    deaths = 12
    running = [table.child() for _ in range(3)]
    for child in running:
        child.send("count", 1, 40_000, 1000)
    for _ in range(deaths):
        before = table.counter(0)
        while table.counter(0) < min(40_000, before + rng.randrange(1, 1500)):
            assert any(child.process.poll() is None for child in running)
        victim = rng.randrange(3)
        running[victim].kill()
        running[victim] = table.child()
        running[victim].send("count", 1, 40_000, 1000)
    for child in running:
        assert child.counts()["given_up"] == 0
    assert table.counter(0) == 40_000
    # A death between the two counters loses one.
    assert 40_000 - deaths <= table.counter(1) <= 40_000


def test_a_stopped_owner_is_given_up_and_may_come_back(table: Table) -> None:
    owner, other = table.child(), table.child()
    owner.do("acquire")
    owner.process.send_signal(signal.SIGSTOP)
    lease = ComputeLease(table.lease_fd)
    other.send("acquire")
    testing.lease_acquire(lease)
    assert lease.is_taken
    testing.lease_release(lease)
    given_up = other.counts()["given_up"] + lease.num_given_up
    assert given_up == 1
    # From here on nobody waits for it.
    other.do("release")
    waits = lease.num_waits
    acquire_and_release(lease)
    assert lease.num_waits == waits
    # It releases what was taken from it, and then takes turns like the others.
    owner.process.send_signal(signal.SIGCONT)
    owner.do("release")
    owner.do("acquire")
    other.send("acquire")
    wait_until_asleep(other)
    owner.do("release")
    assert other.counts()["given_up"] == given_up - lease.num_given_up


def test_a_slow_owner_that_makes_progress_is_not_given_up(table: Table) -> None:
    owner = table.child()
    owner.send("count", 1, 1, 4_000_000_000)  # four seconds
    lease = ComputeLease(table.lease_fd)
    while not lease.is_taken:
        assert owner.process.poll() is None
    acquire_and_release(lease)
    assert (lease.num_waits >= 1, lease.num_given_up, lease.num_refused) == (True, 0, 0)
    assert owner.counts()["refused"] == 0
    assert table.counter(1) == 1


def test_garbage_in_the_page_stops_nobody(table: Table) -> None:
    rng = random.Random(1)
    with mmap.mmap(table.lease_fd, 4096) as page:
        for _ in range(300):
            # Thread ids that no system gives out: a word that names a live one is waited for.
            page[8:] = bytes(rng.randrange(256) | (0x30 * (i % 4 == 3)) for i in range(8, 4096))
            lease = ComputeLease(table.lease_fd)
            for _ in range(3):
                acquire_and_release(lease)
        page[8:] = bytes(4088)
        acquire_and_release(ComputeLease(table.lease_fd))


def test_bytes_that_keep_changing_stop_nobody(table: Table) -> None:
    stop = threading.Event()

    def scribble() -> None:
        rng = random.Random(2)
        with mmap.mmap(table.lease_fd, 4096) as page:
            while not stop.is_set():
                at = 64 * rng.randrange(1, 33)
                page[at : at + 4] = rng.choice(
                    [bytes(4), b"\xff\xff\xff\x3f", b"\xff\xff\xff\xff", b"\x00\x00\x00\xc0"]
                )

    scribbler = threading.Thread(target=scribble)
    scribbler.start()
    try:
        lease = ComputeLease(table.lease_fd)
        for _ in range(5000):
            acquire_and_release(lease)
    finally:
        stop.set()
        scribbler.join()


def test_what_is_no_lease_is_refused() -> None:
    for size in (0, 100, 4095, 4097, 1 << 20):
        fd = os.memfd_create("other")
        os.ftruncate(fd, size)
        with pytest.raises(ValueError, match="no compute lease"):
            ComputeLease(fd)
        os.close(fd)
    fd = os.memfd_create("other")
    os.write(fd, bytes(range(256)) * 16)
    with pytest.raises(ValueError, match="begins otherwise"):
        ComputeLease(fd)
    ComputeLease.format(fd)
    acquire_and_release(ComputeLease(fd))
    os.close(fd)
    read_end, write_end = os.pipe()
    for bad in (read_end, write_end, -1):
        with pytest.raises(ValueError, match="no compute lease"):
            ComputeLease(bad)
    os.close(read_end)
    os.close(write_end)


def test_a_made_lease_cannot_be_cut_short(table: Table) -> None:
    with pytest.raises(PermissionError):
        os.ftruncate(table.lease_fd, 0)


def test_pools_with_one_lease_take_turns(table: Table) -> None:
    failures: list[int] = []

    def call(seed: int) -> None:
        rng = random.Random(seed)
        pool = ThreadPool(2, ComputeLease(table.lease_fd))
        for _ in range(100):
            phases = [rng.randrange(12) for _ in range(20)]
            if testing.run_phases(pool, phases) != [[1] * count for count in phases]:
                failures.append(seed)

    callers = [threading.Thread(target=call, args=(i,)) for i in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert failures == []
    assert not ComputeLease(table.lease_fd).is_taken


def wait_until_asleep(child: Child) -> None:
    """Until its only thread sleeps in a futex."""
    while True:
        with open(f"/proc/{child.process.pid}/syscall") as file:
            number = file.read().split()[0]
        if number == FUTEX:
            return
        assert child.process.poll() is None


FUTEX = {"x86_64": "202", "aarch64": "98"}.get(os.uname().machine, "202")


def has_answer(first: Child, second: Child) -> bool:
    """Waits until one of the two has answered; true if it is the first."""
    assert first.process.stdout is not None
    assert second.process.stdout is not None
    ready, _, _ = select.select([first.process.stdout, second.process.stdout], [], [])
    return ready[0] is first.process.stdout
