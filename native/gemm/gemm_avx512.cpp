// Matrix products of the avx512 table; see gemm/gemm.h for the definition and gemm/layout.h for the
// bytes. Two tiles lie side by side in a register, 16 outputs; one template over rows does the same
// arithmetic for every number of rows. Integer sums are 32 bits wide from the first product on, so
// their order is free.
//
// Ports. Operations on 64 bytes go to ports 0 and 5, two a cycle; loads, broadcasts of activations
// among them, have ports of their own. Per row and group of 32 inputs, 512 multiply-adds:
//
//            multiply  offset  convert, scale, add        unpack of a group, for all rows
//   Q4_1     8         -       1 + 1 + 2                  16 + 4
//   Q4_0     8         1       1 + 1 + 1                  16 + 2
//   Q5_1     8         -       1 + 1 + 2                  32 + 4
//   Q4_K     8         -       1 + 2 + 2                  16 + 8
//   Q6_K     8         1       3 + 2 + 3                  42 + 10
//   Q8_0     16        -       1 + 1 + 1                  40 + 2
//
// At 8 rows the unpacking adds 2.5 to 6 operations a row. Q4_1: 14.5 operations, 71 multiply-adds a
// cycle; read on one Sapphire Rapids core, L2 to L1, at 8 rows and more: 198 G multiply-adds per
// second, that is 71 at 2.8 GHz (avx2: 88 G). Q4_K 180 (86), Q5_1 175 (70), Q6_K 135 (61), Q8_0 112
// (52), f32 73 (40), f16 64 (36).
#include <immintrin.h>

#include <cstring>
#include <type_traits>

#include "gemm/gemm.h"
#include "gemm/layout.h"

namespace headrace::avx512 {
namespace {

#define HEADRACE_INLINE __attribute__((always_inline)) inline
// Before a loop whose bound is a constant: an index that is not one would put registers in memory.
#if defined(__clang__)
#define HEADRACE_UNROLL _Pragma("unroll")
#else
#define HEADRACE_UNROLL _Pragma("GCC unroll 8")
#endif

// Rows that share the unpacked weights of a group: accumulators and sums take 16 registers. Twelve
// rows are 2 percent faster where there are many, and leave a remainder where there are 8 or 32.
constexpr int kRows = 8;

// Bytes of quantized rows that are multiplied by all tiles before the next rows.
constexpr size_t kRowBlockBytes = 384 * 1024;

// How far ahead weights are requested, at least: of whole tiles, so it is the next two in most
// models. Decode of SmolLM2 on two cores, ms per step: without requests 3.1, from 4 KiB ahead 2.36,
// 12 KiB 2.43, 24 KiB 2.49, 64 KiB 2.68.
constexpr size_t kAheadBytes = 4 * 1024;

HEADRACE_INLINE __m128i load128(const void* p) {
  return _mm_loadu_si128(static_cast<const __m128i*>(p));
}

HEADRACE_INLINE __m256i load256(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}

HEADRACE_INLINE __m512i broadcast32(const void* p) {
  int32_t word;
  std::memcpy(&word, p, sizeof(word));
  return _mm512_set1_epi32(word);
}

// ---- two tiles ----

// The same place in two tiles: the lower half of a register is the first one's.
struct Pair {
  const uint8_t* first;
  const uint8_t* second;

  HEADRACE_INLINE Pair at(size_t offset) const { return {first + offset, second + offset}; }
};

HEADRACE_INLINE __m128i load_8s(Pair p) {
  return _mm_unpacklo_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p.first)),
                            _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p.second)));
}

HEADRACE_INLINE __m256i load_16s(Pair p) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(load128(p.first)), load128(p.second), 1);
}

HEADRACE_INLINE __m512i load_32s(Pair p) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(load256(p.first)), load256(p.second), 1);
}

HEADRACE_INLINE __m512 load_x8(Pair p) { return _mm512_cvtph_ps(load_16s(p)); }

