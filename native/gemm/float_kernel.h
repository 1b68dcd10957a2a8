// Products of quantized weights with plain float activations (gemm/gemm.h, "float activations");
// included once per instruction set (see common/v8.h).
//
// Two tiles are unpacked for up to kDepth inputs into a small buffer [input][16 outputs], in which
// a pair of vectors (or one of 512 bits) is one input of all outputs; every row of a block then
// passes over it. Sums wait in memory between the buffers of one product: a load and a store per
// kDepth multiply-adds, in the order of a single accumulator.
#include <cstring>

#include "common/v8.h"
#include "gemm/gemm.h"
#include "gemm/layout.h"

namespace headrace::HEADRACE_ISA_NS {
namespace {

constexpr int32_t kDepth = 256;
constexpr int32_t kPairN = 2 * kTileN;
// Rows that share one unpacking. Their sums are 6 KiB.
constexpr int32_t kFloatRows = 96;

#define HEADRACE_INLINE __attribute__((always_inline)) inline
#if defined(__clang__)
#define HEADRACE_UNROLL _Pragma("unroll")
#else
#define HEADRACE_UNROLL _Pragma("GCC unroll 16")
#endif

// ---- one input of two tiles ----

#if defined(HEADRACE_PAIR_AVX512)
constexpr int kRowTile = 12;
struct Pair {
  __m512 v;
};
HEADRACE_INLINE Pair load_pair(const float* p) { return {_mm512_loadu_ps(p)}; }
HEADRACE_INLINE void store_pair(float* p, Pair a) { _mm512_storeu_ps(p, a.v); }
HEADRACE_INLINE Pair add_product(float a, Pair w, Pair c) {
  return {_mm512_fmadd_ps(_mm512_set1_ps(a), w.v, c.v)};
}
#else
constexpr int kRowTile = 6;
struct Pair {
  V8 low;
  V8 high;
};
HEADRACE_INLINE Pair load_pair(const float* p) { return {load(p), load(p + kTileN)}; }
HEADRACE_INLINE void store_pair(float* p, Pair a) {
  store(p, a.low);
  store(p + kTileN, a.high);
}
HEADRACE_INLINE Pair add_product(float a, Pair w, Pair c) {
  const V8 factor = splat(a);
  return {fma(factor, w.low, c.low), fma(factor, w.high, c.high)};
}
#endif

// ---- unpacking: the operations of unpack_row, eight outputs at a time ----

HEADRACE_INLINE V8 load_x8(const uint8_t* p) {
  uint16_t halves[kTileN];
  std::memcpy(halves, p, sizeof(halves));
  return load_f16(halves);
}

// Eight bytes as floats, `stride` bytes apart.
template <class Byte, int stride>
HEADRACE_INLINE V8 load_bytes(const uint8_t* p) {
  float values[kTileN];
  for (int o = 0; o < kTileN; ++o) values[o] = static_cast<float>(static_cast<Byte>(p[stride * o]));
  return load(values);
}

// Bits of `words` moved by n to the right, or -n to the left.
HEADRACE_INLINE I8 moved(I8 words, int n) {
  return n >= 0 ? shift_right(words, n) : shift_left<4>(shift_right(words, n + 4));
}

// Codes of input 4 s + j for eight outputs, of a group of 4, 5 or 6 bits.
template <int kBits>
HEADRACE_INLINE I8 codes_at(const uint8_t* group, int s, int j) {
  const uint8_t* upper = group + kNibblesBytes;
  I8 code = mask(shift_right(load_words(group + 32 * (s % 4)), 8 * j + (s < 4 ? 0 : 4)), 15);
  if (kBits == 5) code = join(code, mask(moved(load_words(upper), 8 * j + s - 4), 16));
  if (kBits == 6) {
    const I8 pairs = load_words(upper + 32 * (s / 4));
    code = join(code, mask(moved(pairs, 8 * j + 2 * (s % 4) - 4), 48));
  }
  return code;
}

// weight(code, s) of the 32 inputs of a group, to columns of `out`.
template <int kBits, class Weight>
HEADRACE_INLINE void unpack_group(const uint8_t* group, float* out, const Weight& weight) {
  HEADRACE_UNROLL
  for (int s = 0; s < 8; ++s) {
    HEADRACE_UNROLL
    for (int j = 0; j < 4; ++j) {
      store(out + kPairN * (4 * s + j), weight(codes_at<kBits>(group, s, j), s));
    }
  }
}

template <int kBits, bool kMinimum>
struct FlatFloats {
  static constexpr int kGroups = 1;
  static constexpr size_t kScale = kNibblesBytes + (kBits == 5 ? kBitsBytes : 0);
  static constexpr size_t kBytes = kScale + (kMinimum ? 2 : 1) * kX8Bytes;

