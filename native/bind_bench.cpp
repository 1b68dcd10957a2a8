// headrace._native.KernelBench: the time of single kernels, over the threads of a pool.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string>

#include "bind_testing.h"
#include "common/table.h"
#include "tape/memory.h"
#include "threads/pool.h"

namespace nb = nanobind;

namespace headrace {
namespace {

// Bytes that are small ordinary numbers in every stored type.
constexpr int kFill = 0x2d;

// Of one matrix or of rows of floats, all made here. Seconds of the best of `repeat` runs.
class KernelBench {
 public:
  KernelBench(Pool& pool, const std::string& isa) : pool_(pool), table_(table_named(isa)) {}

  double gemm(int32_t dtype_id, int32_t n, int32_t k, int32_t rows, int32_t repeat) {
    const DType dtype = checked(dtype_id, n, k);
    require(rows >= 1 && rows <= 4096, "rows are 1 to 4096");
    const Pages source = filled(source_bytes(dtype, n, k));
    PackedMatrix w{dtype, act_kind(dtype), n, k, packed_tile_bytes(dtype, k), nullptr};
    const int32_t tiles = w.num_tiles();
    const Pages packed(w.tile_bytes * tiles, true);
    const Pages acts = filled(act_row_bytes(w.act, k) * rows);
    const Pages out(static_cast<size_t>(rows) * n * sizeof(float));
    w.data = packed.data();
    pack(dtype, source.data(), w, packed.data());
    quantize_ones(w, acts.data(), rows);
    return best(
        repeat,
        [&](int32_t begin, int32_t end) {
          table_.gemm(w, begin, end, acts.data(), rows, {out.as<float>(), n, nullptr, false});
        },
        tiles);
  }

  double pack_time(int32_t dtype_id, int32_t n, int32_t k, int32_t repeat) {
    const DType dtype = checked(dtype_id, n, k);
    const Pages source = filled(source_bytes(dtype, n, k));
    const PackedMatrix w{dtype, act_kind(dtype), n, k, packed_tile_bytes(dtype, k), nullptr};
    const Pages packed(w.tile_bytes * w.num_tiles(), true);
    return best(
        repeat,
        [&](int32_t begin, int32_t end) {
          table_.pack_tiles(dtype, source.data(), n, k, packed.data(), begin, end);
        },
        w.num_tiles());
  }

  // "a8", "a16": quantize_rows; "rmsnorm", "silu", "gelu", "rope": of `rows` rows of `dim` floats.
  double rows_time(const std::string& what, int32_t rows, int32_t dim, int32_t repeat) {
    require(rows >= 1 && rows <= 65536 && dim >= 64 && dim <= 65536 && dim % 64 == 0,
            "rows are 1 to 65536, of 64 to 65536 floats, a multiple of 64");
    const size_t count = static_cast<size_t>(rows) * dim;
    const Pages x(2 * count * sizeof(float)), out(count * sizeof(float));
    const Pages extra(std::max<size_t>(count, dim) * sizeof(float));
    std::fill_n(x.as<float>(), 2 * count, 0.5f);
    std::fill_n(extra.as<float>(), count, 0.5f);
    const int64_t ld = dim;
    return best(
        repeat,
        [&](int32_t begin, int32_t end) {
          float* from = x.as<float>() + begin * ld;
          float* to = out.as<float>() + begin * ld;
          const int32_t part = end - begin;
          if (what == "a8" || what == "a16") {
            const ActKind kind = what == "a8" ? ActKind::a8 : ActKind::a16;
            const size_t stride = act_row_bytes(kind, dim);
            table_.quantize_rows(kind, from, ld, part, dim, out.data() + begin * stride, stride);
          } else if (what == "rmsnorm") {
            table_.rmsnorm(from, ld, extra.as<float>(), 1e-5f, part, dim, to, ld);
          } else if (what == "silu") {
            table_.silu_gate(x.as<float>() + begin * 2 * ld, 2 * ld, part, dim, to, ld);
          } else if (what == "gelu") {
            table_.gelu_gate(x.as<float>() + begin * 2 * ld, 2 * ld, part, dim, to, ld);
          } else if (what == "rope") {
            table_.rope(from, ld, part, dim / 64, 64, extra.as<float>(), 32, false);
          } else {
            throw std::invalid_argument("no kernel " + what);
          }
        },
        rows);
  }

