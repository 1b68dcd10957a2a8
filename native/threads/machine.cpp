#include "threads/machine.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string_view>

namespace headrace {
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
// cgroup v1 writes "no limit" as the largest page-aligned number.
constexpr int64_t kUnlimitedV1 = int64_t{1} << 60;

std::optional<std::string> read_text(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::optional<int64_t> parse_int(std::string_view text) {
  const std::string copy(text);
  char* end = nullptr;
  errno = 0;
  const long long value = std::strtoll(copy.c_str(), &end, 10);
  if (end == copy.c_str() || errno == ERANGE) return std::nullopt;
  return value;
}

std::optional<int64_t> read_int(const std::string& path) {
  const auto text = read_text(path);
  return text ? parse_int(*text) : std::nullopt;
}

// The number after `key` at the start of a line ("inactive_file 123", "MemTotal:  9 kB").
std::optional<int64_t> read_field(const std::string& path, std::string_view key) {
  const auto text = read_text(path);
  if (!text) return std::nullopt;
  std::istringstream lines(*text);
  for (std::string line; std::getline(lines, line);) {
    if (line.compare(0, key.size(), key) == 0) {
      return parse_int(std::string_view(line).substr(key.size()));
    }
  }
  return std::nullopt;
}

// Folders of this process' cgroup and all its ancestors, the deepest first. `controller` names a v1
// hierarchy ("cpu", "memory"), or is empty for the unified one. In a container the path of
// /proc/self/cgroup may lie outside the mount; folders that do not exist simply hold no files.
std::vector<std::string> cgroup_folders(const std::string& root, const std::string& controller) {
  std::vector<std::string> folders;
  const auto text = read_text(root + "/proc/self/cgroup");
  if (!text) return folders;
  std::istringstream lines(*text);
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string names = "," + line.substr(first + 1, second - first - 1) + ",";
    if (controller.empty() ? names != ",," : names.find("," + controller + ",") == names.npos) {
      continue;
    }
    const std::string mount = controller.empty() ? "" : "/" + controller;
    std::string path = line.substr(second + 1);
    while (path.size() > 1) {
      folders.push_back(root + "/sys/fs/cgroup" + mount + path);
      path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
    }
    folders.push_back(root + "/sys/fs/cgroup" + mount);
  }
  return folders;
}

int64_t processors(int64_t quota, int64_t period) {
  if (quota <= 0 || period <= 0) return kNoLimit;
  return std::max<int64_t>(1, quota / period + (quota % period != 0));
}

int64_t cpu_limit_v2(const std::string& folder) {
  const auto text = read_text(folder + "/cpu.max");
  if (!text) return kNoLimit;
  std::istringstream fields(*text);
  std::string quota, period;
  fields >> quota >> period;
  return processors(parse_int(quota).value_or(0), parse_int(period).value_or(0));
}

int64_t cpu_limit_v1(const std::string& folder) {
  return processors(read_int(folder + "/cpu.cfs_quota_us").value_or(0),
                    read_int(folder + "/cpu.cfs_period_us").value_or(0));
}

struct MemoryFiles {
  const char* limit;
  const char* usage;
  const char* cache;  // key in memory.stat of page cache that can be dropped
};
constexpr MemoryFiles kMemoryV2 = {"/memory.max", "/memory.current", "inactive_file "};
constexpr MemoryFiles kMemoryV1 = {"/memory.limit_in_bytes", "/memory.usage_in_bytes",
                                   "total_inactive_file "};

void apply_memory_limit(const std::string& folder, const MemoryFiles& files, MemoryInfo& info) {
  const auto limit = read_int(folder + files.limit);  // "max" is no number
  if (!limit || *limit <= 0 || *limit >= kUnlimitedV1) return;
  const int64_t usage = read_int(folder + files.usage).value_or(0);
  const int64_t cache = read_field(folder + "/memory.stat", files.cache).value_or(0);
  const int64_t used = std::max<int64_t>(0, usage - cache);
  info.total_bytes = std::min(info.total_bytes, *limit);
  info.available_bytes = std::min(info.available_bytes, std::max<int64_t>(0, *limit - used));
}

}  // namespace

std::vector<int> allowed_cpus() {
  std::vector<int> cpus;
  // The kernel refuses a set smaller than its own; grow until it fits.
  for (int size = 1024; size <= (1 << 20); size *= 2) {
    cpu_set_t* set = CPU_ALLOC(static_cast<size_t>(size));
    if (set == nullptr) break;
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(size));
    const int status = sched_getaffinity(0, bytes, set);
    if (status == 0) {
      for (int cpu = 0; cpu < size; ++cpu) {
        if (CPU_ISSET_S(static_cast<size_t>(cpu), bytes, set)) cpus.push_back(cpu);
      }
    }
    CPU_FREE(set);
    if (status == 0 || errno != EINVAL) break;
  }
  if (cpus.empty()) cpus.push_back(0);
  return cpus;
}

int cgroup_cpu_limit(const std::string& root) {
  int64_t limit = kNoLimit;
  for (const auto& folder : cgroup_folders(root, "")) limit = std::min(limit, cpu_limit_v2(folder));
  for (const auto& folder : cgroup_folders(root, "cpu")) {
    limit = std::min(limit, cpu_limit_v1(folder));
  }
  return limit > std::numeric_limits<int>::max() ? 0 : static_cast<int>(limit);
}

int default_threads() {
  const int cpus = static_cast<int>(allowed_cpus().size());
  const int limit = cgroup_cpu_limit();
  return limit > 0 ? std::min(cpus, limit) : cpus;
}

MemoryInfo memory_info(const std::string& root) {
  const std::string meminfo = root + "/proc/meminfo";
  MemoryInfo info{read_field(meminfo, "MemTotal:").value_or(0) * 1024,
                  read_field(meminfo, "MemAvailable:").value_or(0) * 1024};
  for (const auto& folder : cgroup_folders(root, "")) apply_memory_limit(folder, kMemoryV2, info);
  for (const auto& folder : cgroup_folders(root, "memory")) {
    apply_memory_limit(folder, kMemoryV1, info);
  }
  return info;
}

}  // namespace headrace