// ---- code vectors ----

// a | (b & mask)
HEADRACE_INLINE __m512i or_and(__m512i a, __m512i b, __m512i mask) {
  return _mm512_ternarylogic_epi32(a, b, mask, 0xf8);
}

// Field i of bytes of bit pairs, moved to bits 4 and 5 of each byte.
template <int i>
HEADRACE_INLINE __m512i shift_pairs(__m512i pairs) {
  if constexpr (i < 2) return _mm512_slli_epi16(pairs, 4 - 2 * i);
  return _mm512_srli_epi16(pairs, 2 * i - 4);
}

// Operands of steps i and i + 4 of a group, as unsigned bytes.
template <int kBits, int i>
HEADRACE_INLINE void load_steps(Pair codes, __m512i& low, __m512i& high) {
  const __m512i nibble = _mm512_set1_epi8(15);
  const __m512i raw = load_32s(codes.at(32 * i));
  low = _mm512_and_si512(raw, nibble);
  high = _mm512_and_si512(_mm512_srli_epi16(raw, 4), nibble);
  if constexpr (kBits == 5) {
    const __m512i bits = load_32s(codes.at(kNibblesBytes));
    const __m512i fifth = _mm512_set1_epi8(16);
    low = or_and(low, _mm512_slli_epi16(bits, 4 - i), fifth);
    high = or_and(high, _mm512_srli_epi16(bits, i), fifth);
  }
  if constexpr (kBits == 6) {
    const __m512i upper = _mm512_set1_epi8(48);
    low = or_and(low, shift_pairs<i>(load_32s(codes.at(kNibblesBytes))), upper);
    high = or_and(high, shift_pairs<i>(load_32s(codes.at(kNibblesBytes + 32))), upper);
  }
}

// ---- weight formats ----

// What the rows share in one group: the scale d_w, the minimum m_w (if the type has one) and the
// multipliers of the integer sums, as floats: I is less than 2^24, so that what leads to it is
// exact in floats. (A zero may come out negative, which changes nothing: no accumulator is ever
// -0.)
struct Shared {
  __m512 scale;
  __m512 minimum;
  __m512 factor;         // of the whole group, or of its first half
  __m512 second_factor;  // of the second half
  __m512i offsets;       // -32 times the multipliers of both halves, as pairs
};

template <int kBitsPerCode, bool kHasMinimum>
struct Flat {
  static constexpr int kBits = kBitsPerCode;
  static constexpr bool kMinimum = kHasMinimum;
  static constexpr bool kFactor = false;
  static constexpr int kOffset = kHasMinimum ? 0 : 1 << (kBits - 1);
  static constexpr int kGroups = 1;
  static constexpr size_t kCodes = 0;
  static constexpr size_t kGroupBytes = kNibblesBytes + (kBits == 5 ? kBitsBytes : 0);
  static constexpr size_t kBytes = kGroupBytes + (kHasMinimum ? 2 : 1) * kX8Bytes;

  struct Head {};
  static HEADRACE_INLINE Head head(Pair) { return {}; }

  static HEADRACE_INLINE Shared shared(Pair unit, int, const Head&) {
    Shared s = {};
    s.scale = load_x8(unit.at(kGroupBytes));
    if (kMinimum) s.minimum = load_x8(unit.at(kGroupBytes + kX8Bytes));
    return s;
  }
};

template <int kBitsPerCode>
struct Super45 {
  static constexpr int kBits = kBitsPerCode;
  static constexpr bool kMinimum = true;
  static constexpr bool kFactor = true;
  static constexpr int kOffset = 0;
  static constexpr int kGroups = kSuperGroups;
  static constexpr size_t kCodes = kSuperCodes;
  static constexpr size_t kGroupBytes = kNibblesBytes + (kBits == 5 ? kBitsBytes : 0);
  static constexpr size_t kBytes = kSuperCodes + kSuperGroups * kGroupBytes;

