// Matrix products of the avx2 table; see gemm/gemm.h for the definition and gemm/layout.h for the
// bytes. One template over (tiles, rows) does the same arithmetic for every number of rows.
#include <immintrin.h>

#include <cstring>

#include "gemm/gemm.h"
#include "gemm/layout.h"

namespace headrace::avx2 {
namespace {

#define HEADRACE_INLINE __attribute__((always_inline)) inline

// Bytes of quantized rows that are multiplied by all tiles before the next rows: half of a 1 MiB
// L2.
constexpr size_t kRowBlockBytes = 384 * 1024;

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

// ---- code vectors ----

// Operands of steps 2h, 2h + 1, 2h + 4, 2h + 5 of a group, as unsigned bytes.
template <int kBits, int kHalf>
HEADRACE_INLINE void load_quad(const uint8_t* codes, __m256i (&w)[4]) {
  const __m256i nibble = _mm256_set1_epi8(15);
  for (int v = 0; v < 2; ++v) {
    const __m256i raw = load256(codes + 32 * (2 * kHalf + v));
    w[v] = _mm256_and_si256(raw, nibble);
    w[2 + v] = _mm256_and_si256(_mm256_srli_epi16(raw, 4), nibble);
  }
  if constexpr (kBits == 5) {
    const __m256i bits = load256(codes + kNibblesBytes);
    const __m256i fifth = _mm256_set1_epi8(16);
    for (int v = 0; v < 2; ++v) {
      const __m256i low = _mm256_slli_epi16(bits, 4 - (2 * kHalf + v));
      const __m256i high = _mm256_srli_epi16(bits, 2 * kHalf + v);
      w[v] = _mm256_or_si256(w[v], _mm256_and_si256(low, fifth));
      w[2 + v] = _mm256_or_si256(w[2 + v], _mm256_and_si256(high, fifth));
    }
  }
  if constexpr (kBits == 6) {
    const __m256i upper = _mm256_set1_epi8(48);
    for (int side = 0; side < 2; ++side) {
      const __m256i pairs = load256(codes + kNibblesBytes + 32 * side);
      const __m256i first = kHalf == 0 ? _mm256_slli_epi16(pairs, 4) : pairs;
      const __m256i second = kHalf == 0 ? _mm256_slli_epi16(pairs, 2) : _mm256_srli_epi16(pairs, 2);
      w[2 * side] = _mm256_or_si256(w[2 * side], _mm256_and_si256(first, upper));
      w[2 * side + 1] = _mm256_or_si256(w[2 * side + 1], _mm256_and_si256(second, upper));
    }
  }
}

// Products of operand i of a quad with the activations of its step, pairs added: 16 x int16.
template <int kHalf>
HEADRACE_INLINE __m256i multiply(const __m256i (&w)[4], const A8Group& a, int i) {
  const int step = 2 * kHalf + (i & 1) + (i < 2 ? 0 : 4);
  return _mm256_maddubs_epi16(w[i], broadcast32(a.codes + 4 * step));
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
  static constexpr int kOffset = 32;
  static constexpr int kGroups = kSuperGroups;
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

// ---- one group of 32 inputs: a tile by R rows ----

template <int kBits, int kHalf, int R>
HEADRACE_INLINE void add_quad(const uint8_t* codes, const Shared& s, const uint8_t* act,
                              size_t act_bytes, __m256i (&words)[R], __m256i (&sums)[R]) {
  __m256i w[4];
  load_quad<kBits, kHalf>(codes, w);
  for (int r = 0; r < R; ++r) {
    const A8Group& a = *reinterpret_cast<const A8Group*>(act + act_bytes * r);
    const __m256i low = _mm256_add_epi16(multiply<kHalf>(w, a, 0), multiply<kHalf>(w, a, 1));
    const __m256i high = _mm256_add_epi16(multiply<kHalf>(w, a, 2), multiply<kHalf>(w, a, 3));
    if constexpr (kBits == 6) {
      const __m256i both =
          _mm256_add_epi32(_mm256_madd_epi16(low, s.low), _mm256_madd_epi16(high, s.high));
      sums[r] = kHalf == 0 ? both : _mm256_add_epi32(sums[r], both);
      continue;
    }
    const __m256i quad = _mm256_add_epi16(low, high);
    if constexpr (kBits == 5) {
      const __m256i wide = _mm256_madd_epi16(quad, s.low);
      sums[r] = kHalf == 0 ? wide : _mm256_add_epi32(sums[r], wide);
    } else if constexpr (kHalf == 0) {
      words[r] = quad;
    } else {
      sums[r] = _mm256_madd_epi16(_mm256_add_epi16(words[r], quad), s.low);
    }
  }
}

template <class F, int R>
HEADRACE_INLINE void add_group(const uint8_t* codes, const Shared& s, const uint8_t* act,
                               size_t act_bytes, __m256 (&acc)[R]) {
  __m256i words[R], sums[R];
  add_quad<F::kBits, 0>(codes, s, act, act_bytes, words, sums);
  add_quad<F::kBits, 1>(codes, s, act, act_bytes, words, sums);
  for (int r = 0; r < R; ++r) {
    const A8Group& a = *reinterpret_cast<const A8Group*>(act + act_bytes * r);
    __m256i sum = sums[r];
    if constexpr (F::kBits == 6) {
      const __m256i halves = _mm256_madd_epi16(s.both, broadcast32(a.half_sums));
      sum = _mm256_sub_epi32(sum, _mm256_slli_epi32(halves, 5));
    } else if constexpr (F::kOffset != 0) {
      const __m256i offset = _mm256_set1_epi16(F::kOffset);
      sum = _mm256_sub_epi32(sum, _mm256_madd_epi16(offset, broadcast32(a.half_sums)));
    }
    const __m256 scale = _mm256_mul_ps(s.scale, _mm256_broadcast_ss(&a.scale));
    acc[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), scale, acc[r]);
    if constexpr (F::kMinimum) {
      acc[r] = _mm256_fmadd_ps(s.minimum, _mm256_broadcast_ss(&a.scaled_sum), acc[r]);
    }
  }
}

// ---- T tiles by R rows over all inputs ----

// Formats with int8 activations.
template <class F>
struct A8Product {
  static constexpr int kDecodeTiles = 2;  // tiles at one row: independent chains of additions
  static constexpr int kTiles = 1;

