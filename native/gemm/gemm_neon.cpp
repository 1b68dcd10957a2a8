// Matrix products of the neon table; see gemm/gemm.h for the definition and gemm/layout.h for the
// bytes. One template over (tiles, rows) does the same arithmetic for every number of rows.
//
// Four inputs of four outputs are one register of codes, and one sdot multiplies them by four codes
// of a row that it picks from a register of sixteen. It adds into int32, and codes are below 64, so
// signed bytes hold them: there are no int16 sums and no bounds to keep, as on x86. The offset z
// starts the sums at -z A.
#define HEADRACE_ISA_NS neon
#define HEADRACE_V8_NEON

#include <cstring>

#include "common/v8.h"
#include "gemm/gemm.h"
#include "gemm/layout.h"

namespace headrace::neon {
namespace {

#define HEADRACE_INLINE __attribute__((always_inline)) inline
// Before a loop whose bound is a constant: an index that is not one would put registers in memory.
#if defined(__clang__)
#define HEADRACE_UNROLL _Pragma("unroll")
#else
#define HEADRACE_UNROLL _Pragma("GCC unroll 8")
#endif

// Bytes of quantized rows that are multiplied by all tiles before the next rows: half of a small
// second-level cache.
constexpr size_t kRowBlockBytes = 256 * 1024;
// Rows that meet a decoded tile at once: the accumulators, integer and float, take 16 registers.
constexpr int kRows = 4;

HEADRACE_INLINE V8 load_x8(const uint8_t* p) {
  return load_f16(reinterpret_cast<const uint16_t*>(p));
}

HEADRACE_INLINE I8 mul(I8 a, I8 b) { return {vmulq_s32(a.low, b.low), vmulq_s32(a.high, b.high)}; }

// Eight unsigned bytes.
HEADRACE_INLINE I8 widen_bytes(const uint8_t* p) {
  const uint16x8_t words = vmovl_u8(vld1_u8(p));
  return {vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(words))),
          vreinterpretq_s32_u32(vmovl_high_u16(words))};
}

// ---- code vectors ----

// Shifts bytes left by kCount, right if it is negative.
template <int kCount>
HEADRACE_INLINE uint8x16_t shift(uint8x16_t v) {
  if constexpr (kCount > 0) return vshlq_n_u8(v, kCount);
  if constexpr (kCount < 0) return vshrq_n_u8(v, -kCount);
  return v;
}

// The codes of one step: outputs 0..3 and 4..7, four inputs each.
struct Step {
  int8x16_t half[2];
};

// Operands of steps i and i + 4 of a group.
template <int kBits, int i>
HEADRACE_INLINE void load_pair(const uint8_t* codes, Step& first, Step& second) {
  for (int h = 0; h < 2; ++h) {
    const uint8x16_t raw = vld1q_u8(codes + 32 * i + 16 * h);
    uint8x16_t low = vandq_u8(raw, vdupq_n_u8(15));
    uint8x16_t high = vshrq_n_u8(raw, 4);
    const uint8_t* upper = codes + kNibblesBytes + 16 * h;
    if constexpr (kBits == 5) {
      const uint8x16_t bits = vld1q_u8(upper);
      const uint8x16_t fifth = vdupq_n_u8(16);
      low = vorrq_u8(low, vandq_u8(shift<4 - i>(bits), fifth));
      high = vorrq_u8(high, vandq_u8(shift<-i>(bits), fifth));
    }
    if constexpr (kBits == 6) {
      const uint8x16_t pair = vdupq_n_u8(48);
      low = vorrq_u8(low, vandq_u8(shift<4 - 2 * i>(vld1q_u8(upper)), pair));
      high = vorrq_u8(high, vandq_u8(shift<4 - 2 * i>(vld1q_u8(upper + 32)), pair));
    }
    first.half[h] = vreinterpretq_s8_u8(low);
    second.half[h] = vreinterpretq_s8_u8(high);
  }
}

