// Python's view of the compute lease, and what its tests do with one.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>

#include <chrono>
#include <stdexcept>

#include "threads/compute_lease.h"

namespace nb = nanobind;

namespace headrace {
namespace {

// A contiguous buffer to write to.
class Writable {
 public:
  Writable(nb::handle object, size_t bytes) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_WRITABLE) != 0) throw nb::python_error();
    if (static_cast<size_t>(view_.len) < bytes) {
      PyBuffer_Release(&view_);
      throw std::invalid_argument("the buffer is too small");
    }
  }
  ~Writable() { PyBuffer_Release(&view_); }
  Writable(const Writable&) = delete;
  Writable& operator=(const Writable&) = delete;

  volatile uint64_t* counters() const { return static_cast<volatile uint64_t*>(view_.buf); }

 private:
  Py_buffer view_{};
};

// Under the lease adds one to counters[0], which all processes share, and to counters[own]: without
// any protection but the lease. Until counters[0] has reached `total`.
void count(ComputeLease& lease, nb::handle shared, size_t own, uint64_t total, int64_t hold_ns) {
  const Writable memory(shared, (own + 1) * sizeof(uint64_t));
  const nb::gil_scoped_release unlocked;
  volatile uint64_t* counters = memory.counters();
  for (bool more = true; more;) {
    lease.acquire();
    const uint64_t before = counters[0];
    more = before < total;
    if (more) {
      const auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(hold_ns);
      while (std::chrono::steady_clock::now() < end) lease.beat();
      counters[0] = before + 1;
      counters[own] = counters[own] + 1;
    }
    lease.release();
  }
}

}  // namespace

void bind_lease(nb::module_& m, nb::module_& testing) {
  nb::class_<ComputeLease>(m, "ComputeLease", "The right to compute, shared by processes.")
      .def(nb::init<int>(), nb::arg("fd"), "Maps the page behind fd; ValueError if it is none.")
      .def_static("make", &ComputeLease::make, "A descriptor of a new page in memory.")
      .def_static("format", &ComputeLease::format, nb::arg("fd"), "Makes a file a free lease.")
      .def_prop_ro("waited_s", [](const ComputeLease& self) { return self.counts().waited_s; })
      .def_prop_ro("num_waits", [](const ComputeLease& self) { return self.counts().num_waits; })
      .def_prop_ro("num_recovered",
                   [](const ComputeLease& self) { return self.counts().num_recovered; })
      .def_prop_ro("num_given_up",
                   [](const ComputeLease& self) { return self.counts().num_given_up; })
      .def_prop_ro("num_refused",
                   [](const ComputeLease& self) { return self.counts().num_refused; })
      .def_prop_ro("is_taken", &ComputeLease::is_taken);
  testing.def("lease_acquire", &ComputeLease::acquire, nb::arg("lease"),
              nb::call_guard<nb::gil_scoped_release>());
  testing.def("lease_release", &ComputeLease::release, nb::arg("lease"));
  testing.def("lease_beat", &ComputeLease::beat, nb::arg("lease"));
  testing.def("lease_count", &count, nb::arg("lease"), nb::arg("shared"), nb::arg("own"),
              nb::arg("total"), nb::arg("hold_ns"));
}

}  // namespace headrace