  template <int T, int R>
  static HEADRACE_INLINE void run(const uint8_t* w, size_t tile_bytes, int32_t k,
                                  const uint8_t* act, size_t act_bytes, __m256 (&acc)[T][R]) {
    for (int32_t i = 0; i < k; i += F::kGroups * kGroupLen, w += F::kBytes) {
      typename F::Head heads[T];
      for (int t = 0; t < T; ++t) heads[t] = F::head(w + tile_bytes * t);
      for (int g = 0; g < F::kGroups; ++g, act += sizeof(A8Group)) {
        for (int t = 0; t < T; ++t) {
          const uint8_t* unit = w + tile_bytes * t;
          const Shared s = F::shared(unit, g, heads[t]);
          add_group<F>(unit + F::kCodes + F::kGroupBytes * g, s, act, act_bytes, acc[t]);
        }
      }
    }
  }
};

struct Q8_0Product {
  static constexpr int kDecodeTiles = 2;
  static constexpr int kTiles = 1;

  template <int R>
  static HEADRACE_INLINE void add_group(const uint8_t* unit, const uint8_t* act, size_t act_bytes,
                                        __m256 (&acc)[R]) {
    __m256i sums[R];
    for (int i = 0; i < 8; ++i) {
      const __m256i raw = load256(unit + 32 * i);
      const __m256i low = _mm256_srai_epi16(_mm256_slli_epi16(raw, 8), 8);
      const __m256i high = _mm256_srai_epi16(raw, 8);
      for (int r = 0; r < R; ++r) {
        const A16Group& a = *reinterpret_cast<const A16Group*>(act + act_bytes * r);
        const __m256i first = _mm256_madd_epi16(low, broadcast32(a.codes + 4 * i));
        const __m256i second = _mm256_madd_epi16(high, broadcast32(a.codes + 4 * i + 2));
        const __m256i both = _mm256_add_epi32(first, second);
        sums[r] = i == 0 ? both : _mm256_add_epi32(sums[r], both);
      }
    }
    const __m256 d = load_x8(unit + kBytesBytes);
    for (int r = 0; r < R; ++r) {
      const A16Group& a = *reinterpret_cast<const A16Group*>(act + act_bytes * r);
      const __m256 scale = _mm256_mul_ps(d, _mm256_broadcast_ss(&a.scale));
      acc[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[r]), scale, acc[r]);
    }
  }

