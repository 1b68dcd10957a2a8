// The inner loops of attention: tiles of lines x keys (scores) and lines x dims (P.V), all
// accumulators in registers, every one of them a chain of its own.
#pragma once

#include "attention/attend.h"
#include "common/v16.h"
#include "common/v8.h"

namespace headrace {
namespace HEADRACE_ISA_NS {
namespace {

// A tile of so many lines is kWide vectors wide: at most 24 accumulators of 32 registers, or 12 of
// 16. Few lines are wide, that enough chains are under way: a multiply-add takes four cycles.
#if defined(HEADRACE_V16_AVX512)
using Wide = V16;
template <int kLines>
constexpr int kWide = 4;
#else
using Wide = V8;
template <int kLines>
constexpr int kWide = kLines == 1                ? 8
                      : kLines <= kTileLines / 2 ? 4
                                                 : 2;
#endif
template <typename V>
constexpr int kLanes = static_cast<int>(sizeof(V) / sizeof(float));

// How stored K and V become floats, exactly.
struct HalfCodes {
  using Code = uint16_t;
  static V8 load8(const Code* p) { return load_f16(p); }
  static V16 load16(const Code* p) { return load16_f16(p); }
};
struct ByteCodes {
  using Code = int8_t;
  static V8 load8(const Code* p) { return load_i8(p); }
  static V16 load16(const Code* p) { return load16_i8(p); }
};
struct FloatCodes {
  using Code = float;
  static V8 load8(const Code* p) { return load(p); }
  static V16 load16(const Code* p) { return headrace::HEADRACE_ISA_NS::load16(p); }
};

// K or V of one block and head.
template <typename Codes>
struct Part {
  const typename Codes::Code* codes;
  const typename Codes::Code* ahead;  // the part that will be read some parts later, or nullptr
  const float* scales;                // of its keys, or nullptr
};

template <int kValue>
struct Count {
  static constexpr int value = kValue;
};

// f(Count<0>), f(Count<1>), ...: loops over registers. Written as loops they would leave arrays of
// vectors in memory, as GCC 12 unrolls nested ones too late.
template <int kCount, typename F>
[[gnu::always_inline]] inline void unrolled(F f) {
  if constexpr (kCount > 0) {
    unrolled<kCount - 1>(f);
    f(Count<kCount - 1>{});
  }
}
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

// K and V come straight from the arena: whoever reads them touches what will be read soon, at the
// same place in a later part. Into the second-level cache: the first has too few lines in flight.
constexpr int kLineBytes = 64;
inline void touch(const void* p) { __builtin_prefetch(p, 0, 2); }

template <typename Code>
inline void touch_codes(const Code* p, int count) {
  for (int i = 0; i < count; i += static_cast<int>(kLineBytes / sizeof(Code))) touch(p + i);
}

// Codes as floats, for items whose tiles read them several times. count: a multiple of 16 lines.
template <typename Codes>
inline void expand(const Part<Codes>& part, int32_t count, float* out) {
  constexpr int kStep = static_cast<int>(kLineBytes / sizeof(typename Codes::Code));
  for (int32_t i = 0; i < count; i += kStep) {
    touch(part.ahead + i);
    for (int j = i; j < i + kStep; j += 16) store(out + j, Codes::load16(part.codes + j));
  }
}

template <typename V, typename Codes>
inline V load_codes(const typename Codes::Code* p) {
  if constexpr (kLanes<V> == 8) {
    return Codes::load8(p);
  } else {
    return Codes::load16(p);
  }
}

// sum[r][v] = fma(weight(r), vector(v), sum[r][v]). The fewer of the two stay in registers while
// the others pass by: with all sums, they just fit.
template <typename V, int kLines, int kVectors, typename Weight, typename Vector>
[[gnu::always_inline]] inline void add_outer(V (&sum)[kLines][kVectors], Weight weight,
                                             Vector vector) {
  const auto add = [&](auto r, auto v, V w, V x) __attribute__((always_inline)) {
    sum[r.value][v.value] = fma(w, x, sum[r.value][v.value]);
  };
  if constexpr (kLines < kVectors) {
    V weights[kLines];
    unrolled<kLines>([&](auto r)
                         __attribute__((always_inline)) { weights[r.value] = fill<V>(weight(r)); });
    unrolled<kVectors>([&](auto v) __attribute__((always_inline)) {
      const V x = vector(v);
      unrolled<kLines>([&](auto r)
                           __attribute__((always_inline)) { add(r, v, weights[r.value], x); });
    });
  } else {
    V vectors[kVectors];
    unrolled<kVectors>([&](auto v)
                           __attribute__((always_inline)) { vectors[v.value] = vector(v); });
    unrolled<kLines>([&](auto r) __attribute__((always_inline)) {
      const V w = fill<V>(weight(r));
      unrolled<kVectors>([&](auto v)
                             __attribute__((always_inline)) { add(r, v, w, vectors[v.value]); });
    });
  }
}

// Keys are scored so many at a time; a block holds one such piece, or several.
constexpr int kPieceLen = 16;
constexpr int kPiecesPerBlock = kBlockLen / kPieceLen;
static_assert(kBlockLen % kPieceLen == 0);

// scores[r][j] = sum_d q[d][r] * keys[d][j], times the key's scale, of kPieces pieces from the
// first-th of consecutive blocks on.
template <typename Codes, int kLines, int kPieces>
inline void score_tile(const Part<Codes>* keys, int32_t first, const float* q, int32_t dim,
                       float* scores) {
  using Code = typename Codes::Code;
  constexpr int kLineCodes = static_cast<int>(kLineBytes / sizeof(Code));
  constexpr int kStep = kLineCodes > kBlockLen ? kLineCodes / kBlockLen : 1;
  constexpr int kPerPiece = kPieceLen / kLanes<Wide>;
  constexpr int kVectors = kPieces * kPerPiece;
  const auto lane_of = [](auto v) { return v.value % kPerPiece * kLanes<Wide>; };
  const auto part_of = [&](auto p) -> const Part<Codes>& {
    return keys[(first + p.value) / kPiecesPerBlock];
  };
  const auto offset_of = [&](auto p) { return (first + p.value) % kPiecesPerBlock * kPieceLen; };
  Wide sum[kLines][kVectors];
  unrolled<kLines>([&](auto r) __attribute__((always_inline)) {
    unrolled<kVectors>(
        [&](auto v) __attribute__((always_inline)) { sum[r.value][v.value] = fill<Wide>(0.0f); });
  });
  const Code* at[kPieces];
  const Code* ahead[kPieces];
  unrolled<kPieces>([&](auto p) __attribute__((always_inline)) {
    at[p.value] = part_of(p).codes + offset_of(p);
    ahead[p.value] = part_of(p).ahead + offset_of(p);
  });
  for (int32_t d = 0; d < dim * kBlockLen; d += kStep * kBlockLen) {
    if constexpr (sizeof(Code) < sizeof(float)) {
      unrolled<kPieces>([&](auto p) __attribute__((always_inline)) { touch(ahead[p.value] + d); });
    }
    unrolled<kStep>([&](auto i) __attribute__((always_inline)) {
      add_outer(
          sum, [&](auto r) { return q[i.value * kLines + r.value]; },
          [&](auto v) {
            return load_codes<Wide, Codes>(at[v.value / kPerPiece] + d + i.value * kBlockLen +
                                           lane_of(v));
          });
    });
    q += kStep * kLines;
  }
  unrolled<kVectors>([&](auto v) __attribute__((always_inline)) {
    constexpr Count<decltype(v)::value / kPerPiece> piece;
    const float* scales = part_of(piece).scales;
    float* out = scores + v.value * kLanes<Wide>;
    unrolled<kLines>([&](auto r) __attribute__((always_inline)) {
      Wide& score = sum[r.value][v.value];
      if (scales != nullptr) {
        score = mul(score, load_codes<Wide, FloatCodes>(scales + offset_of(piece) + lane_of(v)));
      }
      store(out + r.value * kScoreStride, score);
    });
  });
}

// score_tile of the pieces [first, end) of consecutive blocks.
template <typename Codes, int kLines, int kPieces = kWide<kLines> * kLanes<Wide> / kPieceLen>
inline void score_row(const Part<Codes>* keys, int32_t first, int32_t end, const float* q,
                      int32_t dim, float* scores) {
  for (; first + kPieces <= end; first += kPieces) {
    score_tile<Codes, kLines, kPieces>(keys, first, q, dim, scores + first * kPieceLen);
  }
  if constexpr (kPieces > 1) {
    score_row<Codes, kLines, kPieces / 2>(keys, first, end, q, dim, scores);
  }
}

// Keys [begin, end) of consecutive blocks, counted from the first of these.
struct Keys {
  int32_t begin;
  int32_t end;
};

// acc[r][0 .. kVectors vectors) += sum_j e[r][j] * values[j][column ...], j increasing.
template <typename Codes, typename V, int kLines, int kVectors>
inline void value_tile(const Part<Codes>* values, Keys keys, int32_t column, int32_t dim,
                       const float* e, float* acc) {
  using Code = typename Codes::Code;
  V sum[kLines][kVectors];
  unrolled<kLines>([&](auto r) __attribute__((always_inline)) {
    unrolled<kVectors>([&](auto v) __attribute__((always_inline)) {
      sum[r.value][v.value] =
          load_codes<V, FloatCodes>(acc + r.value * dim + column + v.value * kLanes<V>);
    });
  });
  for (int32_t j = keys.begin; j < keys.end;) {
    const Part<Codes>& part = values[j / kBlockLen];
    const int32_t first = j % kBlockLen * dim + column;
    const Code* at = part.codes + first;
    const Code* ahead = part.ahead + first;
    const int32_t block_end = j / kBlockLen * kBlockLen + kBlockLen;
    for (const int32_t end = block_end < keys.end ? block_end : keys.end; j < end; ++j) {
      if constexpr (sizeof(Code) < sizeof(float)) touch_codes(ahead, kVectors * kLanes<V>);
      add_outer(
          sum, [&](auto r) { return e[r.value * kScoreStride + j]; },
          [&](auto v) { return load_codes<V, Codes>(at + v.value * kLanes<V>); });
      at += dim;
      ahead += dim;
    }
  }
  unrolled<kLines>([&](auto r) __attribute__((always_inline)) {
    unrolled<kVectors>([&](auto v) __attribute__((always_inline)) {
      store(acc + r.value * dim + column + v.value * kLanes<V>, sum[r.value][v.value]);
    });
  });
}

// value_tile over whole rows of V.
template <typename Codes, int kLines, int kVectors = kWide<kLines>>
inline void value_row(const Part<Codes>* values, Keys keys, int32_t column, int32_t dim,
                      const float* e, float* acc) {
  for (; column + kLanes<Wide> * kVectors <= dim; column += kLanes<Wide> * kVectors) {
    value_tile<Codes, Wide, kLines, kVectors>(values, keys, column, dim, e, acc);
  }
  if constexpr (kVectors > 1) {
    value_row<Codes, kLines, kVectors / 2>(values, keys, column, dim, e, acc);
  } else if (column < dim) {
    value_tile<Codes, V8, kLines, 1>(values, keys, column, dim, e, acc);
  }
}

}  // namespace
}  // namespace HEADRACE_ISA_NS
}  // namespace headrace
