// Attention over V8, for the instruction set of HEADRACE_ISA_NS. The definition stands in
// attention/attention.h.
//
// An item's rows (query row x head of the group, "lines" here) go in tiles of up to kTileLines
// through each split: scores of all tiles, softmax line by line, then P.V. Decode and prefill
// differ in the number of lines only. Tiling changes no result: every score and every accumulator
// is one chain of its own.
#include "attention/attend.h"
#include "attention/attend_tiles.h"
#include "common/v8.h"
#include "common/v8_math.h"

namespace headrace {
namespace HEADRACE_ISA_NS {
namespace {

// K and V are touched this many rows of 16 halves ahead (32 KiB).
constexpr int32_t kAheadDims = 1024;
constexpr int32_t kBlocksPerSplit = kSplitLen / kBlockLen;

// Half-open range of keys inside a split, or of blocks.
struct Range {
  int32_t begin;
  int32_t end;

  bool empty() const { return begin >= end; }
};

inline int32_t smaller(int32_t a, int32_t b) { return a < b ? a : b; }
inline int32_t larger(int32_t a, int32_t b) { return a > b ? a : b; }
inline Range blocks_of(Range keys) {
  return {keys.begin / kBlockLen, (keys.end + kBlockLen - 1) / kBlockLen};
}

// One item on one thread, and the layout of its scratch.
struct Work {
  const AttnParams& params;
  const AttnItem& item;
  int32_t group;
  int32_t num_lines;
  int32_t num_tiles;
  int32_t tile_height;   // lines of every tile but the last
  int32_t ahead_blocks;  // see upcoming
  float* q;              // per tile: [head_dim][lines of the tile]
  float* scores;         // [line][kScoreStride]
  float* acc;            // [line][head_dim], of the current split
  float* top;            // [line] m of the current split
  float* sum;            // [line] l of the current split
  float* out_top;        // [line] m and l of the splits merged into out
  float* out_sum;

  Work(const AttnParams& p, const AttnItem& i, float* scratch) : params(p), item(i) {
    group = p.num_heads / p.num_kv_heads;
    num_lines = i.num_rows * group;
    num_tiles = (num_lines + kTileLines - 1) / kTileLines;
    tile_height = (num_lines + num_tiles - 1) / num_tiles;
    ahead_blocks = larger(1, kAheadDims / p.head_dim);
    const int64_t lines = static_cast<int64_t>(num_tiles) * kTileLines;
    scores = scratch;
    q = scores + lines * kScoreStride;
    acc = q + lines * p.head_dim;
    top = acc + lines * p.head_dim;
    sum = top + lines;
    out_top = sum + lines;
    out_sum = out_top + lines;
  }