// sum[o] += four codes of output o times the four codes `lane` of a row.
template <int lane>
HEADRACE_INLINE void add_dot(I8& sum, const Step& w, int8x16_t act) {
  sum.low = vdotq_laneq_s32(sum.low, w.half[0], act, lane);
  sum.high = vdotq_laneq_s32(sum.high, w.half[1], act, lane);
}

// ---- weight formats ----

// What the rows share in one group: the scale d_w, the minimum m_w (if the type has one) and the
// integer multipliers of the sums: for steps 0..3 and, in Q6_K, another for steps 4..7.
struct Shared {
  V8 scale;
  V8 minimum;
  I8 first;
  I8 second;
};

template <int kBitsPerCode, bool kHasMinimum>
struct Flat {
  static constexpr int kBits = kBitsPerCode;
  static constexpr bool kMinimum = kHasMinimum;
  static constexpr int kMultipliers = 0;
  static constexpr int kOffset = kHasMinimum ? 0 : 1 << (kBits - 1);
  static constexpr int kGroups = 1;
  static constexpr size_t kCodes = 0;
  static constexpr size_t kGroupBytes = kNibblesBytes + (kBits == 5 ? kBitsBytes : 0);
  static constexpr size_t kBytes = kGroupBytes + (kHasMinimum ? 2 : 1) * kX8Bytes;

  struct Head {};
  static HEADRACE_INLINE Head head(const uint8_t*) { return {}; }

  static HEADRACE_INLINE Shared shared(const uint8_t* unit, int, const Head&) {
    Shared s = {};
    s.scale = load_x8(unit + kGroupBytes);
    if constexpr (kMinimum) s.minimum = load_x8(unit + kGroupBytes + kX8Bytes);
    return s;
  }
};

template <int kBitsPerCode>
struct Super45 {
  static constexpr int kBits = kBitsPerCode;
  static constexpr bool kMinimum = true;
  static constexpr int kMultipliers = 1;
  static constexpr int kOffset = 0;
  static constexpr int kGroups = kSuperGroups;
  static constexpr size_t kCodes = kSuperCodes;
  static constexpr size_t kGroupBytes = kNibblesBytes + (kBits == 5 ? kBitsBytes : 0);
  static constexpr size_t kBytes = kSuperCodes + kSuperGroups * kGroupBytes;

  struct Head {
    V8 d;
    V8 minus_dmin;
  };
  static HEADRACE_INLINE Head head(const uint8_t* unit) {
    return {load_x8(unit), neg(load_x8(unit + kX8Bytes))};
  }

  static HEADRACE_INLINE Shared shared(const uint8_t* unit, int g, const Head& head) {
    Shared s = {};
    s.scale = head.d;
    s.minimum = mul(head.minus_dmin, to_float(widen_bytes(unit + kSuperMinima + kTileN * g)));
    s.first = widen_bytes(unit + kSuperScales + kTileN * g);
    return s;
  }
};

struct Q6_K {
  static constexpr int kBits = 6;
  static constexpr bool kMinimum = false;
  static constexpr int kMultipliers = 2;
  static constexpr int kOffset = 32;
  static constexpr int kGroups = kSuperGroups;
  static constexpr size_t kCodes = kQ6_KCodes;
  static constexpr size_t kGroupBytes = kNibblesBytes + kPairsBytes;
  static constexpr size_t kBytes = kQ6_KBytes;

  struct Head {
    V8 d;
  };
  static HEADRACE_INLINE Head head(const uint8_t* unit) { return {load_x8(unit)}; }

  static HEADRACE_INLINE I8 widen_words(int16x8_t words) {
    return {vmovl_s16(vget_low_s16(words)), vmovl_high_s16(words)};
  }

  static HEADRACE_INLINE Shared shared(const uint8_t* unit, int g, const Head& head) {
    // Per output the multiplier of the first half of the group, then of the second.
    const uint8_t* bytes = unit + kQ6_KScales + 16 * g;
    const int16x8_t both = vreinterpretq_s16_u8(vld1q_u8(bytes));
    Shared s = {};
    s.scale = head.d;
    s.first = widen_words(vshrq_n_s16(vshlq_n_s16(both, 8), 8));
    s.second = widen_words(vshrq_n_s16(both, 8));
    return s;
  }
};

