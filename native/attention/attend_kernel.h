// Attention over V8, for the instruction set of HEADRACE_ISA_NS. The definition stands in
// attention/attention.h.
//
// An item's rows (query row x head of the group, "lines" here) go in tiles of up to kTileLines
// through each split: scores of all tiles, softmax line by line, then P.V. Decode and prefill
// differ in the number of lines only: one tile reads the codes of K and V as they are stored, for
// several tiles they are expanded to floats once, some blocks at a time. Tiling changes no result:
// every score and every accumulator is one chain of its own.
#include "attention/attend.h"
#include "attention/attend_tiles.h"
#include "common/v16.h"
#include "common/v8.h"
#include "common/v8_math.h"

namespace headrace {
namespace HEADRACE_ISA_NS {
namespace {

// K and V are touched so many bytes ahead. Decode of 8,000 keys of 3 heads of 64 in shuffled
// blocks, AVX-512, ns per key: 2 KiB 23 (halves) / 14 (bytes), 8 KiB 18 / 12, 32 KiB 20 / 13, 128
// KiB 26 / 22.
constexpr int64_t kAheadBytes = 8 * 1024;
constexpr int32_t kBlocksPerSplit = kSplitLen / kBlockLen;

// Half-open range of keys inside a split, or of blocks.
struct Range {
  int32_t begin;
  int32_t end;

  bool empty() const { return begin >= end; }
};

inline int32_t smaller(int32_t a, int32_t b) { return a < b ? a : b; }
inline int32_t larger(int32_t a, int32_t b) { return a > b ? a : b; }
inline Range both(Range a, Range b) { return {larger(a.begin, b.begin), smaller(a.end, b.end)}; }
inline Range blocks_of(Range keys) {
  return {keys.begin / kBlockLen, (keys.end + kBlockLen - 1) / kBlockLen};
}
inline Range keys_of(Range blocks) { return {blocks.begin * kBlockLen, blocks.end * kBlockLen}; }

// One item on one thread, and the layout of its scratch.
struct Work {
  const AttnParams& params;
  const AttnItem& item;
  int32_t group;
  int32_t num_lines;
  int32_t num_tiles;
  int32_t tile_height;   // lines of every tile but the last
  int32_t ahead_blocks;  // see upcoming
  float* panel;          // expanded K or V of kPanelBlocks blocks
  float* q;              // per tile: [head_dim][lines of the tile]
  float* scores;         // [line][kScoreStride]
  float* acc;            // [line][head_dim], of the current split
  float* top;            // [line] m of the current split
  float* sum;            // [line] l of the current split
  float* out_top;        // [line] m and l of the splits merged into out
  float* out_sum;
  int32_t* first;  // [line] first position that it sees, and the one after the last
  int32_t* end;

  Work(const AttnParams& p, const AttnItem& i, float* scratch) : params(p), item(i) {
    group = p.num_heads / p.num_kv_heads;
    num_lines = i.num_rows * group;
    num_tiles = (num_lines + kTileLines - 1) / kTileLines;
    tile_height = (num_lines + num_tiles - 1) / num_tiles;
    const int64_t part_bytes = kv_part_bytes(p.kv_type, p.head_dim);
    ahead_blocks = larger(1, static_cast<int32_t>(kAheadBytes / part_bytes));
    const int64_t lines = static_cast<int64_t>(num_tiles) * kTileLines;
    panel = scratch;
    scores = panel + kPanelBlocks * kBlockLen * p.head_dim;
    q = scores + lines * kScoreStride;
    acc = q + lines * p.head_dim;
    top = acc + lines * p.head_dim;
    sum = top + lines;
    out_top = sum + lines;
    out_sum = out_top + lines;
    first = reinterpret_cast<int32_t*>(out_sum + lines);
    end = first + lines;
    for (int32_t line = 0; line < num_lines; ++line) {
      if (i.shared >= 0) {
        first[line] = 0;
        end[line] = i.split_end * kSplitLen;
        continue;
      }
      const int32_t position = p.positions[row(line)];
      first[line] = p.window > 0 ? larger(0, position - p.window + 1) : 0;
      end[line] = position + 1;
    }
  }

