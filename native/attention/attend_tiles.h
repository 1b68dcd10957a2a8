// The inner loops of attention: tiles of lines x keys (scores) and lines x dims (P.V), all
// accumulators in registers, every one of them a chain of its own.
#pragma once

#include "attention/attend.h"
#include "common/v16.h"
#include "common/v8.h"

namespace headrace {
namespace HEADRACE_ISA_NS {
namespace {

// Vectors beside each other in a tile of so many lines: 24 accumulators of 32 registers, or (as a
// V16 takes two) 12 of 16.
#if defined(HEADRACE_V16_AVX512)
template <int kLines>
constexpr int kWide = 4;
#else
template <int kLines>
constexpr int kWide = kLines <= kTileLines / 2 ? 2 : 1;
#endif

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

// scores[r][16 * b + j] = sum_d q[d][r] * keys[b][d][j], times the key's scale, of kBlocks blocks.
template <typename Codes, int kLines, int kBlocks>
inline void score_tile(const Part<Codes>* keys, const float* q, int32_t dim, float* scores) {
  using Code = typename Codes::Code;
  constexpr int kStep = static_cast<int>(kLineBytes / sizeof(Code)) / kBlockLen;
  V16 acc[kLines][kBlocks];
  unrolled<kLines>([&](auto r) __attribute__((always_inline)) {
    unrolled<kBlocks>([&](auto b)
                          __attribute__((always_inline)) { acc[r.value][b.value] = zero16(); });
  });
  const Code* at[kBlocks];
  const Code* ahead[kBlocks];
  unrolled<kBlocks>([&](auto b) __attribute__((always_inline)) {
    at[b.value] = keys[b.value].codes;
    ahead[b.value] = keys[b.value].ahead;
  });
  for (int32_t d = 0; d < dim * kBlockLen; d += kStep * kBlockLen) {
    if constexpr (sizeof(Code) < sizeof(float)) {
      unrolled<kBlocks>([&](auto b) __attribute__((always_inline)) { touch(ahead[b.value] + d); });
    }
    unrolled<kStep>([&](auto i) __attribute__((always_inline)) {
      V16 key[kBlocks];
      unrolled<kBlocks>([&](auto b) __attribute__((always_inline)) {
        key[b.value] = Codes::load16(at[b.value] + d + i.value * kBlockLen);
      });
      unrolled<kLines>([&](auto r) __attribute__((always_inline)) {
        const V16 weight = splat16(q[i.value * kLines + r.value]);
        unrolled<kBlocks>([&](auto b) __attribute__((always_inline)) {
          acc[r.value][b.value] = fma(weight, key[b.value], acc[r.value][b.value]);
        });
      });
    });
    q += kStep * kLines;
  }
  unrolled<kBlocks>([&](auto b) __attribute__((always_inline)) {
    const float* scales = keys[b.value].scales;
    float* out = scores + b.value * kBlockLen;
    if (scales == nullptr) {
      unrolled<kLines>([&](auto r) __attribute__((always_inline)) {
        store(out + r.value * kScoreStride, acc[r.value][b.value]);
      });
    } else {
      unrolled<kLines>([&](auto r) __attribute__((always_inline)) {
        store(out + r.value * kScoreStride, mul(acc[r.value][b.value], load16(scales)));
      });
    }
  });
}

// score_tile of any number of consecutive blocks.
template <typename Codes, int kLines>
inline void score_row(const Part<Codes>* keys, int32_t num_blocks, const float* q, int32_t dim,
                      float* scores) {
  constexpr int kBlocks = kWide<kLines>;
  int32_t b = 0;
  for (; b + kBlocks <= num_blocks; b += kBlocks) {
    score_tile<Codes, kLines, kBlocks>(keys + b, q, dim, scores + b * kBlockLen);
  }
  if constexpr (kBlocks > 2) {
    for (; b + 2 <= num_blocks; b += 2) {
      score_tile<Codes, kLines, 2>(keys + b, q, dim, scores + b * kBlockLen);
    }
  }
  for (; b < num_blocks; ++b) {
    score_tile<Codes, kLines, 1>(keys + b, q, dim, scores + b * kBlockLen);
  }
}

template <typename V, typename Codes>
inline V load_codes(const typename Codes::Code* p) {
  if constexpr (sizeof(V) == sizeof(V8)) {
    return Codes::load8(p);
  } else {
    return Codes::load16(p);
  }
}
template <typename V>
inline V load_floats(const float* p) {
  return load_codes<V, FloatCodes>(p);
}

// acc[r][0 .. kVectors vectors) += sum_j e[r][j] * values[j][...], j increasing.
template <typename Codes, typename V, int kLines, int kVectors>
inline void value_tile(const typename Codes::Code* values, const typename Codes::Code* ahead,
                       int32_t stride, const float* e, int32_t num_keys, float* acc, int32_t lda) {
  constexpr int kLanes = static_cast<int>(sizeof(V) / sizeof(float));
  V sum[kLines][kVectors];
  unrolled<kLines>([&](auto r) __attribute__((always_inline)) {
    unrolled<kVectors>([&](auto v) __attribute__((always_inline)) {
      sum[r.value][v.value] = load_floats<V>(acc + r.value * lda + v.value * kLanes);
    });
  });
  for (int32_t j = 0; j < num_keys; ++j, values += stride) {
    if constexpr (sizeof(typename Codes::Code) < sizeof(float)) {
      touch_codes(ahead, kVectors * kLanes);
      ahead += stride;
    }
    V value[kVectors];
    unrolled<kVectors>([&](auto v) __attribute__((always_inline)) {
      value[v.value] = load_codes<V, Codes>(values + v.value * kLanes);
    });
    unrolled<kLines>([&](auto r) __attribute__((always_inline)) {
      const V weight = fill<V>(e[r.value * kScoreStride + j]);
      unrolled<kVectors>([&](auto v) __attribute__((always_inline)) {
        sum[r.value][v.value] = fma(weight, value[v.value], sum[r.value][v.value]);
      });
    });
  }
  unrolled<kLines>([&](auto r) __attribute__((always_inline)) {
    unrolled<kVectors>([&](auto v) __attribute__((always_inline)) {
      store(acc + r.value * lda + v.value * kLanes, sum[r.value][v.value]);
    });
  });
}

// value_tile over whole rows of V.
template <typename Codes, int kLines>
inline void value_row(const typename Codes::Code* values, const typename Codes::Code* ahead,
                      int32_t dim, const float* e, int32_t num_keys, float* acc, int32_t lda) {
  constexpr int kVectors = kWide<kLines>;
  int32_t d = 0;
  for (; d + 16 * kVectors <= dim; d += 16 * kVectors) {
    value_tile<Codes, V16, kLines, kVectors>(values + d, ahead + d, dim, e, num_keys, acc + d, lda);
  }
  for (; d + 16 <= dim; d += 16) {
    value_tile<Codes, V16, kLines, 1>(values + d, ahead + d, dim, e, num_keys, acc + d, lda);
  }
  if (d < dim) {
    value_tile<Codes, V8, kLines, 1>(values + d, ahead + d, dim, e, num_keys, acc + d, lda);
  }
}

}  // namespace
}  // namespace HEADRACE_ISA_NS
}  // namespace headrace
