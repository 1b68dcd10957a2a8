// The inner loops of attention: tiles of lines x keys (scores) and lines x dims (P.V), all
// accumulators in registers.
#pragma once

#include "attention/attend.h"
#include "common/v8.h"

namespace headrace {
namespace HEADRACE_ISA_NS {
namespace {

template <int kValue>
struct Count {
  static constexpr int value = kValue;
};

// f(Count<n>) for 1 <= n <= kTileLines.
template <typename F>
inline void with_count(int32_t n, F f) {
  switch (n) {
    case 1:
      return f(Count<1>{});
    case 2:
      return f(Count<2>{});
    case 3:
      return f(Count<3>{});
    case 4:
      return f(Count<4>{});
    case 5:
      return f(Count<5>{});
    default:
      return f(Count<6>{});
  }
}

// K and V come straight from the arena: tiles touch what will be read soon, `ahead`, the same place
// in a later block. Into the second-level cache: the first has too few lines in flight.
inline void touch(const uint16_t* p) { __builtin_prefetch(p, 0, 2); }

// scores[r][j] = sum_d q[d][r] * keys[d][j] for the 16 keys of a block.
template <int kLines>
inline void score_tile(const uint16_t* keys, const uint16_t* ahead, const float* q, int32_t dim,
                       float* scores) {
  V8 acc[kLines][2];
  for (int r = 0; r < kLines; ++r) acc[r][0] = acc[r][1] = zero8();
  for (int32_t d = 0; d < dim; ++d, keys += kBlockLen, ahead += kBlockLen, q += kLines) {
    touch(ahead);
    const V8 low = load_f16(keys);
    const V8 high = load_f16(keys + 8);
    for (int r = 0; r < kLines; ++r) {
      const V8 weight = splat(q[r]);
      acc[r][0] = fma(weight, low, acc[r][0]);
      acc[r][1] = fma(weight, high, acc[r][1]);
    }
  }
  for (int r = 0; r < kLines; ++r) {
    store(scores + r * kScoreStride, acc[r][0]);
    store(scores + r * kScoreStride + 8, acc[r][1]);
  }
}

// score_tile of two consecutive blocks, for few lines: twice the independent chains.
template <int kLines>
inline void score_tile_pair(const uint16_t* const keys[2], const uint16_t* const ahead[2],
                            const float* q, int32_t dim, float* scores) {
  V8 acc[kLines][4];
  for (int r = 0; r < kLines; ++r) {
    for (int v = 0; v < 4; ++v) acc[r][v] = zero8();
  }
  for (int32_t d = 0; d < dim; ++d, q += kLines) {
    const int32_t at = d * kBlockLen;
    touch(ahead[0] + at);
    touch(ahead[1] + at);
    for (int v = 0; v < 4; ++v) {
      const V8 key = load_f16(keys[v / 2] + at + v % 2 * 8);
      for (int r = 0; r < kLines; ++r) acc[r][v] = fma(splat(q[r]), key, acc[r][v]);
    }
  }
  for (int r = 0; r < kLines; ++r) {
    for (int v = 0; v < 4; ++v) store(scores + r * kScoreStride + v * 8, acc[r][v]);
  }
}

// acc[r][0 .. 8 * kVectors) += sum_j e[r][j] * values[j][...], j increasing.
template <int kLines, int kVectors>
inline void value_tile(const uint16_t* values, const uint16_t* ahead, int32_t stride,
                       const float* e, int32_t num_keys, float* acc, int32_t lda) {
  V8 sum[kLines][kVectors];
  for (int r = 0; r < kLines; ++r) {
    for (int v = 0; v < kVectors; ++v) sum[r][v] = load(acc + r * lda + v * 8);
  }
  for (int32_t j = 0; j < num_keys; ++j, values += stride, ahead += stride) {
    touch(ahead);
    V8 value[kVectors];
    for (int v = 0; v < kVectors; ++v) value[v] = load_f16(values + v * 8);
    for (int r = 0; r < kLines; ++r) {
      const V8 weight = splat(e[r * kScoreStride + j]);
      for (int v = 0; v < kVectors; ++v) sum[r][v] = fma(weight, value[v], sum[r][v]);
    }
  }
  for (int r = 0; r < kLines; ++r) {
    for (int v = 0; v < kVectors; ++v) store(acc + r * lda + v * 8, sum[r][v]);
  }
}

// value_tile over a whole row of V.
template <int kLines>
inline void value_row(const uint16_t* values, const uint16_t* ahead, int32_t dim, const float* e,
                      int32_t num_keys, float* acc, int32_t lda) {
  constexpr int kWide = kLines <= kTileLines / 2 ? 4 : 2;
  int32_t d = 0;
  for (; d + 8 * kWide <= dim; d += 8 * kWide) {
    value_tile<kLines, kWide>(values + d, ahead + d, dim, e, num_keys, acc + d, lda);
  }
  for (; d + 16 <= dim; d += 16) {
    value_tile<kLines, 2>(values + d, ahead + d, dim, e, num_keys, acc + d, lda);
  }
  if (d < dim) value_tile<kLines, 1>(values + d, ahead + d, dim, e, num_keys, acc + d, lda);
}

}  // namespace
}  // namespace HEADRACE_ISA_NS
}  // namespace headrace
