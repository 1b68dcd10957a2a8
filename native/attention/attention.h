// Paged attention: one operator over (packed query rows, paged KV, block table) for prefill and
// decode.
//
// Definition (per query row and head; positions are absolute)
// - The row at position p sees keys lo..p, lo = max(0, p - window + 1), window 0 meaning lo = 0.
// - Keys are cut at multiples of kSplitLen. Per split, over its visible keys j:
//     s_j = scale * sum_d fma(q[d], k_j[d]) in increasing d, one accumulator per key (softcapped)
//     m = max s_j;  e_j = exp(s_j - m);  l = sum e_j on 8 lanes (lane = j % 8) and the fixed tree
//     acc[d] = sum_j fma(e_j, v_j[d]) in increasing j, one accumulator per d
//   With int8 K and V, k_j and v_j are codes as floats, and their scales enter once per key:
//     s_j = scale * (ks_j * sum_d ...);  acc[d] = sum_j fma(e_j * vs_j, v_j[d]);  l sums e_j itself
// - Splits merge left to right: M = max(m1, m2), a = exp(m1 - M), b = exp(m2 - M),
//     l = fma(l2, b, l1*a), acc = fma(acc2, b, acc1*a). out = acc * (1 / l).
// - A split with no visible key is skipped, never computed. V of keys outside lo..p is never
//   multiplied (stale memory may hold NaN); K lanes outside are computed at most to be discarded.
//
// Int8 K and V are quantized per position and KV head, each by itself: scale = amax / 127 and
// code = x * (127 / amax) rounded to nearest even; amax < 2^-100: all zero; a NaN or an infinity
// gives the scale NaN, so that the rows which see the position, and no others, are NaN.
#pragma once

#include <cstdint>

#include "common/types.h"

namespace headrace {

// A row of an item that several sequences share: the state of its head g in split s goes to
// partials at state + s*stride + g.
struct AttnSharedRow {
  int32_t row;
  int32_t stride;
  int64_t state;
};

// One attention operation of one layer over the rows of a step.
struct AttnParams {
  const float* q;  // row r, head h at q + r*ldq + h*head_dim
  int64_t ldq;
  float* out;  // row r, head h at out + r*ldo + h*head_dim
  int64_t ldo;
  const uint8_t* kv;  // this layer's region: block b at kv + b*block_bytes (KVType says how)
  int64_t block_bytes;
  KVType kv_type;
  int32_t num_heads;
  int32_t num_kv_heads;
  int32_t head_dim;
  int32_t window;
  float scale;
  float softcap;
  const int32_t* positions;  // of every step row
  float* partials;  // split states, partial_floats(head_dim) floats each, indexed by item/merge
  const AttnSharedRow* shared_rows;  // indexed by items
};

// A piece of work: consecutive rows of one sequence, one kv head (all query heads of its group),
// and a range of splits. If `partial` < 0 the item covers all splits of its rows and writes out;
// else the state (m, l, acc) of row i, head g of the item's split s goes to partials at
// partial + ((s - split_begin)*num_rows + i)*group + g.
// With `shared` >= 0 (and `partial` 0) the rows are the num_rows entries of shared_rows from there
// on: of any sequences, all of which have the blocks of `table` in those splits and see them in
// full.
struct AttnItem {
  int32_t row_begin;
  int32_t num_rows;
  int32_t kv_head;
  int32_t split_begin;
  int32_t split_end;
  const int32_t* table;  // block ids by position / kBlockLen
  int64_t partial;
  int32_t shared;  // or -1
};

// Merges num_splits consecutive states of one (row, query head) left to right into out. State s is
// at partials index first + s*stride. A state with l == 0 is empty (split not visible to the row).
struct AttnMerge {
  int32_t row;
  int32_t head;
  int32_t num_splits;
  int64_t first;
  int64_t stride;
};

// Floats of one state: m, l, padding to 8, then head_dim accumulators.
constexpr int64_t partial_floats(int32_t head_dim) { return 8 + head_dim; }

// Scratch floats that attend_item needs per thread.
int64_t attend_scratch_floats(int32_t num_heads, int32_t num_kv_heads, int32_t head_dim);
// Query rows per item in prefill (a constant of the kernel, chosen by benchmark; changes no
// result).
int32_t attend_row_tile(int32_t num_heads, int32_t num_kv_heads);

}  // namespace headrace
