// Choice of the kernel table, by what the processor and the operating system support.
#include <cstring>

#include "common/table.h"

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace headrace {
namespace {

struct Candidate {
  const char* name;
  bool (*is_supported)();
  const KernelTable& (*table)();
};

#if defined(__x86_64__)
// The builtins also ask the operating system (XCR0) whether it saves the wide registers.
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c") && __builtin_cpu_supports("bmi2");
}

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni");
}
#elif defined(__aarch64__)
// ARMv8.2 with the dot product: Cortex-A55 and A75, Neoverse N1, Apple M1 and what came later.
bool has_neon() {
  constexpr unsigned long kNeeded = HWCAP_ASIMD | HWCAP_ASIMDHP | HWCAP_ASIMDDP;
  return (getauxval(AT_HWCAP) & kNeeded) == kNeeded;
}
#endif

// Best first.
constexpr Candidate kCandidates[] = {
#if defined(__x86_64__)
    {"avx512", has_avx512, avx512_table},
    {"avx2", has_avx2, avx2_table},
#elif defined(__aarch64__)
    {"neon", has_neon, neon_table},
#endif
    {"scalar", [] { return true; }, scalar_table},
};

}  // namespace

const KernelTable* choose_table(const char* name) {
  for (const Candidate& candidate : kCandidates) {
    if (name != nullptr && std::strcmp(name, candidate.name) != 0) continue;
    if (candidate.is_supported()) return &candidate.table();
    if (name != nullptr) return nullptr;
  }
  return nullptr;
}

std::vector<const char*> supported_tables() {
  std::vector<const char*> names;
  for (const Candidate& candidate : kCandidates) {
    if (candidate.is_supported()) names.push_back(candidate.name);
  }
  return names;
}

}  // namespace headrace
