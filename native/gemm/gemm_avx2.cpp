// Matrix products of the avx2 table; see gemm/gemm.h for the definition and gemm/layout.h for the
// bytes. One template over (tiles, rows) does the same arithmetic for every number of rows.
#include <immintrin.h>

#include <cstring>

#include "gemm/gemm.h"
#include "gemm/layout.h"

namespace headrace::avx2 {
namespace {

#define HEADRACE_INLINE __attribute__((always_inline)) inline
// Before a loop whose bound is a constant: an index that is not one would put registers in memory.
#if defined(__clang__)
#define HEADRACE_UNROLL _Pragma("unroll")
#else
#define HEADRACE_UNROLL _Pragma("GCC unroll 8")
#endif

// Bytes of quantized rows that are multiplied by all tiles before the next rows: half of a 1 MiB
// L2.
constexpr size_t kRowBlockBytes = 384 * 1024;

// How far ahead weights are requested, at least: requests for what is near get in the way of the
// hardware's own. Read at two rows of k = 512, Q4_1: 28 GB/s; from 5 KiB ahead 18; without 8.
constexpr size_t kAheadBytes = 12 * 1024;
// The same of one stream. Read at one row, all types, two Zen 3 cores: 35 GB/s of the 36 that a
// plain read reaches; from 1 KiB ahead 34, from 4 to 16 KiB 31; without 28.
constexpr size_t kStreamAheadBytes = 2 * 1024;

HEADRACE_INLINE __m256i load256(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}

HEADRACE_INLINE __m256i broadcast32(const void* p) {
  int32_t word;
  std::memcpy(&word, p, sizeof(word));
  return _mm256_set1_epi32(word);
}

HEADRACE_INLINE __m256 load_x8(const uint8_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

// Makes the value exist here. Integer sums are reassociated freely by the compiler, which would
// otherwise keep every product of a group alive, on the stack, and add them up at the end.
HEADRACE_INLINE void settle(__m256i& value) { asm("" : "+x"(value)); }

// ---- code vectors ----

// Field i of 32 bytes of bit pairs, moved to bits 4 and 5 of each byte.
template <int i>
HEADRACE_INLINE __m256i shift_pairs(const uint8_t* p) {
  if constexpr (i < 2) return _mm256_slli_epi16(load256(p), 4 - 2 * i);
  return _mm256_srli_epi16(load256(p), 2 * i - 4);
}

// Operands of steps i and i + 4 of a group, as unsigned bytes.
template <int kBits, int i>
HEADRACE_INLINE void load_pair(const uint8_t* codes, __m256i& low, __m256i& high) {
  const __m256i nibble = _mm256_set1_epi8(15);
  const __m256i raw = load256(codes + 32 * i);
  low = _mm256_and_si256(raw, nibble);
  high = _mm256_and_si256(_mm256_srli_epi16(raw, 4), nibble);
  if constexpr (kBits == 5) {
    const __m256i bits = load256(codes + kNibblesBytes);
    const __m256i fifth = _mm256_set1_epi8(16);
    low = _mm256_or_si256(low, _mm256_and_si256(_mm256_slli_epi16(bits, 4 - i), fifth));
    high = _mm256_or_si256(high, _mm256_and_si256(_mm256_srli_epi16(bits, i), fifth));
  }
  if constexpr (kBits == 6) {
    const __m256i upper = _mm256_set1_epi8(48);
    low = _mm256_or_si256(low, _mm256_and_si256(shift_pairs<i>(codes + kNibblesBytes), upper));
    high =
        _mm256_or_si256(high, _mm256_and_si256(shift_pairs<i>(codes + kNibblesBytes + 32), upper));
  }
}

// ---- weight formats ----

// What the rows share in one group: the scale d_w, the minimum m_w (if the type has one) and the
// multipliers of the int16 sums, as pairs: for steps 0..3, for steps 4..7, and (first, second).
struct Shared {
  __m256 scale;
  __m256 minimum;
  __m256i low;
  __m256i high;
  __m256i both;
};

template <int kBitsPerCode, bool kHasMinimum>
struct Flat {
  static constexpr int kBits = kBitsPerCode;
  static constexpr bool kMinimum = kHasMinimum;
  static constexpr int kOffset = kHasMinimum ? 0 : 1 << (kBits - 1);
  static constexpr int kGroups = 1;
  static constexpr int kTiles = 2;
  static constexpr size_t kCodes = 0;
  static constexpr size_t kGroupBytes = kNibblesBytes + (kBits == 5 ? kBitsBytes : 0);
  static constexpr size_t kBytes = kGroupBytes + (kHasMinimum ? 2 : 1) * kX8Bytes;

  struct Head {};
  static HEADRACE_INLINE Head head(const uint8_t*) { return {}; }

  static HEADRACE_INLINE Shared shared(const uint8_t* unit, int, const Head&) {
    Shared s = {};
    s.scale = load_x8(unit + kGroupBytes);
    if (kMinimum) s.minimum = load_x8(unit + kGroupBytes + kX8Bytes);
    s.low = s.high = _mm256_set1_epi16(1);
    return s;
  }
};

template <int kBitsPerCode>
struct Super45 {
  static constexpr int kBits = kBitsPerCode;
  static constexpr bool kMinimum = true;
  static constexpr int kOffset = 0;
  static constexpr int kGroups = kSuperGroups;
  static constexpr int kTiles = 2;
  static constexpr size_t kCodes = kSuperCodes;
  static constexpr size_t kGroupBytes = kNibblesBytes + (kBits == 5 ? kBitsBytes : 0);
  static constexpr size_t kBytes = kSuperCodes + kSuperGroups * kGroupBytes;

  struct Head {
    __m256 d;
    __m256 minus_dmin;
  };
  static HEADRACE_INLINE Head head(const uint8_t* unit) {
    return {load_x8(unit), _mm256_xor_ps(load_x8(unit + kX8Bytes), _mm256_set1_ps(-0.0f))};
  }

  static HEADRACE_INLINE __m256i widen(const uint8_t* bytes) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes)));
  }

  static HEADRACE_INLINE Shared shared(const uint8_t* unit, int g, const Head& head) {
    Shared s = {};
    const __m256i scales = widen(unit + kSuperScales + kTileN * g);
    const __m256i minima = widen(unit + kSuperMinima + kTileN * g);
    s.scale = head.d;
    s.minimum = _mm256_mul_ps(head.minus_dmin, _mm256_cvtepi32_ps(minima));
    s.low = s.high = _mm256_or_si256(scales, _mm256_slli_epi32(scales, 16));
    return s;
  }
};