// ---- one group of 32 inputs: T tiles by R rows ----

template <class F, int T, int R>
struct Sums {
  static constexpr bool kSplit = F::kMultipliers == 2;

  int8x16_t low_codes[R];
  int8x16_t high_codes[R];
  I8 first[T][R];
  I8 second[T][R];  // of steps 4..7, if they have a multiplier of their own

  HEADRACE_INLINE void start(const uint8_t* act, size_t act_bytes) {
    for (int r = 0; r < R; ++r) {
      const A8Group& a = *reinterpret_cast<const A8Group*>(act + act_bytes * r);
      low_codes[r] = vld1q_s8(a.codes);
      high_codes[r] = vld1q_s8(a.codes + 16);
      const int32_t one = kSplit ? a.half_sums[0] : a.half_sums[0] + a.half_sums[1];
      for (int t = 0; t < T; ++t) {
        first[t][r] = splat_int(-F::kOffset * one);
        if constexpr (kSplit) second[t][r] = splat_int(-F::kOffset * a.half_sums[1]);
      }
    }
  }

  template <int i>
  HEADRACE_INLINE void add_pair(const uint8_t* const (&codes)[T]) {
    for (int t = 0; t < T; ++t) {
      Step low;
      Step high;
      load_pair<F::kBits, i>(codes[t], low, high);
      for (int r = 0; r < R; ++r) {
        add_dot<i>(first[t][r], low, low_codes[r]);
        add_dot<i>(kSplit ? second[t][r] : first[t][r], high, high_codes[r]);
      }
    }
  }

  HEADRACE_INLINE I8 total(int t, int r, const Shared& s) const {
    if constexpr (F::kMultipliers == 0) return first[t][r];
    const I8 one = mul(first[t][r], s.first);
    if constexpr (kSplit) return add(one, mul(second[t][r], s.second));
    return one;
  }
};

template <class F, int T, int R>
HEADRACE_INLINE void add_group(const uint8_t* const (&codes)[T], const Shared (&s)[T],
                               const uint8_t* act, size_t act_bytes, V8 (&acc)[T][R]) {
  Sums<F, T, R> sums;
  sums.start(act, act_bytes);
  sums.template add_pair<0>(codes);
  sums.template add_pair<1>(codes);
  sums.template add_pair<2>(codes);
  sums.template add_pair<3>(codes);
  for (int r = 0; r < R; ++r) {
    const A8Group& a = *reinterpret_cast<const A8Group*>(act + act_bytes * r);
    for (int t = 0; t < T; ++t) {
      const V8 scale = mul(s[t].scale, splat(a.scale));
      acc[t][r] = fma(to_float(sums.total(t, r, s[t])), scale, acc[t][r]);
      if constexpr (F::kMinimum) acc[t][r] = fma(s[t].minimum, splat(a.scaled_sum), acc[t][r]);
    }
  }
}

// ---- T tiles by R rows over all inputs ----

struct Span {
  const uint8_t* w;
  size_t tile_bytes;
  int32_t k;
  const uint8_t* act;
  size_t act_bytes;
};

// Formats with int8 activations.
template <class F>
struct A8Product {
  template <int T, int R>
  static HEADRACE_INLINE void run(Span span, V8 (&acc)[T][R]) {
    const uint8_t* w = span.w;
    const uint8_t* act = span.act;
    for (int32_t i = 0; i < span.k; i += F::kGroups * kGroupLen, w += F::kBytes) {
      typename F::Head heads[T];
      for (int t = 0; t < T; ++t) heads[t] = F::head(w + span.tile_bytes * t);
      for (int g = 0; g < F::kGroups; ++g, act += sizeof(A8Group)) {
        const uint8_t* codes[T];
        Shared shared[T];
        for (int t = 0; t < T; ++t) {
          codes[t] = w + span.tile_bytes * t + F::kCodes + F::kGroupBytes * g;
          shared[t] = F::shared(w + span.tile_bytes * t, g, heads[t]);
        }
        add_group<F>(codes, shared, act, span.act_bytes, acc);
      }
    }
  }
};

