#include "attention/plan.h"

#include <algorithm>
#include <cstring>
#include <tuple>

#include "attention/attend.h"

namespace headrace {
namespace {

// Cost of reading a key from memory, in lines (rows x heads) of arithmetic on it.
constexpr int64_t kReadLines = kTileLines;
// Cost of handing a split's state of one line to a merge, in the same unit.
constexpr int64_t kStateLines = 8;
constexpr int32_t kBlocksPerSplit = kSplitLen / kBlockLen;

// Splits [begin, end) of a sequence that it reads together with others.
struct SplitRange {
  int32_t begin;
  int32_t end;
};

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

  // The same of a whole split.
  int64_t split_cost(int32_t num_rows) const {
    return int64_t{kSplitLen} * (int64_t{num_rows} * group + kReadLines);
  }

  int64_t cost(const AttnItem& item) const {
    if (item.shared >= 0) return (item.split_end - item.split_begin) * split_cost(item.num_rows);
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

  // Cuts the splits [begin, end) into items that hand on states: long runs first, as a thread reads
  // ahead inside an item, then shorter ones, so that threads end together.
  void add_runs(AttnItem item, int32_t begin, int32_t end, int64_t max_cost) {
    const int64_t fits = std::max<int64_t>(1, max_cost / split_cost(item.num_rows));
    while (begin < end) {
      const int32_t run = static_cast<int32_t>(std::min<int64_t>(fits, (end - begin + 3) / 4));
      item.split_begin = begin;
      item.split_end = begin + run;
      plan.items.push_back(item);
      if (item.shared < 0) item.partial += int64_t{run} * item.num_rows * group;
      begin += run;
    }
  }

  // One item over all splits of the rows, or several and the merges of their states. What the rows
  // share is left to add_shared_items.
  void add_items(AttnItem item, SplitRange shared, int64_t max_cost) {
    const int32_t last = item.row_begin + item.num_rows - 1;
    const int32_t begin = first_key(item.row_begin) / kSplitLen;
    const int32_t end = rows.positions[last] / kSplitLen + 1;
    item.split_begin = begin;
    item.split_end = end;
    item.partial = -1;
    const bool is_shared = shared.begin < shared.end;
    if (!is_shared && (end - begin == 1 || cost(item) <= max_cost)) {
      plan.items.push_back(item);
      return;
    }
    const int32_t lines = item.num_rows * group;
    for (int32_t line = 0; line < lines; ++line) {
      plan.merges.push_back({item.row_begin + line / group, item.kv_head * group + line % group,
                             end - begin, plan.num_partials + line, lines});
    }
    item.partial = plan.num_partials;
    plan.num_partials += int64_t{end - begin} * lines;
    if (!is_shared) return add_runs(item, begin, end, max_cost);
    AttnItem rest = item;
    add_runs(rest, begin, shared.begin, max_cost);
    rest.partial = item.partial + int64_t{shared.end - begin} * lines;
    add_runs(rest, shared.end, end, max_cost);
    for (int32_t row = 0; row < item.num_rows; ++row) {
      row_state(item.kv_head, item.row_begin + row) = {
          item.row_begin + row, lines, item.partial - int64_t{begin} * lines + row * group};
    }
  }

  int32_t num_rows() const { return rows.seq_starts[rows.num_seqs]; }
  SplitRange shared_of(int32_t seq) const {
    return {plan.shared_begin[static_cast<size_t>(seq)], plan.shared_end[static_cast<size_t>(seq)]};
  }

  AttnSharedRow& row_state(int32_t kv_head, int32_t row) {
    return plan.row_states[static_cast<size_t>(int64_t{kv_head} * num_rows() + row)];
  }

  // Items over runs of splits that several sequences see in full, for all rows of those.
  void add_shared_items(int32_t tile_rows, int64_t max_cost) {
    for (const AttnSharedRun& run : plan.shared_runs) {
      for (int32_t kv_head = 0; kv_head < num_kv_heads; ++kv_head) {
        AttnItem item{};
        item.kv_head = kv_head;
        item.table = rows.tables + rows.table_starts[run.seqs.front()];
        const auto first = static_cast<int32_t>(plan.shared_rows.size());
        for (const int32_t seq : run.seqs) {
          for (int32_t row = rows.seq_starts[seq]; row < rows.seq_starts[seq + 1]; ++row) {
            plan.shared_rows.push_back(row_state(kv_head, row));
          }
        }
        const auto end = static_cast<int32_t>(plan.shared_rows.size());
        for (int32_t begin = first; begin < end; begin += tile_rows) {
          item.shared = begin;
          item.num_rows = std::min(tile_rows, end - begin);
          add_runs(item, run.split_begin, run.split_end, max_cost);
        }
      }
    }
  }

  // ---- who shares what ----

  const int32_t* split_blocks(int32_t seq, int32_t split) const {
    return rows.tables + rows.table_starts[seq] + int64_t{split} * kBlocksPerSplit;
  }
  bool sees_in_full(int32_t seq, int32_t split) const {
    const int32_t begin = rows.seq_starts[seq];
    const int32_t end = rows.seq_starts[seq + 1];
    return rows.positions[begin] + 1 >= (split + 1) * kSplitLen &&
           first_key(end - 1) <= split * kSplitLen;
  }
  int compare_blocks(int32_t a, int32_t b, int32_t split) const {
    constexpr size_t kBytes = kBlocksPerSplit * sizeof(int32_t);
    return std::memcmp(split_blocks(a, split), split_blocks(b, split), kBytes);
  }

  // Fills shared_runs and what each sequence shares: consecutive splits whose blocks others have
  // too, if reading them once saves more than handing their states on costs.
  void find_shared() {
    const auto num_seqs = static_cast<size_t>(rows.num_seqs);
    plan.shared_begin.assign(num_seqs, 0);
    plan.shared_end.assign(num_seqs, 0);
    plan.shared_runs.clear();
    plan.shared_rows.clear();
    if (num_seqs < 2) return;
    int32_t num_splits = 0;
    for (int32_t seq = 0; seq < rows.num_seqs; ++seq) {
      num_splits = std::max(num_splits, (rows.positions[rows.seq_starts[seq]] + 1) / kSplitLen);
    }
    bool any = true;  // Without windows, who parts at a split has parted for good.
    for (int32_t split = 0; split < num_splits && (any || rows.window > 0); ++split) {
      any = find_shared(split);
    }
    if (!plan.shared_runs.empty()) {
      plan.row_states.resize(static_cast<size_t>(num_rows()) * static_cast<size_t>(num_kv_heads));
    }
  }

  bool find_shared(int32_t split) {
    auto& seqs = plan.candidates;
    seqs.clear();
    for (int32_t seq = 0; seq < rows.num_seqs; ++seq) {
      const SplitRange range = shared_of(seq);
      const bool goes_on = range.end == split || (rows.window > 0 && range.end == 0);
      if (goes_on && sees_in_full(seq, split)) seqs.push_back(seq);
    }
    std::sort(seqs.begin(), seqs.end(), [&](int32_t a, int32_t b) {
      const int order = compare_blocks(a, b, split);
      return order != 0 ? order < 0 : a < b;
    });
    bool any = false;
    for (auto begin = seqs.begin(); begin != seqs.end();) {
      const auto end = std::find_if(
          begin, seqs.end(), [&](int32_t seq) { return compare_blocks(*begin, seq, split) != 0; });
      if (is_worthwhile(begin, end)) {
        add_shared(begin, end, split);
        any = true;
      }
      begin = end;
    }
    return any;
  }

  using Seqs = std::vector<int32_t>::const_iterator;

  bool is_worthwhile(Seqs begin, Seqs end) const {
    int64_t lines = 0;
    for (Seqs seq = begin; seq != end; ++seq) {
      lines += int64_t{rows.seq_starts[*seq + 1] - rows.seq_starts[*seq]} * group;
    }
    return (end - begin - 1) * int64_t{kSplitLen} * kReadLines > lines * kStateLines;
  }

  void add_shared(Seqs begin, Seqs end, int32_t split) {
    for (Seqs seq = begin; seq != end; ++seq) {
      const auto s = static_cast<size_t>(*seq);
      if (plan.shared_end[s] == 0) plan.shared_begin[s] = split;
      plan.shared_end[s] = split + 1;
    }
    for (AttnSharedRun& run : plan.shared_runs) {
      if (run.split_end == split && std::equal(begin, end, run.seqs.begin(), run.seqs.end())) {
        ++run.split_end;
        return;
      }
    }
    plan.shared_runs.push_back({split, split + 1, {begin, end}});
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
  planner.find_shared();
  const int32_t full_rows = attend_row_tile(num_heads, num_kv_heads);
  const int32_t tile_rows = planner.choose_tile_rows(full_rows);
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
      item.shared = -1;
      planner.add_items(item, planner.shared_of(seq), max_cost);
    }
  });
  planner.add_shared_items(full_rows, max_cost);
  if (num_threads == 1) return;
  const auto order = [&](const AttnItem& a, const AttnItem& b) {
    return std::make_tuple(-planner.cost(a), a.row_begin, a.shared, a.kv_head, a.split_begin) <
           std::make_tuple(-planner.cost(b), b.row_begin, b.shared, b.kv_head, b.split_begin);
  };
  std::sort(plan.items.begin(), plan.items.end(), order);
}

}  // namespace headrace