  static void unpack(const uint8_t* unit, int, float* out) {
    const V8 d = load_x8(unit + kScale);
    const V8 m = kMinimum ? load_x8(unit + kScale + kX8Bytes) : zero8();
    const I8 offset = splat_int(kMinimum ? 0 : -(1 << (kBits - 1)));
    unpack_group<kBits>(unit, out, [&](I8 code, int) {
      const V8 product = mul(to_float(add(code, offset)), d);
      return kMinimum ? add(product, m) : product;
    });
  }
};

struct Q8Floats {
  static constexpr int kGroups = 1;
  static constexpr size_t kBytes = kQ8_0Bytes;

  static void unpack(const uint8_t* unit, int, float* out) {
    const V8 d = load_x8(unit + kBytesBytes);
    constexpr int kPlace[4] = {0, 2, 1, 3};
    const I8 signs = splat_int(static_cast<int32_t>(0x80808080u));
    const I8 least = splat_int(-128);
    HEADRACE_UNROLL
    for (int s = 0; s < 8; ++s) {
      const I8 words = flip(load_words(unit + 32 * s), signs);
      HEADRACE_UNROLL
      for (int j = 0; j < 4; ++j) {
        // A code plus 128 is its byte with the highest bit changed.
        const I8 byte = mask(shift_right(words, 8 * kPlace[j]), 255);
        store(out + kPairN * (4 * s + j), mul(to_float(add(byte, least)), d));
      }
    }
  }
};

template <int kBits>
struct Super45Floats {
  static constexpr int kGroups = kSuperGroups;
  static constexpr size_t kGroupBytes = kNibblesBytes + (kBits == 5 ? kBitsBytes : 0);
  static constexpr size_t kBytes = kSuperCodes + kSuperGroups * kGroupBytes;

  static void unpack(const uint8_t* unit, int g, float* out) {
    const V8 scales = load_bytes<uint8_t, 1>(unit + kSuperScales + kTileN * g);
    const V8 minima = load_bytes<uint8_t, 1>(unit + kSuperMinima + kTileN * g);
    const V8 scale = mul(load_x8(unit), scales);
    const V8 minimum = mul(load_x8(unit + kX8Bytes), minima);
    unpack_group<kBits>(unit + kSuperCodes + kGroupBytes * g, out,
                        [&](I8 code, int) { return sub(mul(scale, to_float(code)), minimum); });
  }
};

struct Q6Floats {
  static constexpr int kGroups = kSuperGroups;
  static constexpr size_t kBytes = kQ6_KBytes;

