// headrace._native.KernelBench: the time of single kernels, over the threads of a pool.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "attention/plan.h"
#include "bind_testing.h"
#include "common/table.h"
#include "tape/memory.h"
#include "threads/pool.h"

namespace nb = nanobind;

namespace headrace {
namespace {

// Bytes that are small ordinary numbers in every stored type.
constexpr int kFill = 0x2d;

// The last `rows` positions of one sequence of `context`, in layers with KV of their own.
struct AttentionSize {
  KVType type;
  int32_t num_heads;
  int32_t num_kv_heads;
  int32_t head_dim;
  int32_t layers;
  int32_t context;
  int32_t rows;

  int32_t num_blocks() const { return (context + kBlockLen - 1) / kBlockLen; }
  int64_t block_bytes() const { return num_kv_heads * kv_head_bytes(type, head_dim); }
  int64_t layer_bytes() const { return num_blocks() * block_bytes(); }
  int64_t width() const { return int64_t{num_heads} * head_dim; }

  void check() const {
    require(type == KVType::f16 || type == KVType::i8, "KV is of type 0 (halves) or 1 (bytes)");
    require(num_kv_heads >= 1 && num_heads >= num_kv_heads && num_heads <= 256 &&
                num_heads % num_kv_heads == 0,
            "heads are 1 to 256, a multiple of the KV heads");
    require(head_dim >= 8 && head_dim <= 256 && head_dim % 8 == 0,
            "a head has 8 to 256 values, a multiple of 8");
    require(layers >= 1 && layers <= 256 && context >= 1 && context <= 1 << 17 && rows >= 1 &&
                rows <= context,
            "layers are 1 to 256, a context 1 to 131072 positions, rows at most as many");
  }
};

// Of one matrix, of rows of floats, or of keys and values, all made here. Seconds of the best of
// `repeat` runs.
class KernelBench {
 public:
  KernelBench(Pool& pool, const std::string& isa) : pool_(pool), table_(table_named(isa)) {}

  double gemm(int32_t dtype_id, int32_t n, int32_t k, int32_t rows, int32_t repeat,
              bool float_activations) {
    const DType dtype = checked(dtype_id, n, k);
    require(rows >= 1 && rows <= 4096, "rows are 1 to 4096");
    const Pages source = filled(source_bytes(dtype, n, k));
    const ActKind act = float_activations ? ActKind::f32 : act_kind(dtype);
    PackedMatrix w{dtype, act, n, k, packed_tile_bytes(dtype, k), nullptr};
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

  // Layer after layer, as in a step: one row is a step of decode, rows = context a whole prompt.
  double attention_time(int32_t kv_type, int32_t num_heads, int32_t num_kv_heads, int32_t head_dim,
                        int32_t layers, int32_t context, int32_t rows, int32_t repeat) {
    const AttentionSize size{
        static_cast<KVType>(kv_type), num_heads, num_kv_heads, head_dim, layers, context, rows};
    size.check();
    std::vector<int32_t> table(size.num_blocks()), positions(rows);
    std::iota(table.begin(), table.end(), 0);
    std::iota(positions.begin(), positions.end(), context - rows);
    const int32_t seq_starts[2] = {0, rows}, table_start = 0;
    AttnPlan plan;
    plan_attention({positions.data(), seq_starts, table.data(), &table_start, 1, 0}, num_heads,
                   num_kv_heads, pool_.num_threads(), plan);
    const Pages kv = filled(static_cast<size_t>(size.layer_bytes()) * layers);
    const size_t floats = static_cast<size_t>(size.width()) * rows;
    const Pages q(floats * sizeof(float)), out(floats * sizeof(float));
    std::fill_n(q.as<float>(), floats, 0.5f);
    const Pages partials(sizeof(float) * plan.num_partials * partial_floats(head_dim));
    AttnParams params{q.as<float>(),
                      size.width(),
                      out.as<float>(),
                      size.width(),
                      kv.data(),
                      size.block_bytes(),
                      size.type,
                      num_heads,
                      num_kv_heads,
                      head_dim,
                      0,
                      0.125f,
                      0.0f,
                      positions.data(),
                      partials.as<float>(),
                      plan.shared_rows.data()};
    const int64_t stride =
        (attend_scratch_floats(num_heads, num_kv_heads, head_dim) + 15) / 16 * 16;
    const Pages scratch(sizeof(float) * stride * pool_.num_threads());
    return best_of(repeat, [&](Pool::Lease& lease) {
      for (int32_t layer = 0; layer < layers; ++layer) {
        params.kv = kv.data() + layer * size.layer_bytes();
        run_attention(lease, params, plan, scratch.as<float>(), stride);
      }
    });
  }

 private:
  void run_attention(Pool::Lease& lease, const AttnParams& params, const AttnPlan& plan,
                     float* scratch, int64_t stride) {
    lease.parallel_for(static_cast<uint32_t>(plan.items.size()), [&](int thread, uint32_t item) {
      table_.attend_item(params, plan.items[item], scratch + thread * stride);
    });
    const auto num_merges = static_cast<int64_t>(plan.merges.size());
    if (num_merges == 0) return;
    // As tape/attends.cpp: few of them by the caller alone.
    const int64_t floats = num_merges * plan.merges.front().num_splits * params.head_dim;
    const int64_t chunks =
        floats < 16 * 1024 ? 1 : std::min<int64_t>(num_merges, 4 * lease.num_threads());
    lease.parallel_for(static_cast<uint32_t>(chunks), [&](int, uint32_t chunk) {
      const int64_t end = (chunk + 1) * num_merges / chunks;
      for (int64_t m = chunk * num_merges / chunks; m < end; ++m) {
        table_.merge_splits(params, plan.merges[static_cast<size_t>(m)]);
      }
    });
  }

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
    const int32_t pieces = std::min(count, 4 * pool_.num_threads());
    return best_of(repeat, [&](Pool::Lease& lease) {
      lease.parallel_for(static_cast<uint32_t>(pieces), [&](int, uint32_t piece) {
        const auto edge = [&](int64_t i) { return static_cast<int32_t>(count * i / pieces); };
        body(edge(piece), edge(piece + 1));
      });
    });
  }

  template <typename Body>
  double best_of(int32_t repeat, const Body& body) {
    require(repeat >= 1 && repeat <= 10000, "repeat is 1 to 10000");
    double best_s = 1e30;
    for (int32_t run = 0; run <= repeat; ++run) {  // the first warms up
      Pool::Lease lease(pool_);
      const auto start = std::chrono::steady_clock::now();
      body(lease);
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
           nb::arg("rows"), nb::arg("repeat"), nb::kw_only(), nb::arg("float_activations") = false,
           unlocked)
      .def("attention", &KernelBench::attention_time, nb::kw_only(), nb::arg("kv_type"),
           nb::arg("num_heads"), nb::arg("num_kv_heads"), nb::arg("head_dim"), nb::arg("layers"),
           nb::arg("context"), nb::arg("rows"), nb::arg("repeat"), unlocked)
      .def("pack", &KernelBench::pack_time, nb::arg("dtype"), nb::arg("n"), nb::arg("k"),
           nb::arg("repeat"), unlocked)
      .def("rows", &KernelBench::rows_time, nb::arg("kernel"), nb::arg("rows"), nb::arg("dim"),
           nb::arg("repeat"), unlocked);
}

}  // namespace headrace