struct Q6_K {
  static constexpr int kBits = 6;
  static constexpr bool kMinimum = false;
  static constexpr int kGroups = kSuperGroups;
  static constexpr int kTiles = 1;
  static constexpr size_t kCodes = kQ6_KCodes;
  static constexpr size_t kGroupBytes = kNibblesBytes + kPairsBytes;
  static constexpr size_t kBytes = kQ6_KBytes;

  struct Head {
    __m256 d;
  };
  static HEADRACE_INLINE Head head(const uint8_t* unit) { return {load_x8(unit)}; }

  static HEADRACE_INLINE Shared shared(const uint8_t* unit, int g, const Head& head) {
    const __m256i first = _mm256_set1_epi32(0x01000100);
    const __m256i second = _mm256_set1_epi32(0x03020302);
    const __m256i words = _mm256_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c, 0, 0x04040404,
                                            0x08080808, 0x0c0c0c0c);
    Shared s = {};
    s.scale = head.d;
    s.both = _mm256_cvtepi8_epi16(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(unit + kQ6_KScales + 16 * g)));
    s.low = _mm256_shuffle_epi8(s.both, _mm256_add_epi8(first, words));
    s.high = _mm256_shuffle_epi8(s.both, _mm256_add_epi8(second, words));
    return s;
  }
};

// ---- one group of 32 inputs: T tiles by R rows ----

// Sums on the way from products to a group's total. `low` (and, with two multipliers, `high` for
// steps 4..7) are int16 sums of pairs; `total` is int32.
template <int T, int R>
struct Sums {
  __m256i low[T][R];
  __m256i high[T][R];
  __m256i total[T][R];
};

