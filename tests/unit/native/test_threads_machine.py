"""What the machine grants: cgroup limits of both versions, nested, absent and damaged."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import _native
from headrace._native import testing

MIB = 1 << 20
MEMINFO = "MemTotal:        8388608 kB\nMemFree:   9 kB\nMemAvailable:    4194304 kB\n"


class Machine:
    """A made root directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("proc/meminfo", MEMINFO)

    def write(self, path: str, text: str) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")

    @property
    def cpus(self) -> int:
        return testing.cgroup_cpu_limit(str(self.root))

    @property
    def memory_mib(self) -> tuple[int, int]:
        total, available = testing.memory_info(str(self.root))
        return total // MIB, available // MIB


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_no_cgroup_is_no_limit(machine: Machine) -> None:
    assert machine.cpus == 0
    assert machine.memory_mib == (8192, 4096)


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("max 100000\n", 0),
        ("200000 100000\n", 2),
        ("150000 100000\n", 2),
        ("1000 100000\n", 1),
        ("800000 100000", 8),
        ("", 0),
        ("-5 100000", 0),
        ("100000 0", 0),
        ("9" * 40 + " 1", 0),
        ("nonsense", 0),
    ],
)
def test_cpu_quota_v2(machine: Machine, text: str, cpus: int) -> None:
    machine.write("proc/self/cgroup", "0::/\n")
    machine.write("sys/fs/cgroup/cpu.max", text)
    assert machine.cpus == cpus


def test_the_tightest_ancestor_counts(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "0::/pod/box\n")
    machine.write("sys/fs/cgroup/cpu.max", "max 100000")
    machine.write("sys/fs/cgroup/pod/cpu.max", "300000 100000")
    machine.write("sys/fs/cgroup/pod/box/cpu.max", "600000 100000")
    assert machine.cpus == 3


def test_cpu_quota_v1(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "5:cpu,cpuacct:/a\n4:memory:/b\n0::/\n")
    machine.write("sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "250000")
    machine.write("sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000")
    machine.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1")
    machine.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000")
    assert machine.cpus == 3


def test_the_path_of_a_container_may_lie_outside_its_mount(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "0::/../../other/box\n")
    machine.write("sys/fs/cgroup/cpu.max", "100000 100000")
    assert machine.cpus == 1


def test_memory_limit_v2(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "0::/box\n")
    machine.write("sys/fs/cgroup/box/memory.max", str(2000 * MIB))
    machine.write("sys/fs/cgroup/box/memory.current", str(900 * MIB))
    machine.write("sys/fs/cgroup/box/memory.stat", f"anon 5\ninactive_file {400 * MIB}\n")
    machine.write("sys/fs/cgroup/memory.max", "max\n")
    assert machine.memory_mib == (2000, 1500)


def test_memory_limit_v1(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "4:memory:/b\n")
    machine.write("sys/fs/cgroup/memory/memory.limit_in_bytes", str(2**63 - 4096))
    machine.write("sys/fs/cgroup/memory/b/memory.limit_in_bytes", str(1000 * MIB))
    machine.write("sys/fs/cgroup/memory/b/memory.usage_in_bytes", str(1200 * MIB))
    machine.write("sys/fs/cgroup/memory/b/memory.stat", f"total_inactive_file {100 * MIB}\n")
    assert machine.memory_mib == (1000, 0)


def test_a_limit_above_the_machine_changes_nothing(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "0::/\n")
    machine.write("sys/fs/cgroup/memory.max", str(1 << 50))
    machine.write("sys/fs/cgroup/memory.current", "5")
    assert machine.memory_mib == (8192, 4096)


@settings(max_examples=100, deadline=None)
@given(cgroup=st.text(max_size=60), value=st.text(max_size=30))
def test_damaged_files_are_no_limit_or_a_number(
    tmp_path_factory: pytest.TempPathFactory, cgroup: str, value: str
) -> None:
    machine = Machine(tmp_path_factory.mktemp("machine"))
    (machine.root / "proc/self").mkdir(parents=True)
    machine.write("proc/self/cgroup", cgroup + "\n0::/\n4:cpu,memory:/")
    machine.write("sys/fs/cgroup/cpu.max", value)
    machine.write("sys/fs/cgroup/memory.max", value)
    machine.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", value)
    assert machine.cpus >= 0
    total, available = machine.memory_mib
    assert 0 <= available <= total


def test_this_machine() -> None:
    assert _native.cpu_count() == len(os.sched_getaffinity(0))
    assert 1 <= _native.default_threads() <= _native.cpu_count()
    info = _native.memory_info()
    assert 0 < info.available_bytes <= info.total_bytes


def test_the_affinity_mask_is_asked_each_time() -> None:
    mask = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(mask)})
        assert _native.cpu_count() == 1
        assert _native.default_threads() == 1
    finally:
        os.sched_setaffinity(0, mask)