  int32_t tile_lines(int32_t tile) const {
    return smaller(tile_height, num_lines - tile * tile_height);
  }
  int32_t head(int32_t line) const { return item.kv_head * group + line % group; }
  const AttnSharedRow& shared_row(int32_t line) const {
    return params.shared_rows[item.shared + line / group];
  }
  int32_t row(int32_t line) const {
    return item.shared >= 0 ? shared_row(line).row : item.row_begin + line / group;
  }
  bool hands_on() const { return item.partial >= 0 || item.shared >= 0; }
  const float* query(int32_t line) const {
    return params.q + row(line) * params.ldq + static_cast<int64_t>(head(line)) * params.head_dim;
  }
  float* out(int32_t line) const {
    return params.out + row(line) * params.ldo + static_cast<int64_t>(head(line)) * params.head_dim;
  }
  // Where a line's state of a split goes, of an item that hands states on.
  float* state(int32_t split, int32_t line) const {
    int64_t index = item.partial + int64_t{split - item.split_begin} * num_lines + line;
    if (item.shared >= 0) {
      const AttnSharedRow& r = shared_row(line);
      index = r.state + int64_t{split} * r.stride + line % group;
    }
    return params.partials + index * partial_floats(params.head_dim);
  }
  // The head's K and V in a block of the table: codes, codes, and their scales.
  const uint8_t* block_head(int32_t block) const {
    const int64_t head_bytes = kv_head_bytes(params.kv_type, params.head_dim);
    return params.kv + item.table[block] * params.block_bytes + item.kv_head * head_bytes;
  }
  const uint8_t* block_codes(int32_t block, bool values) const {
    return block_head(block) + (values ? kv_part_bytes(params.kv_type, params.head_dim) : 0);
  }
  const float* block_scales(int32_t block, bool values) const {
    if (params.kv_type == KVType::f16) return nullptr;
    const uint8_t* scales = block_head(block) + 2 * kv_part_bytes(params.kv_type, params.head_dim);
    return reinterpret_cast<const float*>(scales) + (values ? kBlockLen : 0);
  }
  // A part of the table's blocks: the K or the V of one.
  struct Place {
    int32_t block;
    bool values;
  };
  // What is read some blocks after the K or V of `block`: a split's K blocks, its V blocks,
  // then the next split. At the end, the part itself.
  Place upcoming(int32_t split, Range blocks, int32_t block, bool values) const {
    const int32_t base = split * kBlocksPerSplit;
    int32_t next = block + ahead_blocks;
    if (next < blocks.end) return {base + next, values};
    next -= blocks.end;
    if (!values && blocks.begin + next < blocks.end) return {base + blocks.begin + next, true};
    next += base + kBlocksPerSplit;
    const bool is_seen = next <= (end[num_lines - 1] - 1) / kBlockLen;
    if (values && split + 1 < item.split_end && is_seen) return {next, false};
    return {base + block, values};
  }
  template <typename Codes>
  Part<Codes> part(int32_t split, Range blocks, int32_t block, bool values) const {
    using Code = typename Codes::Code;
    const int32_t index = split * kBlocksPerSplit + block;
    const Place ahead = upcoming(split, blocks, block, values);
    if (sizeof(Code) == 1 && !ahead.values) {
      // The scales of V lie behind those of K. Nothing else asks for them before they are needed:
      // decode of 7,500 keys, ms per step: 8.28, without 8.65.
      touch(block_scales(ahead.block, false));
      touch(block_scales(ahead.block, true));
    }
    return {reinterpret_cast<const Code*>(block_codes(index, values)),
            reinterpret_cast<const Code*>(block_codes(ahead.block, ahead.values)),
            block_scales(index, values)};
  }
  // Keys of a split that a line sees, relative to the split.
  Range visible(int32_t split, int32_t line) const {
    const int32_t start = split * kSplitLen;
    return {larger(0, first[line] - start), smaller(kSplitLen, end[line] - start)};
  }
  // What the lines [begin, end) see together: positions increase by one from row to row, so both
  // ends rise and no row between two that see a split misses it.
  Range visible_to(int32_t split, int32_t from, int32_t to) const {
    return {visible(split, from).begin, visible(split, to - 1).end};
  }
  Range tile_visible(int32_t split, int32_t tile) const {
    return visible_to(split, tile * tile_height, tile * tile_height + tile_lines(tile));
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

// Scores of one tile against the blocks [begin, end) of a split, of which those from `origin` on
// are in `keys`.
template <typename Codes>
inline void score_blocks(const Work& work, int32_t tile, Range blocks, const Part<Codes>* keys,
                         int32_t origin) {
  if (blocks.empty()) return;
  const int32_t dim = work.params.head_dim;
  const int64_t line = static_cast<int64_t>(tile) * work.tile_height;
  float* scores = work.scores + line * kScoreStride + origin * kBlockLen;
  const int32_t begin = (blocks.begin - origin) * kPiecesPerBlock;
  const int32_t end = (blocks.end - origin) * kPiecesPerBlock;
  with_count(work.tile_lines(tile), [&](auto n) {
    score_row<Codes, n.value>(keys, begin, end, work.q + line * dim, dim, scores);
  });
}

// Calls use(blocks, parts) for the blocks of a split that any line sees, kPanelBlocks at a time.
template <typename Codes, typename Use>
inline void for_panels(const Work& work, int32_t split, bool values, Use use) {
  const Range all = blocks_of(work.visible_to(split, 0, work.num_lines));
  for (int32_t b = all.begin; b < all.end; b += kPanelBlocks) {
    const Range blocks{b, smaller(b + kPanelBlocks, all.end)};
    Part<Codes> parts[kPanelBlocks];
    for (int32_t i = b; i < blocks.end; ++i) {
      parts[i - b] = work.part<Codes>(split, all, i, values);
    }
    use(blocks, parts);
  }
}

template <typename Codes>
inline void expand_panel(const Work& work, Range blocks, const Part<Codes>* parts,
                         Part<FloatCodes>* out) {
  const int32_t floats = work.params.head_dim * kBlockLen;
  for (int32_t i = 0; i < blocks.end - blocks.begin; ++i) {
    float* codes = work.panel + i * floats;
    expand(parts[i], floats, codes);
    out[i] = {codes, codes, parts[i].scales};
  }
}

// Scores of every tile against the blocks that it sees.
template <typename Codes>
void score_split(const Work& work, int32_t split) {
  for_panels<Codes>(work, split, false, [&](Range blocks, const Part<Codes>* parts) {
    if (work.num_tiles == 1) return score_blocks(work, 0, blocks, parts, blocks.begin);
    Part<FloatCodes> floats[kPanelBlocks];
    expand_panel(work, blocks, parts, floats);
    for (int32_t tile = 0; tile < work.num_tiles; ++tile) {
      const Range seen = both(blocks, blocks_of(work.tile_visible(split, tile)));
      score_blocks(work, tile, seen, floats, blocks.begin);
    }
  });
}

// Turns the scores of a line into the weights of its keys; m and l of the split.
void softmax_line(const Work& work, int32_t split, int32_t line) {
  const AttnParams& params = work.params;
  const Range keys = work.visible(split, line);
  float* scores = work.scores + static_cast<int64_t>(line) * kScoreStride;
  const V16 scale = splat16(params.scale);
  const V16 outside = splat16(-kInfinity);
  const V8 cap = splat(params.softcap);
  const auto capped = [cap](V8 s) { return mul(cap, tanh(div(s, cap))); };
  const int32_t begin = keys.begin / kPieceLen * kPieceLen;
  V16 highest = outside;
  for (int32_t i = begin; i < keys.end; i += kPieceLen) {
    V16 s = mul(load16(scores + i), scale);
    if (params.softcap > 0.0f) s = join(capped(low(s)), capped(high(s)));
    if (i < keys.begin || i + kPieceLen > keys.end) {
      s = keep_lanes(larger(0, keys.begin - i), smaller(kPieceLen, keys.end - i), s, outside);
    }
    store(scores + i, s);
    highest = max(highest, s);
  }
  work.top[line] = reduce16_max(highest);
  const V16 base = splat16(work.top[line]);
  V8 total = zero8();
  for (int32_t i = begin; i < keys.end; i += kPieceLen) {
    const V16 e = exp_not_large(sub(load16(scores + i), base));
    total = add(add(total, low(e)), high(e));
    const float* scales = work.block_scales(split * kBlocksPerSplit + i / kBlockLen, true);
    store(scores + i, scales == nullptr ? e : mul(e, load16(scales + i % kBlockLen)));
  }
  work.sum[line] = reduce8(total);
}

// P.V of the lines [line, line + lines) of one tile over the keys [begin, end) of a split, whose
// blocks from `origin` on are in `values`.
template <typename Codes>
inline void add_values(const Work& work, int32_t line, int32_t lines, Range keys,
                       const Part<Codes>* values, int32_t origin) {
  const int32_t dim = work.params.head_dim;
  const int32_t start = origin * kBlockLen;
  const float* e = work.scores + static_cast<int64_t>(line) * kScoreStride + start;
  float* acc = work.acc + static_cast<int64_t>(line) * dim;
  with_count(lines, [&](auto n) {
    value_row<Codes, n.value>(values, {keys.begin - start, keys.end - start}, 0, dim, e, acc);
  });
}

// Calls add(first line, number of lines, keys) so that every line of the tile gets exactly those of
// the split's keys `within` that it sees, in increasing order: what all lines see goes in one call,
// the rest line by line.
template <typename Add>
inline void for_visible(const Work& work, int32_t split, int32_t tile, Range within, Add add_keys) {
  int32_t begin = tile * work.tile_height;
  int32_t end = begin + work.tile_lines(tile);
  const auto seen = [&](int32_t line) { return both(within, work.visible(split, line)); };
  while (begin < end && seen(begin).empty()) ++begin;
  while (begin < end && seen(end - 1).empty()) --end;
  if (begin == end) return;
  // Positions increase, so the last line starts last and the first one ends first.
  Range common{seen(end - 1).begin, seen(begin).end};
  if (common.begin == within.begin && common.end == within.end) {
    return add_keys(begin, end - begin, common);
  }
  if (common.empty()) common = {within.end, within.end};
  for (int32_t line = begin; line < end; ++line) {
    const Range head{seen(line).begin, smaller(seen(line).end, common.begin)};
    if (!head.empty()) add_keys(line, 1, head);
  }
  if (!common.empty()) add_keys(begin, end - begin, common);
  for (int32_t line = begin; line < end; ++line) {
    const Range tail{larger(seen(line).begin, common.end), seen(line).end};
    if (!tail.empty()) add_keys(line, 1, tail);
  }
}

// P.V of one tile over the blocks [begin, end) of a split, of which `values` is the first.
template <typename Codes>
inline void value_blocks(const Work& work, int32_t split, int32_t tile, Range blocks,
                         const Part<Codes>* values) {
  for_visible(work, split, tile, keys_of(blocks), [&](int32_t line, int32_t n, Range keys) {
    add_values<Codes>(work, line, n, keys, values, blocks.begin);
  });
}

template <typename Codes>
void value_split(const Work& work, int32_t split) {
  for_panels<Codes>(work, split, true, [&](Range blocks, const Part<Codes>* parts) {
    if (work.num_tiles == 1) return value_blocks(work, split, 0, blocks, parts);
    Part<FloatCodes> floats[kPanelBlocks];
    expand_panel(work, blocks, parts, floats);
    for (int32_t tile = 0; tile < work.num_tiles; ++tile) {
      value_blocks(work, split, tile, blocks, floats);
    }
  });
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
void finish_line(const Work& work, int32_t split, int32_t line, bool seen, bool first) {
  const int32_t dim = work.params.head_dim;
  const float* acc = work.acc + static_cast<int64_t>(line) * dim;
  if (work.hands_on()) {
    float* state = work.state(split, line);
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

template <typename Codes>
void attend_split(const Work& work, int32_t split) {
  const int32_t dim = work.params.head_dim;
  score_split<Codes>(work, split);
  for (int32_t line = 0; line < work.num_lines; ++line) {
    if (work.visible(split, line).empty()) continue;
    softmax_line(work, split, line);
    float* acc = work.acc + static_cast<int64_t>(line) * dim;
    for (int32_t d = 0; d < dim; d += 8) store(acc + d, zero8());
  }
  value_split<Codes>(work, split);
}

}  // namespace

void attend_item(const AttnParams& params, const AttnItem& item, float* scratch) {
  const Work work(params, item, scratch);
  pack_queries(work);
  for (int32_t split = item.split_begin; split < item.split_end; ++split) {
    if (!work.visible_to(split, 0, work.num_lines).empty()) {
      if (params.kv_type == KVType::i8) {
        attend_split<ByteCodes>(work, split);
      } else {
        attend_split<HalfCodes>(work, split);
      }
    }
    for (int32_t line = 0; line < work.num_lines; ++line) {
      const bool seen = !work.visible(split, line).empty();
      const bool first = split == item.split_begin || work.visible(split - 1, line).empty();
      finish_line(work, split, line, seen, first);
    }
  }
  if (work.hands_on()) return;
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