template <class F, int T, int R, int i>
HEADRACE_INLINE void add_pair(const uint8_t* const (&codes)[T], const Shared (&s)[T],
                              const uint8_t* act, size_t act_bytes, Sums<T, R>& sums) {
  constexpr bool kOdd = i % 2 == 1;
  __m256i low[T], high[T];
  for (int t = 0; t < T; ++t) load_pair<F::kBits, i>(codes[t], low[t], high[t]);
  for (int r = 0; r < R; ++r) {
    const A8Group& a = *reinterpret_cast<const A8Group*>(act + act_bytes * r);
    const __m256i first = broadcast32(a.codes + 4 * i);
    const __m256i second = broadcast32(a.codes + 4 * i + 16);
    for (int t = 0; t < T; ++t) {
      __m256i products = _mm256_maddubs_epi16(low[t], first);
      __m256i others = _mm256_maddubs_epi16(high[t], second);
      if constexpr (F::kBits == 6) {
        if (kOdd) products = _mm256_add_epi16(products, sums.low[t][r]);
        if (kOdd) others = _mm256_add_epi16(others, sums.high[t][r]);
        sums.high[t][r] = others;
      } else {
        products = _mm256_add_epi16(products, others);
        if (F::kBits == 4 ? i > 0 : kOdd) products = _mm256_add_epi16(products, sums.low[t][r]);
      }
      sums.low[t][r] = products;
      settle(sums.low[t][r]);
      if constexpr (F::kBits == 4 ? i == 3 : kOdd) {
        __m256i wide = _mm256_madd_epi16(products, s[t].low);
        if (F::kBits == 6) wide = _mm256_add_epi32(wide, _mm256_madd_epi16(others, s[t].high));
        if (F::kBits > 4 && i == 3) wide = _mm256_add_epi32(wide, sums.total[t][r]);
        sums.total[t][r] = wide;
        settle(sums.total[t][r]);
      }
    }
  }
}

template <class F, int T, int R>
HEADRACE_INLINE void add_group(const uint8_t* const (&codes)[T], const Shared (&s)[T],
                               const uint8_t* act, size_t act_bytes, __m256 (&acc)[T][R]) {
  Sums<T, R> sums;
  add_pair<F, T, R, 0>(codes, s, act, act_bytes, sums);
  add_pair<F, T, R, 1>(codes, s, act, act_bytes, sums);
  add_pair<F, T, R, 2>(codes, s, act, act_bytes, sums);
  add_pair<F, T, R, 3>(codes, s, act, act_bytes, sums);
  for (int r = 0; r < R; ++r) {
    const A8Group& a = *reinterpret_cast<const A8Group*>(act + act_bytes * r);
    for (int t = 0; t < T; ++t) {
      __m256i sum = sums.total[t][r];
      if constexpr (F::kBits == 6) {
        const __m256i halves = _mm256_madd_epi16(s[t].both, broadcast32(a.half_sums));
        sum = _mm256_sub_epi32(sum, _mm256_slli_epi32(halves, 5));
      } else if constexpr (F::kOffset != 0) {
        const __m256i offset = _mm256_set1_epi16(F::kOffset);
        sum = _mm256_sub_epi32(sum, _mm256_madd_epi16(offset, broadcast32(a.half_sums)));
      }
      const __m256 scale = _mm256_mul_ps(s[t].scale, _mm256_broadcast_ss(&a.scale));
      acc[t][r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), scale, acc[t][r]);
      if constexpr (F::kMinimum) {
        acc[t][r] = _mm256_fmadd_ps(s[t].minimum, _mm256_broadcast_ss(&a.scaled_sum), acc[t][r]);
      }
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
  static constexpr int kDecodeTiles = 1;
  static constexpr int kTiles = F::kTiles;

  template <int T, int R>
  static HEADRACE_INLINE void run(Span span, __m256 (&acc)[T][R]) {
    const uint8_t* w = span.w;
    const uint8_t* act = span.act;
    const size_t tile_bytes = span.tile_bytes;
    for (int32_t i = 0; i < span.k; i += F::kGroups * kGroupLen, w += F::kBytes) {
      typename F::Head heads[T];
      for (int t = 0; t < T; ++t) heads[t] = F::head(w + tile_bytes * t);
      for (int g = 0; g < F::kGroups; ++g, act += sizeof(A8Group)) {
        const uint8_t* codes[T];
        Shared shared[T];
        for (int t = 0; t < T; ++t) {
          codes[t] = w + tile_bytes * t + F::kCodes + F::kGroupBytes * g;
          shared[t] = F::shared(w + tile_bytes * t, g, heads[t]);
        }
        add_group<F>(codes, shared, act, span.act_bytes, acc);
        fetch_ahead<T * F::kBytes / F::kGroups>(span.next);
      }
    }
  }
};

struct Q8_0Product {
  static constexpr int kDecodeTiles = 1;
  static constexpr int kTiles = 2;

  template <int T, int R>
  static HEADRACE_INLINE void add_group(const uint8_t* unit, size_t tile_bytes, const uint8_t* act,
                                        size_t act_bytes, __m256 (&acc)[T][R]) {
    __m256i sums[T][R];
    HEADRACE_UNROLL
    for (int i = 0; i < 8; ++i) {
      __m256i low[T], high[T];
      for (int t = 0; t < T; ++t) {
        const __m256i raw = load256(unit + tile_bytes * t + 32 * i);
        low[t] = _mm256_srai_epi16(_mm256_slli_epi16(raw, 8), 8);
        high[t] = _mm256_srai_epi16(raw, 8);
      }
      for (int r = 0; r < R; ++r) {
        const A16Group& a = *reinterpret_cast<const A16Group*>(act + act_bytes * r);
        const __m256i first = broadcast32(a.codes + 4 * i);
        const __m256i second = broadcast32(a.codes + 4 * i + 2);
        for (int t = 0; t < T; ++t) {
          const __m256i both = _mm256_add_epi32(_mm256_madd_epi16(low[t], first),
                                                _mm256_madd_epi16(high[t], second));
          sums[t][r] = i == 0 ? both : _mm256_add_epi32(sums[t][r], both);
          settle(sums[t][r]);
        }
      }
    }
    for (int t = 0; t < T; ++t) {
      const __m256 d = load_x8(unit + tile_bytes * t + kBytesBytes);
      for (int r = 0; r < R; ++r) {
        const A16Group& a = *reinterpret_cast<const A16Group*>(act + act_bytes * r);
        const __m256 scale = _mm256_mul_ps(d, _mm256_broadcast_ss(&a.scale));
        acc[t][r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[t][r]), scale, acc[t][r]);
      }
    }
  }

  template <int T, int R>
  static HEADRACE_INLINE void run(Span span, __m256 (&acc)[T][R]) {
    for (int32_t i = 0; i < span.k; i += kGroupLen) {
      add_group(span.w, span.tile_bytes, span.act, span.act_bytes, acc);
      span.w += kQ8_0Bytes;
      span.act += sizeof(A16Group);
      fetch_ahead<T * kQ8_0Bytes>(span.next);
    }
  }
};