// int8 weights by int16 activations: one input of eight outputs at a time, in int16, by one code of
// a row that smlal picks.
struct Q8_0Product {
  // The four inputs of a step as eight outputs each. Low bytes of the 16-bit lanes are inputs 0 and
  // 1, high bytes 2 and 3.
  static HEADRACE_INLINE void load_step(const uint8_t* p, int16x8_t (&inputs)[4]) {
    const int16x8_t front = vreinterpretq_s16_u8(vld1q_u8(p));
    const int16x8_t back = vreinterpretq_s16_u8(vld1q_u8(p + 16));
    const int16x8_t front_low = vshrq_n_s16(vshlq_n_s16(front, 8), 8);
    const int16x8_t back_low = vshrq_n_s16(vshlq_n_s16(back, 8), 8);
    const int16x8_t front_high = vshrq_n_s16(front, 8);
    const int16x8_t back_high = vshrq_n_s16(back, 8);
    inputs[0] = vuzp1q_s16(front_low, back_low);
    inputs[1] = vuzp2q_s16(front_low, back_low);
    inputs[2] = vuzp1q_s16(front_high, back_high);
    inputs[3] = vuzp2q_s16(front_high, back_high);
  }

  template <int j>
  static HEADRACE_INLINE void add_input(I8& sum, int16x8_t w, int16x4_t act) {
    sum.low = vmlal_lane_s16(sum.low, vget_low_s16(w), act, j);
    sum.high = vmlal_high_lane_s16(sum.high, w, act, j);
  }

  template <int T, int R>
  static HEADRACE_INLINE void add_group(const uint8_t* unit, size_t tile_bytes, const uint8_t* act,
                                        size_t act_bytes, V8 (&acc)[T][R]) {
    I8 sums[T][R];
    for (int t = 0; t < T; ++t) {
      for (int r = 0; r < R; ++r) sums[t][r] = splat_int(0);
    }
    for (int i = 0; i < 8; ++i) {
      for (int t = 0; t < T; ++t) {
        int16x8_t inputs[4];
        load_step(unit + tile_bytes * t + 32 * i, inputs);
        for (int r = 0; r < R; ++r) {
          const A16Group& a = *reinterpret_cast<const A16Group*>(act + act_bytes * r);
          const int16x4_t codes = vld1_s16(a.codes + 4 * i);
          add_input<0>(sums[t][r], inputs[0], codes);
          add_input<1>(sums[t][r], inputs[1], codes);
          add_input<2>(sums[t][r], inputs[2], codes);
          add_input<3>(sums[t][r], inputs[3], codes);
        }
      }
    }
    for (int t = 0; t < T; ++t) {
      const V8 d = load_x8(unit + tile_bytes * t + kBytesBytes);
      for (int r = 0; r < R; ++r) {
        const A16Group& a = *reinterpret_cast<const A16Group*>(act + act_bytes * r);
        acc[t][r] = fma(to_float(sums[t][r]), mul(d, splat(a.scale)), acc[t][r]);
      }
    }
  }

  template <int T, int R>
  static HEADRACE_INLINE void run(Span span, V8 (&acc)[T][R]) {
    for (int32_t i = 0; i < span.k; i += kGroupLen) {
      add_group(span.w, span.tile_bytes, span.act, span.act_bytes, acc);
      span.w += kQ8_0Bytes;
      span.act += sizeof(A16Group);
    }
  }
};

struct Half {
  uint16_t bits;
};
struct Bfloat {
  uint16_t bits;
};

HEADRACE_INLINE V8 load_weights(const float* p) { return load(p); }
HEADRACE_INLINE V8 load_weights(const Half* p) { return load_f16(&p->bits); }
HEADRACE_INLINE V8 load_weights(const Bfloat* p) {
  const uint16x8_t bits = vld1q_u16(&p->bits);
  return {vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(bits), 16)),
          vreinterpretq_f32_u32(vshll_high_n_u16(bits, 16))};
}

