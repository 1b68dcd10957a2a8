// Cuts the attention of one layer over the rows of a step into items and merges. A pure function of
// lengths; the cut may follow the number of threads, as it changes no bit of any result.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/attention.h"

namespace headrace {

// The rows of a step and the block tables of one layer group (backends/base.py StepPlan).
struct AttnRows {
  const int32_t* positions;     // [seq_starts[num_seqs]]
  const int32_t* seq_starts;    // [num_seqs + 1]
  const int32_t* tables;        // concatenated block tables
  const int32_t* table_starts;  // [num_seqs]: where each begins in tables
  int32_t num_seqs;
  int32_t window;
};

// Splits [split_begin, split_end) that the rows of all these sequences see in full, in blocks that
// are the same in all their tables.
struct AttnSharedRun {
  int32_t split_begin;
  int32_t split_end;
  std::vector<int32_t> seqs;
};

// Reused from step to step: vectors keep their memory. Items may run in any order and on any
// threads (the costliest stand first); merges after all items, likewise. Items keep pointers into
// AttnRows::tables. `num_partials` states of partial_floats(head_dim) floats are needed.
struct AttnPlan {
  std::vector<AttnItem> items;
  std::vector<AttnMerge> merges;
  std::vector<AttnSharedRow> shared_rows;
  int64_t num_partials = 0;

  // The planner's own.
  std::vector<AttnSharedRun> shared_runs;
  std::vector<int32_t> shared_begin;  // [num_seqs] splits that a sequence shares
  std::vector<int32_t> shared_end;
  std::vector<int32_t> candidates;
  std::vector<AttnSharedRow> row_states;  // [num_kv_heads][rows], of those that share
};

// Every (row, head) is covered by one item, or by items of states and one merge.
void plan_attention(const AttnRows& rows, int32_t num_heads, int32_t num_kv_heads,
                    int32_t num_threads, AttnPlan& plan);

}  // namespace headrace