  template <int T, int R>
  static HEADRACE_INLINE void run(const uint8_t* w, size_t tile_bytes, int32_t k,
                                  const uint8_t* act, size_t act_bytes, __m256 (&acc)[T][R]) {
    for (int32_t i = 0; i < k; i += kGroupLen, w += kQ8_0Bytes, act += sizeof(A16Group)) {
      for (int t = 0; t < T; ++t) add_group(w + tile_bytes * t, act, act_bytes, acc[t]);
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
  static HEADRACE_INLINE void run(const uint8_t* w, size_t tile_bytes, int32_t k,
                                  const uint8_t* act, size_t act_bytes, __m256 (&acc)[T][R]) {
    for (int32_t i = 0; i < k; ++i, w += kTileN * sizeof(Element), act += sizeof(float)) {
      __m256 weights[T];
      for (int t = 0; t < T; ++t) {
        weights[t] = load_weights(reinterpret_cast<const Element*>(w + tile_bytes * t));
      }
      for (int r = 0; r < R; ++r) {
        const __m256 a = _mm256_broadcast_ss(reinterpret_cast<const float*>(act + act_bytes * r));
        for (int t = 0; t < T; ++t) acc[t][r] = _mm256_fmadd_ps(a, weights[t], acc[t][r]);
      }
    }
  }
};

// ---- loops over tiles and rows ----

struct Job {
  const PackedMatrix& w;
  const uint8_t* act;
  size_t act_bytes;
  const float* bias;
  float* out;
  int64_t ldo;
};

void store_tile(const Job& job, int32_t tile, int32_t row, __m256 acc) {
  const int32_t first = tile * kTileN;
  const int32_t num_outputs = job.w.n - first < kTileN ? job.w.n - first : kTileN;
  float* dst = job.out + row * job.ldo + first;
  if (num_outputs == kTileN) {
    if (job.bias) acc = _mm256_add_ps(acc, _mm256_loadu_ps(job.bias + first));
    _mm256_storeu_ps(dst, acc);
    return;
  }
  float lanes[kTileN];
  _mm256_storeu_ps(lanes, acc);
  for (int32_t o = 0; o < num_outputs; ++o) {
    dst[o] = job.bias ? lanes[o] + job.bias[first + o] : lanes[o];
  }
}

template <class P, int T, int R>
void run_block(const Job& job, int32_t tile, int32_t row) {
  __m256 acc[T][R];
  for (int t = 0; t < T; ++t) {
    for (int r = 0; r < R; ++r) acc[t][r] = _mm256_setzero_ps();
  }
  const PackedMatrix& w = job.w;
  P::template run<T, R>(w.data + w.tile_bytes * tile, w.tile_bytes, w.k,
                        job.act + job.act_bytes * row, job.act_bytes, acc);
  for (int t = 0; t < T; ++t) {
    for (int r = 0; r < R; ++r) store_tile(job, tile + t, row + r, acc[t][r]);
  }
}

template <class P, int T>
void run_rows(const Job& job, int32_t tile, int32_t row_begin, int32_t row_end) {
  int32_t row = row_begin;
  for (; row + 4 <= row_end; row += 4) run_block<P, T, 4>(job, tile, row);
  if (row + 2 <= row_end) {
    run_block<P, T, 2>(job, tile, row);
    row += 2;
  }
  if (row < row_end) run_block<P, T, 1>(job, tile, row);
}

template <class P>
void run_product(const Job& job, int32_t tile_begin, int32_t tile_end, int32_t rows) {
  if (rows == 1) {
    int32_t tile = tile_begin;
    for (; tile + P::kDecodeTiles <= tile_end; tile += P::kDecodeTiles) {
      run_block<P, P::kDecodeTiles, 1>(job, tile, 0);
    }
    for (; tile < tile_end; ++tile) run_block<P, 1, 1>(job, tile, 0);
    return;
  }
  const auto fitting = static_cast<int32_t>(kRowBlockBytes / job.act_bytes) / 4 * 4;
  const int32_t block = fitting < 4 ? 4 : fitting;
  for (int32_t row = 0; row < rows; row += block) {
    const int32_t row_end = row + block < rows ? row + block : rows;
    int32_t tile = tile_begin;
    for (; tile + P::kTiles <= tile_end; tile += P::kTiles) {
      run_rows<P, P::kTiles>(job, tile, row, row_end);
    }
    for (; tile < tile_end; ++tile) run_rows<P, 1>(job, tile, row, row_end);
  }
}

}  // namespace

void gemm(const PackedMatrix& w, int32_t tile_begin, int32_t tile_end, const uint8_t* act,
          int32_t rows, const float* bias, float* out, int64_t ldo) {
  const Job job = {w, act, act_row_bytes(act_kind(w.dtype), w.k), bias, out, ldo};
  switch (w.dtype) {
    case DType::f32:
      return run_product<FloatProduct<float>>(job, tile_begin, tile_end, rows);
    case DType::f16:
      return run_product<FloatProduct<Half>>(job, tile_begin, tile_end, rows);
    case DType::bf16:
      return run_product<FloatProduct<Bfloat>>(job, tile_begin, tile_end, rows);
    case DType::q4_0:
      return run_product<A8Product<Flat<4, false>>>(job, tile_begin, tile_end, rows);
    case DType::q4_1:
      return run_product<A8Product<Flat<4, true>>>(job, tile_begin, tile_end, rows);
    case DType::q5_0:
      return run_product<A8Product<Flat<5, false>>>(job, tile_begin, tile_end, rows);
    case DType::q5_1:
      return run_product<A8Product<Flat<5, true>>>(job, tile_begin, tile_end, rows);
    case DType::q8_0:
      return run_product<Q8_0Product>(job, tile_begin, tile_end, rows);
    case DType::q4_k:
      return run_product<A8Product<Super45<4>>>(job, tile_begin, tile_end, rows);
    case DType::q5_k:
      return run_product<A8Product<Super45<5>>>(job, tile_begin, tile_end, rows);
    case DType::q6_k:
      return run_product<A8Product<Q6_K>>(job, tile_begin, tile_end, rows);
  }
}

#undef HEADRACE_INLINE

}  // namespace headrace::avx2
