// headrace._native.RoofProbe: the machine's own limits (roof/roof.h).
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "roof/roof.h"

namespace nb = nanobind;

namespace headrace {
namespace {

// (rates alone, processors, rate together).
using Rates = std::tuple<std::vector<double>, std::vector<int>, double>;

void construct_probe(RoofProbe* self, Pool& pool, const std::string& isa, int64_t max_bytes) {
  const RoofTable* table = roof_named(isa.c_str());
  if (table == nullptr) throw std::invalid_argument("no kernel table " + isa);
  const nb::gil_scoped_release unlocked;
  new (self) RoofProbe(pool, *table, max_bytes);
}

Rates to_tuple(const RoofRates& rates) { return {rates.alone, rates.cpus, rates.together}; }

Rates read(RoofProbe& probe, int64_t bytes, int32_t repeat) {
  const nb::gil_scoped_release unlocked;
  return to_tuple(probe.read(bytes, repeat));
}

RoofOp op_named(const std::string& name) {
  if (name == "fma") return RoofOp::kFma;
  if (name == "int8") return RoofOp::kInt8;
  if (name == "int4-1") return RoofOp::kInt4Row;
  if (name == "int4-4") return RoofOp::kInt4Rows;
  throw std::invalid_argument("no probe " + name);
}

Rates compute(RoofProbe& probe, const std::string& name, int32_t repeat) {
  const RoofOp op = op_named(name);
  const nb::gil_scoped_release unlocked;
  return to_tuple(probe.compute(op, repeat));
}

}  // namespace

void bind_roof(nb::module_& m) {
  nb::class_<RoofProbe>(m, "RoofProbe", "What memory and arithmetic of this machine can do.")
      .def("__init__", &construct_probe, nb::arg("pool"), nb::kw_only(), nb::arg("isa"),
           nb::arg("max_bytes"), nb::keep_alive<1, 2>())
      .def("read", &read, nb::arg("num_bytes"), nb::arg("repeat"))
      .def("compute", &compute, nb::arg("op"), nb::arg("repeat"));
}

}  // namespace headrace
