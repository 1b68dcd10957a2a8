// Choice of the kernel table, by what the processor and the operating system support.
#include <cstring>

#include "common/table.h"

namespace headrace {

const KernelTable* choose_table(const char* name) {
  const bool any = name == nullptr;
#if defined(__x86_64__)
  // The builtin also asks the operating system (XCR0) whether it saves the wide registers.
  if (any || std::strcmp(name, "avx2") == 0) {
    const bool supported = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                           __builtin_cpu_supports("f16c") && __builtin_cpu_supports("bmi2");
    if (supported) return &avx2_table();
    if (!any) return nullptr;
  }
#endif
  if (any || std::strcmp(name, "scalar") == 0) return &scalar_table();
  return nullptr;
}

}  // namespace headrace