  static void unpack(const uint8_t* unit, int g, float* out) {
    const uint8_t* scales = unit + kQ6_KScales + 2 * kTileN * g;
    const V8 d = load_x8(unit);
    const V8 first = mul(d, load_bytes<int8_t, 2>(scales));
    const V8 second = mul(d, load_bytes<int8_t, 2>(scales + 1));
    const I8 offset = splat_int(-32);
    unpack_group<6>(
        unit + kQ6_KCodes + (kNibblesBytes + kPairsBytes) * g, out,
        [&](I8 code, int s) { return mul(s < 4 ? first : second, to_float(add(code, offset))); });
  }
};

// ---- products ----

// `depth` inputs more of R rows.
template <int R>
void add_rows(const float* weights, int32_t depth, const uint8_t* act, size_t act_bytes,
              float* sums) {
  Pair acc[R];
  HEADRACE_UNROLL
  for (int r = 0; r < R; ++r) acc[r] = load_pair(sums + kPairN * r);
  for (int32_t i = 0; i < depth; ++i) {
    const Pair w = load_pair(weights + kPairN * i);
    HEADRACE_UNROLL
    for (int r = 0; r < R; ++r) {
      float a;
      std::memcpy(&a, act + act_bytes * r + sizeof(a) * i, sizeof(a));
      acc[r] = add_product(a, w, acc[r]);
    }
  }
  HEADRACE_UNROLL
  for (int r = 0; r < R; ++r) store_pair(sums + kPairN * r, acc[r]);
}

void add_block(const float* weights, int32_t depth, const uint8_t* act, size_t act_bytes,
               int32_t rows, float* sums) {
  int32_t r = 0;
  const auto add = [&](auto run, int count) {
    run(weights, depth, act + act_bytes * r, act_bytes, sums + kPairN * r);
    r += count;
  };
  while (rows - r >= kRowTile) add(add_rows<kRowTile>, kRowTile);
  if (kRowTile > 8 && rows - r >= 8) add(add_rows<8>, 8);
  if (rows - r >= 4) add(add_rows<4>, 4);
  if (rows - r >= 2) add(add_rows<2>, 2);
  if (rows - r >= 1) add(add_rows<1>, 1);
}

void store_sums(const PackedMatrix& w, int32_t tile, int32_t num_tiles, int32_t row, int32_t rows,
                const float* sums, const ProductOut& to) {
  const int32_t first = tile * kTileN;
  const int32_t room = num_tiles * kTileN;
  const int32_t num_outputs = w.n - first < room ? w.n - first : room;
  for (int32_t r = 0; r < rows; ++r, sums += kPairN) {
    float* dst = to.out + (row + r) * to.ldo + first;
    for (int32_t o = 0; o < num_outputs; ++o) {
      const float y = to.bias ? sums[o] + to.bias[first + o] : sums[o];
      dst[o] = to.accumulate ? dst[o] + y : y;
    }
  }
}

template <class F>
void float_product(const PackedMatrix& w, int32_t tile_begin, int32_t tile_end, const uint8_t* act,
                   int32_t rows, const ProductOut& to) {
  constexpr int32_t kUnitLen = F::kGroups * kGroupLen;
  alignas(64) float weights[kDepth * kPairN] = {};
  alignas(64) float sums[kFloatRows * kPairN];
  const size_t act_bytes = act_row_bytes(ActKind::f32, w.k);
  for (int32_t tile = tile_begin; tile < tile_end; tile += 2) {
    const int32_t num_tiles = tile_end - tile < 2 ? 1 : 2;
    const uint8_t* packed = w.data + w.tile_bytes * tile;
    for (int32_t row = 0; row < rows; row += kFloatRows) {
      const int32_t count = rows - row < kFloatRows ? rows - row : kFloatRows;
      std::memset(sums, 0, sizeof(float) * kPairN * count);
      for (int32_t k = 0; k < w.k; k += kDepth) {
        const int32_t depth = w.k - k < kDepth ? w.k - k : kDepth;
        for (int32_t t = 0; t < num_tiles; ++t) {
          for (int32_t i = 0; i < depth; i += kGroupLen) {
            const uint8_t* unit = packed + w.tile_bytes * t + (k + i) / kUnitLen * F::kBytes;
            F::unpack(unit, (k + i) / kGroupLen % F::kGroups, weights + kPairN * i + kTileN * t);
          }
        }
        add_block(weights, depth, act + act_bytes * row + sizeof(float) * k, act_bytes, count,
                  sums);
      }
      store_sums(w, tile, num_tiles, row, count, sums, to);
    }
  }
}

#undef HEADRACE_UNROLL
#undef HEADRACE_INLINE

}  // namespace

void float_gemm(const PackedMatrix& w, int32_t tile_begin, int32_t tile_end, const uint8_t* act,
                int32_t rows, const ProductOut& to) {
  const auto run = [&](auto format) {
    float_product<decltype(format)>(w, tile_begin, tile_end, act, rows, to);
  };
  switch (w.dtype) {
    case DType::f32:
    case DType::f16:
    case DType::bf16:
      return;  // their own kernels take floats
    case DType::q4_0:
      return run(FlatFloats<4, false>{});
    case DType::q4_1:
      return run(FlatFloats<4, true>{});
    case DType::q5_0:
      return run(FlatFloats<5, false>{});
    case DType::q5_1:
      return run(FlatFloats<5, true>{});
    case DType::q8_0:
      return run(Q8Floats{});
    case DType::q4_k:
      return run(Super45Floats<4>{});
    case DType::q5_k:
      return run(Super45Floats<5>{});
    case DType::q6_k:
      return run(Q6Floats{});
  }
}

}  // namespace headrace::HEADRACE_ISA_NS