 private:
  static DType checked(int32_t dtype, int32_t n, int32_t k) {
    for (const int32_t known : {0, 1, 2, 3, 6, 7, 8, 12, 13, 14, 30}) {
      if (dtype != known) continue;
      require(n >= 1 && n <= 1 << 20 && k >= 256 && k <= 65536 && k % 256 == 0,
              "a matrix has 1 to 1048576 outputs and 256 to 65536 inputs, a multiple of 256");
      return static_cast<DType>(dtype);
    }
    throw std::invalid_argument("unknown dtype");
  }

  static size_t source_bytes(DType dtype, int32_t n, int32_t k) {
    return static_cast<size_t>(n) * (k / block_weights(dtype)) * block_bytes(dtype);
  }

  static Pages filled(size_t bytes) {
    Pages pages(bytes, true);
    std::memset(pages.data(), kFill, bytes);
    return pages;
  }

  void pack(DType dtype, const uint8_t* source, const PackedMatrix& w, uint8_t* to) {
    Pool::Lease lease(pool_);
    lease.parallel_for(static_cast<uint32_t>(w.num_tiles()), [&](int, uint32_t tile) {
      const auto t = static_cast<int32_t>(tile);
      table_.pack_tiles(dtype, source, w.n, w.k, to, t, t + 1);
    });
  }

  void quantize_ones(const PackedMatrix& w, uint8_t* acts, int32_t rows) {
    const size_t stride = act_row_bytes(w.act, w.k);
    const Pages ones(static_cast<size_t>(w.k) * sizeof(float));
    std::fill_n(ones.as<float>(), w.k, 1.0f);
    for (int32_t row = 0; row < rows; ++row) {
      table_.quantize_rows(w.act, ones.as<float>(), w.k, 1, w.k, acts + row * stride, stride);
    }
  }

  // body(begin, end) over [0, count), some pieces for each thread.
  template <typename Body>
  double best(int32_t repeat, const Body& body, int32_t count) {
    require(repeat >= 1 && repeat <= 10000, "repeat is 1 to 10000");
    const int32_t pieces = std::min(count, 4 * pool_.num_threads());
    double best_s = 1e30;
    for (int32_t run = 0; run <= repeat; ++run) {  // the first warms up
      Pool::Lease lease(pool_);
      const auto start = std::chrono::steady_clock::now();
      lease.parallel_for(static_cast<uint32_t>(pieces), [&](int, uint32_t piece) {
        const auto edge = [&](int64_t i) { return static_cast<int32_t>(count * i / pieces); };
        body(edge(piece), edge(piece + 1));
      });
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      if (run > 0) best_s = std::min(best_s, took.count());
    }
    return best_s;
  }

  Pool& pool_;
  const KernelTable& table_;
};

}  // namespace

void bind_bench(nb::module_& m) {
  const auto unlocked = nb::call_guard<nb::gil_scoped_release>();
  nb::class_<KernelBench>(m, "KernelBench", "Times of single kernels, over the threads of a pool.")
      .def(nb::init<Pool&, const std::string&>(), nb::arg("pool"), nb::arg("isa"),
           nb::keep_alive<1, 2>())
      .def("gemm", &KernelBench::gemm, nb::arg("dtype"), nb::arg("n"), nb::arg("k"),
           nb::arg("rows"), nb::arg("repeat"), unlocked)
      .def("pack", &KernelBench::pack_time, nb::arg("dtype"), nb::arg("n"), nb::arg("k"),
           nb::arg("repeat"), unlocked)
      .def("rows", &KernelBench::rows_time, nb::arg("kernel"), nb::arg("rows"), nb::arg("dim"),
           nb::arg("repeat"), unlocked);
}

}  // namespace headrace
