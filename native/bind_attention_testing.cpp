// headrace._native.testing: attention of one layer and its plan on plain bytes, for proofs.
// Scratch, partial states and output hold NaN wherever nothing was written.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "attention/plan.h"
#include "bind_testing.h"
#include "common/table.h"
#include "tape/tape.h"
#include "threads/fp_env.h"

namespace nb = nanobind;

namespace headrace {
namespace {

// sequence, row_begin, num_rows, kv_head, split_begin, split_end, partial, shared
using ItemNumbers = std::array<int64_t, 8>;
// row, head, num_splits, first, stride
using MergeNumbers = std::array<int64_t, 5>;

template <typename T>
std::vector<T> copy_values(const nb::bytes& data) {
  require(data.size() % sizeof(T) == 0, "the bytes are not whole values");
  std::vector<T> values(data.size() / sizeof(T));
  std::memcpy(values.data(), data.data(), data.size());
  return values;
}

// row, stride, state
using SharedNumbers = std::array<int64_t, 3>;

std::vector<float> poison(int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  std::memset(values.data(), 0xff, values.size() * sizeof(float));
  return values;
}

// Items, merges, the number of partial states, and the rows of shared items.
std::tuple<std::vector<ItemNumbers>, std::vector<MergeNumbers>, int64_t, std::vector<SharedNumbers>>
plan_attention_numbers(const std::vector<int32_t>& positions,
                       const std::vector<int32_t>& seq_starts, const std::vector<int32_t>& tables,
                       const std::vector<int32_t>& table_starts, int32_t window, int32_t num_heads,
                       int32_t num_kv_heads, int32_t num_threads) {
  const auto num_seqs = static_cast<int32_t>(seq_starts.size()) - 1;
  require(num_seqs >= 0 && static_cast<size_t>(seq_starts.back()) == positions.size(),
          "seq_starts does not end at the number of rows");
  require(table_starts.size() >= static_cast<size_t>(num_seqs), "a sequence has no table");
  for (int32_t seq = 0; seq < num_seqs; ++seq) {
    const int32_t last =
        positions[static_cast<size_t>(seq_starts[static_cast<size_t>(seq) + 1]) - 1];
    const int64_t end = int64_t{table_starts[static_cast<size_t>(seq)]} + last / kBlockLen;
    require(end < static_cast<int64_t>(tables.size()), "a table is too short");
  }
  const AttnRows rows{positions.data(),    seq_starts.data(), tables.data(),
                      table_starts.data(), num_seqs,          window};
  AttnPlan plan;
  plan_attention(rows, num_heads, num_kv_heads, num_threads, plan);
  std::vector<ItemNumbers> items;
  for (const AttnItem& item : plan.items) {
    const auto at = static_cast<int32_t>(item.table - tables.data());
    const auto seq = std::find(table_starts.begin(), table_starts.end(), at);
    items.push_back({seq - table_starts.begin(), item.row_begin, item.num_rows, item.kv_head,
                     item.split_begin, item.split_end, item.partial, item.shared});
  }
  std::vector<MergeNumbers> merges;
  for (const AttnMerge& merge : plan.merges) {
    merges.push_back({merge.row, merge.head, merge.num_splits, merge.first, merge.stride});
  }
  std::vector<SharedNumbers> shared;
  for (const AttnSharedRow& row : plan.shared_rows) {
    shared.push_back({row.row, row.stride, row.state});
  }
  return {items, merges, plan.num_partials, shared};
}

std::vector<AttnSharedRow> to_shared_rows(const std::vector<SharedNumbers>& numbers) {
  std::vector<AttnSharedRow> rows;
  for (const auto& [row, stride, state] : numbers) {
    rows.push_back({static_cast<int32_t>(row), static_cast<int32_t>(stride), state});
  }
  return rows;
}

// One attend_item, which must keep to its scratch.
void run_item(const KernelTable& table, const AttnParams& params, const AttnItem& item) {
  constexpr int64_t kGuard = 64;
  const int64_t scratch_floats =
      attend_scratch_floats(params.num_heads, params.num_kv_heads, params.head_dim);
  require(item.num_rows <= attend_row_tile(params.num_heads, params.num_kv_heads),
          "an item has too many rows");
  std::vector<float> scratch = poison(scratch_floats + kGuard);
  table.attend_item(params, item, scratch.data());
  const std::vector<float> guard = poison(kGuard);
  if (std::memcmp(guard.data(), scratch.data() + scratch_floats, kGuard * sizeof(float)) != 0) {
    throw std::runtime_error("attend_item wrote past its scratch");
  }
}

// q: [rows, ldq]; kv: [blocks, num_kv_heads], see KVType; table_starts by sequence.
nb::bytes attend(const std::string& isa, const nb::bytes& q, const nb::bytes& kv,
                 const std::vector<int32_t>& tables, const std::vector<int32_t>& table_starts,
                 const std::vector<int32_t>& positions, int32_t num_heads, int32_t num_kv_heads,
                 int32_t head_dim, int32_t window, float scale, float softcap,
                 const std::vector<ItemNumbers>& items, const std::vector<MergeNumbers>& merges,
                 int64_t num_partials, const std::vector<SharedNumbers>& shared_rows,
                 int32_t kv_type) {
  const FpEnv env;
  const KernelTable* table = choose_table(isa.c_str());
  require(table != nullptr, "no such kernel table");
  require(head_dim % 8 == 0 && num_heads % num_kv_heads == 0, "the shape is not supported");
  const std::vector<float> queries = copy_values<float>(q);
  const KVType type = to_kv_type(kv_type);
  const std::vector<uint8_t> arena = copy_values<uint8_t>(kv);
  const std::vector<AttnSharedRow> shared = to_shared_rows(shared_rows);
  const auto num_rows = static_cast<int64_t>(positions.size());
  const int64_t width = int64_t{num_heads} * head_dim;
  std::vector<float> out = poison(num_rows * width);
  std::vector<float> partials = poison(num_partials * partial_floats(head_dim));
  const int64_t ldq = static_cast<int64_t>(queries.size()) / num_rows;
  require(ldq >= width, "q has another size");
  const AttnParams params{queries.data(),
                          ldq,
                          out.data(),
                          width,
                          arena.data(),
                          num_kv_heads * kv_head_bytes(type, head_dim),
                          type,
                          num_heads,
                          num_kv_heads,
                          head_dim,
                          window,
                          scale,
                          softcap,
                          positions.data(),
                          partials.data(),
                          shared.data()};
  for (const auto& [seq, row, rows, kv_head, begin, end, partial, shared_at] : items) {
    const AttnItem item{static_cast<int32_t>(row),
                        static_cast<int32_t>(rows),
                        static_cast<int32_t>(kv_head),
                        static_cast<int32_t>(begin),
                        static_cast<int32_t>(end),
                        tables.data() + table_starts.at(static_cast<size_t>(seq)),
                        partial,
                        static_cast<int32_t>(shared_at)};
    run_item(*table, params, item);
  }
  for (const auto& [row, head, num_splits, first, stride] : merges) {
    table->merge_splits(params, {static_cast<int32_t>(row), static_cast<int32_t>(head),
                                 static_cast<int32_t>(num_splits), first, stride});
  }
  return nb::bytes(reinterpret_cast<const char*>(out.data()), out.size() * sizeof(float));
}

}  // namespace

// Adds the functions to the submodule `testing`.
void bind_attention_testing(nb::module_& testing) {
  testing.def("attend_row_tile", &attend_row_tile, nb::arg("num_heads"), nb::arg("num_kv_heads"));
  testing.def("plan_attention", plan_attention_numbers, nb::arg("positions"), nb::arg("seq_starts"),
              nb::arg("tables"), nb::arg("table_starts"), nb::arg("window"), nb::arg("num_heads"),
              nb::arg("num_kv_heads"), nb::arg("num_threads"));
  testing.def("attend", attend, nb::arg("isa"), nb::arg("q"), nb::arg("kv"), nb::arg("tables"),
              nb::arg("table_starts"), nb::arg("positions"), nb::arg("num_heads"),
              nb::arg("num_kv_heads"), nb::arg("head_dim"), nb::arg("window"), nb::arg("scale"),
              nb::arg("softcap"), nb::arg("items"), nb::arg("merges"), nb::arg("num_partials"),
              nb::arg("shared_rows"), nb::arg("kv_type"));
}

}  // namespace headrace