  int32_t tile_lines(int32_t tile) const {
    return smaller(tile_height, num_lines - tile * tile_height);
  }
  int32_t head(int32_t line) const { return item.kv_head * group + line % group; }
  int32_t row(int32_t line) const { return item.row_begin + line / group; }
  const float* query(int32_t line) const {
    return params.q + row(line) * params.ldq + static_cast<int64_t>(head(line)) * params.head_dim;
  }
  float* out(int32_t line) const {
    return params.out + row(line) * params.ldo + static_cast<int64_t>(head(line)) * params.head_dim;
  }
  const uint16_t* block_keys(int32_t split, int32_t block) const {
    const int64_t id = item.table[split * kBlocksPerSplit + block];
    const int64_t head_halves = 2 * static_cast<int64_t>(params.head_dim) * kBlockLen;
    return params.kv + id * params.block_stride + item.kv_head * head_halves;
  }
  const uint16_t* block_values(int32_t split, int32_t block) const {
    return block_keys(split, block) + static_cast<int64_t>(params.head_dim) * kBlockLen;
  }
  // What is read some blocks after the K or V of `block`: a split's K blocks, its V blocks,
  // then the next split. At the end, `block` itself.
  const uint16_t* upcoming(int32_t split, Range blocks, int32_t block, bool values) const {
    int32_t next = block + ahead_blocks;
    if (next < blocks.end) return values ? block_values(split, next) : block_keys(split, next);
    next -= blocks.end;
    if (!values && blocks.begin + next < blocks.end) {
      return block_values(split, blocks.begin + next);
    }
    const int32_t last = params.positions[item.row_begin + item.num_rows - 1] / kBlockLen;
    if (values && split + 1 < item.split_end && (split + 1) * kBlocksPerSplit + next <= last) {
      return block_keys(split + 1, next);
    }
    return values ? block_values(split, block) : block_keys(split, block);
  }
  // Keys of a split that a line sees, relative to the split.
  Range visible(int32_t split, int32_t line) const {
    const int32_t position = params.positions[row(line)];
    const int32_t first = split * kSplitLen;
    const int32_t low = params.window > 0 ? larger(0, position - params.window + 1) : 0;
    return {larger(0, low - first), smaller(kSplitLen, position + 1 - first)};
  }
  // What the lines [begin, end) see together: positions increase by one from row to row, so both
  // ends rise and no row between two that see a split misses it.
  Range visible(int32_t split, int32_t begin, int32_t end) const {
    return {visible(split, begin).begin, visible(split, end - 1).end};
  }
  Range tile_visible(int32_t split, int32_t tile) const {
    return visible(split, tile * tile_height, tile * tile_height + tile_lines(tile));
  }
};

void pack_queries(const Work& work) {
  const int32_t dim = work.params.head_dim;
  for (int32_t tile = 0; tile < work.num_tiles; ++tile) {
    const int32_t lines = work.tile_lines(tile);
    float* packed = work.q + static_cast<int64_t>(tile) * work.tile_height * dim;
    for (int32_t r = 0; r < lines; ++r) {
      const float* query = work.query(tile * work.tile_height + r);
      for (int32_t d = 0; d < dim; ++d) packed[d * lines + r] = query[d];
    }
  }
}

inline float* tile_scores(const Work& work, int32_t tile, int32_t block) {
  return work.scores + static_cast<int64_t>(tile) * work.tile_height * kScoreStride +
         static_cast<int64_t>(block) * kBlockLen;
}

// Scores of every tile against the blocks that it sees, two blocks at a time.
void score_split(const Work& work, int32_t split) {
  const int32_t dim = work.params.head_dim;
  const Range all = blocks_of(work.visible(split, 0, work.num_lines));
  for (int32_t b = all.begin; b < all.end; b += 2) {
    const int32_t last = smaller(b + 1, all.end - 1);
    const uint16_t* keys[2] = {work.block_keys(split, b), work.block_keys(split, last)};
    const uint16_t* ahead[2] = {work.upcoming(split, all, b, false),
                                work.upcoming(split, all, last, false)};
    for (int32_t tile = 0; tile < work.num_tiles; ++tile) {
      const Range seen = blocks_of(work.tile_visible(split, tile));
      const float* q = work.q + static_cast<int64_t>(tile) * work.tile_height * dim;
      with_count(work.tile_lines(tile), [&](auto n) {
        if constexpr (n.value <= kTileLines / 2) {
          if (b >= seen.begin && b + 1 < seen.end) {
            return score_tile_pair<n.value>(keys, ahead, q, dim, tile_scores(work, tile, b));
          }
        }
        for (int32_t i = larger(b, seen.begin); i <= last && i < seen.end; ++i) {
          score_tile<n.value>(keys[i - b], ahead[i - b], q, dim, tile_scores(work, tile, i));
        }
      });
    }
  }
}

// Turns the scores of the keys [begin, end) into e; m and l of the split.
void softmax_line(const AttnParams& params, float* scores, Range keys, float* top, float* sum) {
  const V8 scale = splat(params.scale);
  const V8 cap = splat(params.softcap);
  const V8 outside = splat(-kInfinity);
  const int32_t begin = keys.begin / 8 * 8;
  V8 highest = outside;
  for (int32_t i = begin; i < keys.end; i += 8) {
    V8 s = mul(load(scores + i), scale);
    if (params.softcap > 0.0f) s = mul(cap, tanh(div(s, cap)));
    s = select(first_lanes(keys.end - i), s, outside);
    s = select(first_lanes(keys.begin - i), outside, s);
    store(scores + i, s);
    highest = max(highest, s);
  }
  *top = reduce8_max(highest);
  const V8 base = splat(*top);
  V8 total = zero8();
  for (int32_t i = begin; i < keys.end; i += 8) {
    const V8 e = exp_not_large(sub(load(scores + i), base));
    store(scores + i, e);
    total = add(total, e);
  }
  *sum = reduce8(total);
}

// P.V of the lines [line, line + lines) of one tile over the keys [begin, end) of a split.
void add_values(const Work& work, int32_t split, int32_t line, int32_t lines, Range keys) {
  const int32_t dim = work.params.head_dim;
  const float* e = work.scores + static_cast<int64_t>(line) * kScoreStride;
  float* acc = work.acc + static_cast<int64_t>(line) * dim;
  const Range all = blocks_of(work.visible(split, 0, work.num_lines));
  for (int32_t j = keys.begin; j < keys.end;) {
    const int32_t block = j / kBlockLen;
    const int32_t count = smaller(keys.end, (block + 1) * kBlockLen) - j;
    const int32_t offset = j % kBlockLen * dim;
    const uint16_t* values = work.block_values(split, block) + offset;
    const uint16_t* ahead = work.upcoming(split, all, block, true) + offset;
    with_count(lines,
               [&](auto n) { value_row<n.value>(values, ahead, dim, e + j, count, acc, dim); });
    j += count;
  }
}

// Calls add(first line, number of lines, keys) so that every line of the tile gets exactly its
// visible keys in increasing order: what all lines see goes in one call, the rest line by line.
template <typename Add>
inline void for_visible(const Work& work, int32_t split, int32_t tile, Add add_keys) {
  int32_t begin = tile * work.tile_height;
  int32_t end = begin + work.tile_lines(tile);
  while (begin < end && work.visible(split, begin).empty()) ++begin;
  while (begin < end && work.visible(split, end - 1).empty()) --end;
  if (begin == end) return;
  // Positions increase, so the last line starts last and the first one ends first.
  Range common{work.visible(split, end - 1).begin, work.visible(split, begin).end};
  if (common.empty()) common = {kSplitLen, kSplitLen};
  for (int32_t line = begin; line < end; ++line) {
    const Range seen = work.visible(split, line);
    const Range head{seen.begin, smaller(seen.end, common.begin)};
    if (!head.empty()) add_keys(line, 1, head);
  }
  if (!common.empty()) add_keys(begin, end - begin, common);
  for (int32_t line = begin; line < end; ++line) {
    const Range seen = work.visible(split, line);
    const Range tail{larger(seen.begin, common.end), seen.end};
    if (!tail.empty()) add_keys(line, 1, tail);
  }
}

inline void copy_floats(const float* from, int32_t n, float* to) {
  for (int32_t i = 0; i < n; i += 8) store(to + i, load(from + i));
}

// Merges the state (m2, l2, acc2) into (m, l, acc).
void merge_state(float m2, float l2, const float* acc2, int32_t dim, float* m, float* l,
                 float* acc) {
  const float highest = *m > m2 ? *m : m2;
  const V8 a = exp(splat(*m - highest));
  const V8 b = exp(splat(m2 - highest));
  float merged[8];
  store(merged, fma(splat(l2), b, mul(splat(*l), a)));
  *m = highest;
  *l = merged[0];
  for (int32_t d = 0; d < dim; d += 8) {
    store(acc + d, fma(load(acc2 + d), b, mul(load(acc + d), a)));
  }
}

inline void finish_out(float sum, int32_t dim, float* out) {
  const V8 inverse = div(splat(1.0f), splat(sum));
  for (int32_t d = 0; d < dim; d += 8) store(out + d, mul(load(out + d), inverse));
}

// Hands the state of a line's split on: to partials, or merged into out.
void finish_line(const Work& work, int32_t line, bool seen, bool first) {
  const int32_t dim = work.params.head_dim;
  const float* acc = work.acc + static_cast<int64_t>(line) * dim;
  if (work.item.partial >= 0) {
    float* state = work.params.partials + (work.item.partial + line) * partial_floats(dim);
    state[0] = seen ? work.top[line] : -kInfinity;
    state[1] = seen ? work.sum[line] : 0.0f;
    if (seen) copy_floats(acc, dim, state + 8);
  } else if (seen && first) {
    work.out_top[line] = work.top[line];
    work.out_sum[line] = work.sum[line];
    copy_floats(acc, dim, work.out(line));
  } else if (seen) {
    merge_state(work.top[line], work.sum[line], acc, dim, work.out_top + line, work.out_sum + line,
                work.out(line));
  }
}

void attend_split(const Work& work, int32_t split) {
  const int32_t dim = work.params.head_dim;
  score_split(work, split);
  for (int32_t line = 0; line < work.num_lines; ++line) {
    const Range seen = work.visible(split, line);
    if (seen.empty()) continue;
    softmax_line(work.params, work.scores + static_cast<int64_t>(line) * kScoreStride, seen,
                 work.top + line, work.sum + line);
    float* acc = work.acc + static_cast<int64_t>(line) * dim;
    for (int32_t d = 0; d < dim; d += 8) store(acc + d, zero8());
  }
  for (int32_t tile = 0; tile < work.num_tiles; ++tile) {
    for_visible(work, split, tile, [&](int32_t line, int32_t lines, Range keys) {
      add_values(work, split, line, lines, keys);
    });
  }
}

}  // namespace

void attend_item(const AttnParams& params, const AttnItem& item, float* scratch) {
  const Work work(params, item, scratch);
  pack_queries(work);
  for (int32_t split = item.split_begin; split < item.split_end; ++split) {
    if (!work.visible(split, 0, work.num_lines).empty()) attend_split(work, split);
    for (int32_t line = 0; line < work.num_lines; ++line) {
      const bool seen = !work.visible(split, line).empty();
      const bool first = split == item.split_begin || work.visible(split - 1, line).empty();
      finish_line(work, line, seen, first);
    }
  }
  if (item.partial >= 0) return;
  for (int32_t line = 0; line < work.num_lines; ++line) {
    finish_out(work.out_sum[line], params.head_dim, work.out(line));
  }
}

void merge_splits(const AttnParams& params, const AttnMerge& merge) {
  const int32_t dim = params.head_dim;
  const int64_t state_floats = partial_floats(dim);
  float* out = params.out + merge.row * params.ldo + static_cast<int64_t>(merge.head) * dim;
  float m = -kInfinity;
  float l = 0.0f;
  for (int32_t s = 0; s < merge.num_splits; ++s) {
    const float* state = params.partials + (merge.first + s * merge.stride) * state_floats;
    if (state[1] == 0.0f) continue;
    if (l == 0.0f) {
      m = state[0];
      l = state[1];
      copy_floats(state + 8, dim, out);
    } else {
      merge_state(state[0], state[1], state + 8, dim, &m, &l, out);
    }
  }
  finish_out(l, dim, out);
}

}  // namespace HEADRACE_ISA_NS
}  // namespace headrace
