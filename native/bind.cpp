// The module headrace._native: what the machine grants, the choice of kernels, and the parts that
// the other bind_*.cpp files bind.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/table.h"
#include "threads/machine.h"

namespace nb = nanobind;

namespace headrace {

void bind_lease(nb::module_& m, nb::module_& testing);
void bind_model(nb::module_& m);
void bind_roof(nb::module_& m);
void bind_bench(nb::module_& m);
void bind_text(nb::module_& m);
void bind_attention_testing(nb::module_& testing);
void bind_gemm_testing(nb::module_& testing);
void bind_kernels_testing(nb::module_& testing);
void bind_threads_testing(nb::module_& testing);

namespace {

std::vector<std::string> isas() {
  const std::vector<const char*> names = supported_tables();
  return {names.begin(), names.end()};
}

std::string isa() {
  const char* forced = std::getenv("HEADRACE_ISA");
  if (forced != nullptr && forced[0] == '\0') forced = nullptr;
  const KernelTable* table = choose_table(forced);
  if (table == nullptr) {
    std::string known;
    for (const std::string& name : isas()) known += (known.empty() ? "" : ", ") + name;
    throw std::invalid_argument(std::string("HEADRACE_ISA=") + forced +
                                " is not a kernel table of this processor; use one of " + known);
  }
  return table->name;
}

}  // namespace

NB_MODULE(_native, m) {
  m.def("isas", &isas, "Kernel tables that this processor supports, best first.");
  m.def("isa", &isa, "The kernel table in use: HEADRACE_ISA, else the best; ValueError.");
  m.def("cpu_count", [] { return allowed_cpus().size(); }, "Processors of the affinity mask.");
  m.def("default_threads", &default_threads,
        "Threads to use: processors of the affinity mask, bounded by the cgroup's quota.");
  nb::class_<MemoryInfo>(m, "MemoryInfo")
      .def_ro("total_bytes", &MemoryInfo::total_bytes)
      .def_ro("available_bytes", &MemoryInfo::available_bytes);
  m.def(
      "memory_info", [] { return memory_info(); },
      "Memory of the machine, bounded by the limits of the cgroup.");
  nb::module_ testing = m.def_submodule("testing", "Parts by themselves, for tests.");
  bind_lease(m, testing);
  bind_model(m);
  bind_roof(m);
  bind_bench(m);
  bind_text(m);
  bind_attention_testing(testing);
  bind_gemm_testing(testing);
  bind_kernels_testing(testing);
  bind_threads_testing(testing);
}

}  // namespace headrace