  struct Head {
    __m512 d;
    __m512 minus_dmin;
  };
  static HEADRACE_INLINE Head head(Pair unit) {
    return {load_x8(unit), _mm512_xor_ps(load_x8(unit.at(kX8Bytes)), _mm512_set1_ps(-0.0f))};
  }

  static HEADRACE_INLINE __m512 widen(Pair bytes) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(load_8s(bytes)));
  }

  static HEADRACE_INLINE Shared shared(Pair unit, int g, const Head& head) {
    Shared s = {};
    s.scale = head.d;
    s.minimum = _mm512_mul_ps(head.minus_dmin, widen(unit.at(kSuperMinima + kTileN * g)));
    s.factor = widen(unit.at(kSuperScales + kTileN * g));
    return s;
  }
};

struct Q6_K {
  static constexpr int kBits = 6;
  static constexpr bool kMinimum = false;
  static constexpr bool kFactor = true;
  static constexpr int kOffset = 0;
  static constexpr int kGroups = kSuperGroups;
  static constexpr size_t kCodes = kQ6_KCodes;
  static constexpr size_t kGroupBytes = kNibblesBytes + kPairsBytes;
  static constexpr size_t kBytes = kQ6_KBytes;

  struct Head {
    __m512 d;
  };
  static HEADRACE_INLINE Head head(Pair unit) { return {load_x8(unit)}; }

  static HEADRACE_INLINE Shared shared(Pair unit, int g, const Head& head) {
    const __m512i both = _mm512_cvtepi8_epi16(load_16s(unit.at(kQ6_KScales + 16 * g)));
    Shared s = {};
    s.scale = head.d;
    s.factor = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(both, 16), 16));
    s.second_factor = _mm512_cvtepi32_ps(_mm512_srai_epi32(both, 16));
    s.offsets = _mm512_slli_epi16(_mm512_sub_epi16(_mm512_setzero_si512(), both), 5);
    return s;
  }
};

// ---- one group of 32 inputs: two tiles by R rows ----

HEADRACE_INLINE const A8Group& group_of(const uint8_t* act, size_t act_bytes, int r) {
  return *reinterpret_cast<const A8Group*>(act + act_bytes * r);
}

// Integer sums of a group; with two multipliers `second` are those of steps 4..7.
template <int R>
struct Sums {
  __m512i first[R];
  __m512i second[R];
};

template <class F, int R, int i>
HEADRACE_INLINE void add_steps(Pair codes, const uint8_t* act, size_t act_bytes, Sums<R>& sums) {
  __m512i low, high;
  load_steps<F::kBits, i>(codes, low, high);
  HEADRACE_UNROLL
  for (int r = 0; r < R; ++r) {
    const A8Group& a = group_of(act, act_bytes, r);
    sums.first[r] = _mm512_dpbusd_epi32(sums.first[r], low, broadcast32(a.codes + 4 * i));
    __m512i& other = F::kBits == 6 ? sums.second[r] : sums.first[r];
    other = _mm512_dpbusd_epi32(other, high, broadcast32(a.codes + 4 * i + 16));
  }
}

// I of the definition as a float, exactly.
template <class F>
HEADRACE_INLINE __m512 total(const A8Group& a, const Shared& s, __m512i first, __m512i second) {
  const __m512 sum = _mm512_cvtepi32_ps(first);
  if constexpr (F::kBits == 6) {
    // Each half less its offsets is below 2^23, so no sum on the way reaches 2^24.
    const __m512i offsets = _mm512_madd_epi16(s.offsets, broadcast32(a.half_sums));
    const __m512 part = _mm512_fmadd_ps(sum, s.factor, _mm512_cvtepi32_ps(offsets));
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(second), s.second_factor, part);
  }
  return F::kFactor ? _mm512_mul_ps(sum, s.factor) : sum;
}