HEADRACE_INLINE __m256 load_weights(const float* p) { return _mm256_loadu_ps(p); }

struct Half {
  uint16_t bits;
};
struct Bfloat {
  uint16_t bits;
};

HEADRACE_INLINE __m256 load_weights(const Half* p) {
  return load_x8(reinterpret_cast<const uint8_t*>(p));
}
HEADRACE_INLINE __m256 load_weights(const Bfloat* p) {
  const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

template <class Element>
struct FloatProduct {
  static constexpr int kDecodeTiles = 4;
  static constexpr int kTiles = 2;

  template <int T, int R>
  static HEADRACE_INLINE void run(Span span, __m256 (&acc)[T][R]) {
    constexpr size_t kBytes = kTileN * sizeof(Element);
    const uint8_t* w = span.w;
    const uint8_t* act = span.act;
    for (int32_t i = 0; i < span.k; ++i, w += kBytes, act += sizeof(float)) {
      __m256 weights[T];
      for (int t = 0; t < T; ++t) {
        weights[t] = load_weights(reinterpret_cast<const Element*>(w + span.tile_bytes * t));
      }
      for (int r = 0; r < R; ++r) {
        const __m256 a =
            _mm256_broadcast_ss(reinterpret_cast<const float*>(act + span.act_bytes * r));
        for (int t = 0; t < T; ++t) acc[t][r] = _mm256_fmadd_ps(a, weights[t], acc[t][r]);
      }
      fetch_ahead<T * kBytes>(span.next);
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

void store_tile(const Job& job, int32_t tile, int32_t row, __m256 acc) {
  const int32_t first = tile * kTileN;
  const int32_t num_outputs = job.w.n - first < kTileN ? job.w.n - first : kTileN;
  const ProductOut& to = job.to;
  float* dst = to.out + row * to.ldo + first;
  if (num_outputs == kTileN) {
    if (to.bias) acc = _mm256_add_ps(acc, _mm256_loadu_ps(to.bias + first));
    if (to.accumulate) acc = _mm256_add_ps(_mm256_loadu_ps(dst), acc);
    _mm256_storeu_ps(dst, acc);
    return;
  }
  float lanes[kTileN];
  _mm256_storeu_ps(lanes, acc);
  for (int32_t o = 0; o < num_outputs; ++o) {
    const float y = to.bias ? lanes[o] + to.bias[first + o] : lanes[o];
    dst[o] = to.accumulate ? dst[o] + y : y;
  }
}

template <class P, int T, int R>
void run_block(const Job& job, int32_t tile, int32_t row, const uint8_t* next) {
  __m256 acc[T][R];
  for (int t = 0; t < T; ++t) {
    for (int r = 0; r < R; ++r) acc[t][r] = _mm256_setzero_ps();
  }
  // Lines of an output that is larger than the L2 are far away when they are stored to. At 420 rows
  // of 1536 floats (Q4_1, one Sapphire Rapids core): 46 G multiply-adds per second without this, 84
  // with.
  for (int r = 0; r < R; ++r) {
    const float* dst = job.to.out + (row + r) * job.to.ldo + tile * kTileN;
    _mm_prefetch(reinterpret_cast<const char*>(dst), _MM_HINT_T0);
  }
  const PackedMatrix& w = job.w;
  P::template run<T, R>({w.data + w.tile_bytes * tile, w.tile_bytes, w.k,
                         job.act + job.act_bytes * row, job.act_bytes, next},
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

// T tiles by the rows; the first rows also look ahead for later tiles.
template <class P, int T>
void run_rows(const Job& job, int32_t tile, int32_t tile_end, Range rows) {
  const size_t set_bytes = job.w.tile_bytes * T;
  const auto sets = static_cast<int32_t>((kAheadBytes + set_bytes - 1) / set_bytes);
  const int32_t later = tile + T * sets;
  const uint8_t* next = later < tile_end ? job.w.data + job.w.tile_bytes * later : nullptr;
  int32_t row = rows.begin;
  for (; row + 4 <= rows.end; row += 4, next = nullptr) run_block<P, T, 4>(job, tile, row, next);
  switch (rows.end - row) {
    case 3:
      return run_block<P, T, 3>(job, tile, row, next);
    case 2:
      return run_block<P, T, 2>(job, tile, row, next);
    case 1:
      return run_block<P, T, 1>(job, tile, row, next);
  }
}

// Weights read once: one stream, or for floats, which need no unpacking, several side by side. The
// hardware looks ahead well enough for these: 36 GB/s of 37, and 34 with requests.
template <class P>
void run_one_row(const Job& job, Range tiles) {
  constexpr int T = P::kDecodeTiles;
  int32_t tile = tiles.begin;
  for (; tile + T <= tiles.end; tile += T) {
    const uint8_t* w = job.w.data + job.w.tile_bytes * tile;
    run_block<P, T, 1>(job, tile, 0, T == 1 ? w + kStreamAheadBytes : nullptr);
  }
  for (; tile < tiles.end; ++tile) run_block<P, 1, 1>(job, tile, 0, nullptr);
}

template <class P>
void run_product(const Job& job, Range tiles, int32_t rows) {
  if (rows == 1) return run_one_row<P>(job, tiles);
  constexpr int T = P::kTiles;
  const auto fitting = static_cast<int32_t>(kRowBlockBytes / job.act_bytes) / 4 * 4;
  const int32_t block = fitting < 4 ? 4 : fitting;
  for (int32_t row = 0; row < rows; row += block) {
    const Range part = {row, row + block < rows ? row + block : rows};
    int32_t tile = tiles.begin;
    for (; tile + T <= tiles.end; tile += T) run_rows<P, T>(job, tile, tiles.end, part);
    for (; tile < tiles.end; ++tile) run_rows<P, 1>(job, tile, tiles.end, part);
  }
}

}  // namespace

#undef HEADRACE_UNROLL
#undef HEADRACE_INLINE

}  // namespace headrace::avx2

#define HEADRACE_ISA_NS avx2
#include "gemm/gemm_kernel.h"
