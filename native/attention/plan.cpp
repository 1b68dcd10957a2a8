#include "attention/plan.h"

#include <algorithm>
#include <tuple>

#include "attention/attend.h"

namespace headrace {
namespace {

// Cost of reading a key from memory, in lines (rows x heads) of arithmetic on it.
constexpr int64_t kReadLines = kTileLines;

struct Planner {
  const AttnRows& rows;
  int32_t group;
  int32_t num_kv_heads;
  int32_t num_threads;
  AttnPlan& plan;

  int32_t first_key(int32_t row) const {
    return rows.window > 0 ? std::max(0, rows.positions[row] - rows.window + 1) : 0;
  }

  // Keys that rows [begin, end) of one sequence read, times the work on each.
  int64_t cost(int32_t begin, int32_t end, int32_t split_begin, int32_t split_end) const {
    const int64_t low = std::max(first_key(begin), split_begin * kSplitLen);
    const int64_t high = std::min(rows.positions[end - 1] + 1, split_end * kSplitLen);
    return std::max<int64_t>(0, high - low) * ((end - begin) * group + kReadLines);
  }

  int64_t cost(const AttnItem& item) const {
    return cost(item.row_begin, item.row_begin + item.num_rows, item.split_begin, item.split_end);
  }

  // Calls visit(seq, row_begin, row_end) for every tile of at most tile_rows rows.
  template <typename Visit>
  void for_tiles(int32_t tile_rows, Visit visit) const {
    for (int32_t seq = 0; seq < rows.num_seqs; ++seq) {
      const int32_t seq_end = rows.seq_starts[seq + 1];
      for (int32_t row = rows.seq_starts[seq]; row < seq_end; row += tile_rows) {
        visit(seq, row, std::min(seq_end, row + tile_rows));
      }
    }
  }

  // Full tiles unless threads would idle; never so small that reading K and V dominates.
  int32_t choose_tile_rows(int32_t tile_rows) const {
    for (;;) {
      int64_t num_items = 0;
      for_tiles(tile_rows, [&](int32_t, int32_t, int32_t) { num_items += num_kv_heads; });
      const int32_t half = (tile_rows + 1) / 2;
      if (num_threads == 1 || num_items >= 2 * num_threads) return tile_rows;
      if (half == tile_rows || half * group < 2 * kTileLines) return tile_rows;
      tile_rows = half;
    }
  }

  // One item over all splits of the rows, or one per split and the merges of their states.
  void add_items(AttnItem item, int64_t max_cost) {
    const int32_t last = item.row_begin + item.num_rows - 1;
    item.split_begin = first_key(item.row_begin) / kSplitLen;
    item.split_end = rows.positions[last] / kSplitLen + 1;
    item.partial = -1;
    const int32_t num_splits = item.split_end - item.split_begin;
    if (num_splits == 1 || cost(item) <= max_cost) {
      plan.items.push_back(item);
      return;
    }
    const int32_t lines = item.num_rows * group;
    for (int32_t line = 0; line < lines; ++line) {
      plan.merges.push_back({item.row_begin + line / group, item.kv_head * group + line % group,
                             num_splits, plan.num_partials + line, lines});
    }
    const int32_t split_end = item.split_end;
    for (; item.split_begin < split_end; ++item.split_begin) {
      item.split_end = item.split_begin + 1;
      item.partial = plan.num_partials;
      plan.items.push_back(item);
      plan.num_partials += lines;
    }
  }
};

}  // namespace

int32_t attend_row_tile(int32_t num_heads, int32_t num_kv_heads) {
  return std::max(1, kItemLines / (num_heads / num_kv_heads));
}

int64_t attend_scratch_floats(int32_t num_heads, int32_t num_kv_heads, int32_t head_dim) {
  const int32_t lines = attend_row_tile(num_heads, num_kv_heads) * (num_heads / num_kv_heads);
  return attend_scratch_floats(lines, head_dim);
}

void plan_attention(const AttnRows& rows, int32_t num_heads, int32_t num_kv_heads,
                    int32_t num_threads, AttnPlan& plan) {
  plan.items.clear();
  plan.merges.clear();
  plan.num_partials = 0;
  Planner planner{rows, num_heads / num_kv_heads, num_kv_heads, num_threads, plan};
  const int32_t tile_rows = planner.choose_tile_rows(attend_row_tile(num_heads, num_kv_heads));
  int64_t total = 0;
  planner.for_tiles(tile_rows, [&](int32_t, int32_t begin, int32_t end) {
    total += num_kv_heads * planner.cost(begin, end, 0, rows.positions[end - 1] / kSplitLen + 1);
  });
  // Cut what is more than half of a thread's share; alone, a thread needs no cut.
  const int64_t max_cost = num_threads == 1 ? total : total / (2 * num_threads);
  planner.for_tiles(tile_rows, [&](int32_t seq, int32_t begin, int32_t end) {
    for (int32_t kv_head = 0; kv_head < num_kv_heads; ++kv_head) {
      AttnItem item{};
      item.row_begin = begin;
      item.num_rows = end - begin;
      item.kv_head = kv_head;
      item.table = rows.tables + rows.table_starts[seq];
      planner.add_items(item, max_cost);
    }
  });
  if (num_threads == 1) return;
  const auto order = [&](const AttnItem& a, const AttnItem& b) {
    return std::make_tuple(-planner.cost(a), a.row_begin, a.kv_head, a.split_begin) <
           std::make_tuple(-planner.cost(b), b.row_begin, b.kv_head, b.split_begin);
  };
  std::sort(plan.items.begin(), plan.items.end(), order);
}

}  // namespace headrace
