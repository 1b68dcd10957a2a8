// Entry points of attention, one set per instruction set, and what they share with the planner.
// The definition stands in attention/attention.h.
#pragma once

#include "common/table.h"

namespace headrace {

// Lines (query row x head of the group) whose accumulators fit the registers: 6 x 2 of 8 lanes, or
// 6 x 4 of 16.
constexpr int32_t kTileLines = 6;
// Lines of an item at most (if the group is not larger): K and V are read once for all of them, and
// their scores stay in the second-level cache.
constexpr int32_t kItemLines = 96;
// Floats between the scores of two lines.
constexpr int32_t kScoreStride = kSplitLen;

// Blocks whose K or V is expanded to floats at a time, for items of several tiles: at 64 dims they
// stay in the first-level cache.
constexpr int32_t kPanelBlocks = 64 / kBlockLen;

// Scratch of an item with so many lines, rounded up to whole tiles: a panel; per line scores,
// query, accumulators and six numbers.
constexpr int64_t attend_scratch_floats(int32_t lines, int32_t head_dim) {
  const int64_t padded = (lines + kTileLines - 1) / kTileLines * kTileLines;
  return kPanelBlocks * kBlockLen * head_dim + padded * (kScoreStride + 2 * head_dim + 6);
}

}  // namespace headrace

#define HEADRACE_DECLARE_ATTEND(isa)                                                \
  namespace headrace::isa {                                                         \
  void attend_item(const AttnParams& params, const AttnItem& item, float* scratch); \
  void merge_splits(const AttnParams& params, const AttnMerge& merge);              \
  }

HEADRACE_DECLARE_ATTEND(scalar)
#if defined(__x86_64__)
HEADRACE_DECLARE_ATTEND(avx2)
HEADRACE_DECLARE_ATTEND(avx512)
#elif defined(__aarch64__)
HEADRACE_DECLARE_ATTEND(neon)
#endif

#undef HEADRACE_DECLARE_ATTEND
