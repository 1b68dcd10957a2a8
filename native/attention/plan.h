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

// Reused from step to step: vectors keep their memory. Items may run in any order and on any
// threads (the costliest stand first); merges after all items, likewise. Items keep pointers into
// AttnRows::tables. `num_partials` states of partial_floats(head_dim) floats are needed.
struct AttnPlan {
  std::vector<AttnItem> items;
  std::vector<AttnMerge> merges;
  int64_t num_partials = 0;
};

// Every (row, head) is covered by one item, or by single-split items and one merge.
void plan_attention(const AttnRows& rows, int32_t num_heads, int32_t num_kv_heads,
                    int32_t num_threads, AttnPlan& plan);

}  // namespace headrace
