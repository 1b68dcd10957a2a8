// What the machine grants this process: processors by affinity mask and cgroup quota, memory by
// cgroup limit and /proc/meminfo. `root` prefixes every path read ("" in production), so that tests
// can show it any machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace headrace {

// Processors of the calling thread's affinity mask, ascending; never empty.
std::vector<int> allowed_cpus();

// Processors worth of time per period that every enclosing cgroup grants (v2 cpu.max, v1
// cpu.cfs_quota_us / cpu.cfs_period_us), rounded up; 0 = no limit.
int cgroup_cpu_limit(const std::string& root = "");

// Threads to use by default: the smaller of the two, at least 1.
int default_threads();

struct MemoryInfo {
  int64_t total_bytes;      // of the machine, or the smallest cgroup limit
  int64_t available_bytes;  // without swapping; reclaimable page cache counts as available
};

MemoryInfo memory_info(const std::string& root = "");

}  // namespace headrace
