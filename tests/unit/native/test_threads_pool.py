"""The thread pool: every chunk once, phases in order, errors kept, no collapse when crowded."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace._native import ThreadPool, testing

DEFAULT_MXCSR = 0x1F80
FLUSH_TO_ZERO = 0x9FC0


@pytest.fixture(scope="module", params=[1, 2, 3, 8])
def pool(request: pytest.FixtureRequest) -> ThreadPool:
    return ThreadPool(request.param)


def test_thousands_of_phases(pool: ThreadPool) -> None:
    rng = random.Random(0)
    phases = [rng.choice([0, 1, 2, 3, 7, 16, 33, 200]) for _ in range(4000)]
    runs = testing.run_phases(pool, phases)
    assert runs == [[1] * count for count in phases]


@settings(max_examples=50, deadline=None)
@given(phases=st.lists(st.integers(0, 40), max_size=40))
def test_every_chunk_runs_once(pool: ThreadPool, phases: list[int]) -> None:
    assert testing.run_phases(pool, phases) == [[1] * count for count in phases]


def test_all_threads_take_part_in_the_contract_environment(pool: ThreadPool) -> None:
    envs, num_threads, open_signals = testing.thread_states(pool)
    assert num_threads == pool.num_threads
    assert envs == [DEFAULT_MXCSR]
    assert open_signals == 0


def test_the_callers_environment_is_given_back(pool: ThreadPool) -> None:
    result = testing.call_in_env(FLUSH_TO_ZERO, lambda: testing.run_phases(pool, [4]))
    assert result == ([[1] * 4], FLUSH_TO_ZERO)


def test_an_error_reaches_the_caller_and_the_pool_lives_on(pool: ThreadPool) -> None:
    for bad in (0, 5, 49):
        assert testing.run_with_error(pool, 50, bad) == 50
    assert testing.run_phases(pool, [9]) == [[1] * 9]


def test_far_more_threads_than_processors() -> None:
    pool = ThreadPool(32)
    assert testing.run_phases(pool, [64] * 300) == [[1] * 64] * 300


def test_several_pools_and_callers_at_once() -> None:
    shared = ThreadPool(2)
    failures: list[str] = []

    def call(pool: ThreadPool, seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(30):
            phases = [rng.randrange(12) for _ in range(20)]
            if testing.run_phases(pool, phases) != [[1] * count for count in phases]:
                failures.append(f"caller {seed}")

    pools = [shared, shared, ThreadPool(3), ThreadPool(1)]
    callers = [threading.Thread(target=call, args=(p, i)) for i, p in enumerate(pools)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert failures == []


def test_pools_come_and_go() -> None:
    before = threads_of_process()
    for count in (1, 2, 5, 3) * 20:
        pool = ThreadPool(count)
        testing.run_phases(pool, [count, 1])
        del pool
    assert threads_of_process() == before


def threads_of_process() -> int:
    return len(os.listdir("/proc/self/task"))


@pytest.mark.parametrize("count", [0, -1, 1025, 2**31 - 1])
def test_a_count_out_of_range_is_an_error(count: int) -> None:
    with pytest.raises(ValueError, match="threads must be between 1 and 1024"):
        ThreadPool(count)


def test_a_forked_child_runs_all_chunks_itself_and_exits() -> None:
    code = """
import os, sys
from headrace._native import ThreadPool, testing
pool = ThreadPool(3)
testing.run_phases(pool, [8])
child = os.fork()
if child == 0:
    ok = testing.run_phases(pool, [5, 9]) == [[1] * 5, [1] * 9]
    del pool
    os._exit(0 if ok else 3)
status = os.waitpid(child, 0)[1]
ok = testing.run_phases(pool, [5]) == [[1] * 5]
sys.exit(os.waitstatus_to_exitcode(status) or (0 if ok else 4))
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=60)


def masks_by_name() -> dict[str, list[set[int]]]:
    """Affinity masks of the threads of this process."""
    masks: dict[str, list[set[int]]] = {}
    for thread in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{thread}/comm") as file:
            masks.setdefault(file.read().strip(), []).append(os.sched_getaffinity(int(thread)))
    return masks


def test_only_the_workers_of_a_pool_are_pinned() -> None:
    allowed = os.sched_getaffinity(0)
    before = masks_by_name().get("headrace-pool", [])
    pool = ThreadPool(len(allowed))
    testing.thread_states(pool)  # every thread has begun
    masks = masks_by_name()
    pinned = masks.pop("headrace-pool", [])
    assert len(pinned) - len(before) == len(allowed) - 1
    assert all(mask == allowed for name in masks for mask in masks[name])
    if len(allowed) > 1:
        assert {min(mask) for mask in pinned if len(mask) == 1} >= allowed - {min(allowed)}


def test_of_a_crowded_pool_as_many_run_as_there_are_processors() -> None:
    num_cpus = len(os.sched_getaffinity(0))
    for count in (1, num_cpus, num_cpus + 1, 64 + num_cpus):
        pool = ThreadPool(count)
        assert (pool.num_threads, pool.num_running) == (count, min(count, num_cpus))