template <class F, int R>
HEADRACE_INLINE void add_group(Pair codes, const Shared& s, const uint8_t* act, size_t act_bytes,
                               __m512 (&acc)[R]) {
  Sums<R> sums;
  HEADRACE_UNROLL
  for (int r = 0; r < R; ++r) {
    sums.first[r] = sums.second[r] = _mm512_setzero_si512();
    if constexpr (F::kOffset != 0) {
      sums.first[r] = _mm512_madd_epi16(_mm512_set1_epi16(-F::kOffset),
                                        broadcast32(group_of(act, act_bytes, r).half_sums));
    }
  }
  add_steps<F, R, 0>(codes, act, act_bytes, sums);
  add_steps<F, R, 1>(codes, act, act_bytes, sums);
  add_steps<F, R, 2>(codes, act, act_bytes, sums);
  add_steps<F, R, 3>(codes, act, act_bytes, sums);
  HEADRACE_UNROLL
  for (int r = 0; r < R; ++r) {
    const A8Group& a = group_of(act, act_bytes, r);
    const __m512 sum = total<F>(a, s, sums.first[r], sums.second[r]);
    acc[r] = _mm512_fmadd_ps(sum, _mm512_mul_ps(s.scale, _mm512_set1_ps(a.scale)), acc[r]);
    if constexpr (F::kMinimum) {
      acc[r] = _mm512_fmadd_ps(s.minimum, _mm512_set1_ps(a.scaled_sum), acc[r]);
    }
  }
}

// ---- T pairs of tiles by R rows over all inputs ----

struct Span {
  Pair w;
  size_t pair_bytes;
  int32_t k;
  const uint8_t* act;
  size_t act_bytes;
  const uint8_t* next;  // weights that are read after these, or nullptr
};

// Requests kBytes of the next weights into L2 and steps over them: the hardware does not look ahead
// for tiles that are read side by side, nor while rows meet weights that are already near.
template <size_t kBytes>
HEADRACE_INLINE void fetch_ahead(const uint8_t*& next) {
  if (next == nullptr) return;
  for (size_t i = 0; i < kBytes; i += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(next + i), _MM_HINT_T1);
  }
  next += kBytes;
}

// Formats with int8 activations.
template <class F>
struct A8Product {
  static constexpr int kPairs = 1;

  template <int T, int R>
  static HEADRACE_INLINE void run(Span span, __m512 (&acc)[T][R]) {
    Pair w = span.w;
    const uint8_t* act = span.act;
    for (int32_t i = 0; i < span.k; i += F::kGroups * kGroupLen, w = w.at(F::kBytes)) {
      const typename F::Head head = F::head(w);
      for (int g = 0; g < F::kGroups; ++g, act += sizeof(A8Group)) {
        const Shared shared = F::shared(w, g, head);
        add_group<F>(w.at(F::kCodes + F::kGroupBytes * g), shared, act, span.act_bytes, acc[0]);
        fetch_ahead<2 * F::kBytes / F::kGroups>(span.next);
      }
    }
  }
};

struct Q8_0Product {
  static constexpr int kPairs = 1;

  static HEADRACE_INLINE const A16Group& group_of(const uint8_t* act, size_t act_bytes, int r) {
    return *reinterpret_cast<const A16Group*>(act + act_bytes * r);
  }