template <class Element>
struct FloatProduct {
  template <int T, int R>
  static HEADRACE_INLINE void run(Span span, V8 (&acc)[T][R]) {
    constexpr size_t kBytes = kTileN * sizeof(Element);
    const uint8_t* w = span.w;
    const uint8_t* act = span.act;
    for (int32_t i = 0; i < span.k; ++i, w += kBytes, act += sizeof(float)) {
      V8 weights[T];
      for (int t = 0; t < T; ++t) {
        weights[t] = load_weights(reinterpret_cast<const Element*>(w + span.tile_bytes * t));
      }
      for (int r = 0; r < R; ++r) {
        const V8 a = splat(*reinterpret_cast<const float*>(act + span.act_bytes * r));
        for (int t = 0; t < T; ++t) acc[t][r] = fma(a, weights[t], acc[t][r]);
      }
    }
  }
};

// ---- loops over tiles and rows ----

struct Job {
  const PackedMatrix& w;
  const uint8_t* act;
  size_t act_bytes;
  const ProductOut& to;
};

void store_tile(const Job& job, int32_t tile, int32_t row, V8 acc) {
  const int32_t first = tile * kTileN;
  const int32_t num_outputs = job.w.n - first;  // store_some takes eight at most
  const ProductOut& to = job.to;
  float* dst = to.out + row * to.ldo + first;
  if (to.bias) acc = add(acc, load_some(to.bias + first, num_outputs));
  if (to.accumulate) acc = add(load_some(dst, num_outputs), acc);
  store_some(dst, acc, num_outputs);
}

template <class P, int T, int R>
void run_block(const Job& job, int32_t tile, int32_t row) {
  V8 acc[T][R];
  for (int t = 0; t < T; ++t) {
    for (int r = 0; r < R; ++r) acc[t][r] = zero8();
  }
  const PackedMatrix& w = job.w;
  P::template run<T, R>({w.data + w.tile_bytes * tile, w.tile_bytes, w.k,
                         job.act + job.act_bytes * row, job.act_bytes},
                        acc);
  HEADRACE_UNROLL
  for (int t = 0; t < T; ++t) {
    HEADRACE_UNROLL
    for (int r = 0; r < R; ++r) store_tile(job, tile + t, row + r, acc[t][r]);
  }
}

struct Range {
  int32_t begin;
  int32_t end;
};

template <class P>
void run_rows(const Job& job, int32_t tile, Range rows) {
  int32_t row = rows.begin;
  for (; row + kRows <= rows.end; row += kRows) run_block<P, 1, kRows>(job, tile, row);
  switch (rows.end - row) {
    case 3:
      return run_block<P, 1, 3>(job, tile, row);
    case 2:
      return run_block<P, 1, 2>(job, tile, row);
    case 1:
      return run_block<P, 1, 1>(job, tile, row);
  }
}

// One row: two tiles side by side, so that more than one chain of sums is on its way.
template <class P>
void run_one_row(const Job& job, Range tiles) {
  int32_t tile = tiles.begin;
  for (; tile + 2 <= tiles.end; tile += 2) run_block<P, 2, 1>(job, tile, 0);
  if (tile < tiles.end) run_block<P, 1, 1>(job, tile, 0);
}

template <class P>
void run_product(const Job& job, Range tiles, int32_t rows) {
  if (rows == 1) return run_one_row<P>(job, tiles);
  const auto fitting = static_cast<int32_t>(kRowBlockBytes / job.act_bytes) / kRows * kRows;
  const int32_t block = fitting < kRows ? kRows : fitting;
  for (int32_t row = 0; row < rows; row += block) {
    const Range part = {row, row + block < rows ? row + block : rows};
    for (int32_t tile = tiles.begin; tile < tiles.end; ++tile) run_rows<P>(job, tile, part);
  }
}

}  // namespace

#undef HEADRACE_UNROLL
#undef HEADRACE_INLINE

}  // namespace headrace::neon

#include "gemm/gemm_kernel.h"