  template <int R>
  static HEADRACE_INLINE void add_group(Pair unit, const uint8_t* act, size_t act_bytes,
                                        __m512 (&acc)[R]) {
    __m512i sums[R];
    HEADRACE_UNROLL
    for (int r = 0; r < R; ++r) sums[r] = _mm512_setzero_si512();
    HEADRACE_UNROLL
    for (int i = 0; i < 8; ++i) {
      const __m512i raw = load_32s(unit.at(32 * i));
      const __m512i low = _mm512_srai_epi16(_mm512_slli_epi16(raw, 8), 8);
      const __m512i high = _mm512_srai_epi16(raw, 8);
      HEADRACE_UNROLL
      for (int r = 0; r < R; ++r) {
        const int16_t* codes = group_of(act, act_bytes, r).codes + 4 * i;
        sums[r] = _mm512_dpwssd_epi32(sums[r], low, broadcast32(codes));
        sums[r] = _mm512_dpwssd_epi32(sums[r], high, broadcast32(codes + 2));
      }
    }
    const __m512 d = load_x8(unit.at(kBytesBytes));
    HEADRACE_UNROLL
    for (int r = 0; r < R; ++r) {
      const __m512 scale = _mm512_mul_ps(d, _mm512_set1_ps(group_of(act, act_bytes, r).scale));
      acc[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[r]), scale, acc[r]);
    }
  }

  template <int T, int R>
  static HEADRACE_INLINE void run(Span span, __m512 (&acc)[T][R]) {
    for (int32_t i = 0; i < span.k; i += kGroupLen) {
      add_group(span.w, span.act, span.act_bytes, acc[0]);
      span.w = span.w.at(kQ8_0Bytes);
      span.act += sizeof(A16Group);
      fetch_ahead<2 * kQ8_0Bytes>(span.next);
    }
  }
};

struct Half {
  uint16_t bits;
};
struct Bfloat {
  uint16_t bits;
};

template <class Element>
HEADRACE_INLINE __m512 load_weights(Pair p) {
  if constexpr (std::is_same_v<Element, float>) return _mm512_castsi512_ps(load_32s(p));
  if constexpr (std::is_same_v<Element, Half>) return load_x8(p);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_16s(p)), 16));
}

template <class Element>
struct FloatProduct {
  static constexpr int kPairs = 2;  // one row is a chain of additions: two chains

  template <int T, int R>
  static HEADRACE_INLINE void run(Span span, __m512 (&acc)[T][R]) {
    constexpr size_t kBytes = kTileN * sizeof(Element);
    for (int32_t i = 0; i < span.k; ++i) {
      __m512 weights[T];
      HEADRACE_UNROLL
      for (int t = 0; t < T; ++t) {
        weights[t] = load_weights<Element>(span.w.at(span.pair_bytes * t));
      }
      HEADRACE_UNROLL
      for (int r = 0; r < R; ++r) {
        float value;
        std::memcpy(&value, span.act + span.act_bytes * r, sizeof(value));
        const __m512 a = _mm512_set1_ps(value);
        HEADRACE_UNROLL
        for (int t = 0; t < T; ++t) acc[t][r] = _mm512_fmadd_ps(a, weights[t], acc[t][r]);
      }
      span.w = span.w.at(kBytes);
      span.act += sizeof(float);
      fetch_ahead<2 * T * kBytes>(span.next);
    }
  }
};

// ---- loops over tiles and rows ----

struct Job {
  const PackedMatrix& w;
  const uint8_t* act;
  size_t act_bytes;
  const ProductOut& to;

  float* out(int32_t tile, int32_t row) const { return to.out + row * to.ldo + tile * kTileN; }
};

// Stores the outputs of one or two tiles, as many of them as there are.
void store_pair(const Job& job, int32_t tile, int32_t num_tiles, int32_t row, __m512 acc) {
  const int32_t first = tile * kTileN;
  const int32_t most = num_tiles * kTileN;
  const int32_t num_outputs = job.w.n - first < most ? job.w.n - first : most;
  const auto mask = static_cast<__mmask16>((1u << num_outputs) - 1);
  const ProductOut& to = job.to;
  float* dst = job.out(tile, row);
  if (to.bias) acc = _mm512_add_ps(acc, _mm512_maskz_loadu_ps(mask, to.bias + first));
  if (to.accumulate) acc = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, dst), acc);
  _mm512_mask_storeu_ps(dst, mask, acc);
}

// T pairs of tiles; a tile that has no second one (T = 1) is paired with itself, for nothing.
template <class P, int T, int R>
void run_block(const Job& job, int32_t tile, bool single, int32_t row, const uint8_t* next) {
  __m512 acc[T][R];
  HEADRACE_UNROLL
  for (int t = 0; t < T; ++t) {
    HEADRACE_UNROLL
    for (int r = 0; r < R; ++r) acc[t][r] = _mm512_setzero_ps();
  }
  // Lines of an output that is larger than the L2 are far away when they are stored to.
  for (int r = 0; r < R; ++r) {
    _mm_prefetch(reinterpret_cast<const char*>(job.out(tile, row + r)), _MM_HINT_T0);
  }
  const PackedMatrix& w = job.w;
  const uint8_t* first = w.data + w.tile_bytes * tile;
  P::template run<T, R>({{first, single ? first : first + w.tile_bytes},
                         2 * w.tile_bytes,
                         w.k,
                         job.act + job.act_bytes * row,
                         job.act_bytes,
                         next},
                        acc);
  const int32_t num_tiles = single ? 1 : 2;
  HEADRACE_UNROLL
  for (int t = 0; t < T; ++t) {
    HEADRACE_UNROLL
    for (int r = 0; r < R; ++r) store_pair(job, tile + 2 * t, num_tiles, row + r, acc[t][r]);
  }
}

struct Range {
  int32_t begin;
  int32_t end;
};

// The last rows: `rest` of them, at most R.
template <class P, int T, int R>
HEADRACE_INLINE void run_rest(const Job& job, int32_t tile, bool single, int32_t row, int32_t rest,
                              const uint8_t* next) {
  if constexpr (R > 0) {
    if (rest == R) return run_block<P, T, R>(job, tile, single, row, next);
    run_rest<P, T, R - 1>(job, tile, single, row, rest, next);
  }
}

// T pairs by the rows; the first rows also look ahead for later tiles.
template <class P, int T>
void run_rows(const Job& job, int32_t tile, int32_t tile_end, Range rows) {
  const size_t set_bytes = job.w.tile_bytes * 2 * T;
  const auto sets = static_cast<int32_t>((kAheadBytes + set_bytes - 1) / set_bytes);
  const int32_t later = tile + 2 * T * sets;
  const uint8_t* next = later < tile_end ? job.w.data + job.w.tile_bytes * later : nullptr;
  const bool single = tile + 1 == tile_end;
  int32_t row = rows.begin;
  for (; row + kRows <= rows.end; row += kRows, next = nullptr) {
    run_block<P, T, kRows>(job, tile, single, row, next);
  }
  run_rest<P, T, kRows - 1>(job, tile, single, row, rows.end - row, next);
}

template <class P>
void run_product(const Job& job, Range tiles, int32_t rows) {
  constexpr int T = P::kPairs;
  const auto fitting = static_cast<int32_t>(kRowBlockBytes / job.act_bytes) / kRows * kRows;
  const int32_t block = fitting < kRows ? kRows : fitting;
  for (int32_t row = 0; row < rows; row += block) {
    const Range part = {row, row + block < rows ? row + block : rows};
    int32_t tile = tiles.begin;
    if constexpr (T > 1) {
      for (; tile + 2 * T <= tiles.end; tile += 2 * T) run_rows<P, T>(job, tile, tiles.end, part);
    }
    for (; tile < tiles.end; tile += 2) run_rows<P, 1>(job, tile, tiles.end, part);
  }
}

}  // namespace

// Wider registers gain nothing here: read at 8.2 ns a group either way.
void quantize_rows(ActKind kind, const float* x, int64_t ldx, int32_t rows, int32_t k, uint8_t* dst,
                   size_t dst_stride) {
  avx2::quantize_rows(kind, x, ldx, rows, k, dst, dst_stride);
}

#undef HEADRACE_UNROLL
#undef HEADRACE_INLINE

}  // namespace headrace::avx512

#define HEADRACE_ISA_NS avx512
#include "gemm/gemm_kernel.h"
