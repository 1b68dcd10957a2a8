// Packing and unpacking of weights; included once per instruction set (see common/v8.h).
//
// All bit work is on 32-bit words that hold four neighbouring inputs of one output, so a stored row
// becomes a column of the tile by moving words.
#include <cstring>

#include "common/f16.h"
#include "gemm/gemm.h"
#include "gemm/layout.h"

namespace headrace::HEADRACE_ISA_NS {
namespace {

using Rows = const uint8_t* const[kTileN];

uint16_t load16(const uint8_t* p) {
  uint16_t v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

uint32_t load32(const uint8_t* p) {
  uint32_t v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

// Word of output o in vector i of dst.
void put(uint8_t* dst, int i, int o, uint32_t word) {
  std::memcpy(dst + 32 * i + 4 * o, &word, sizeof(word));
}

uint32_t word_at(const uint8_t* src, int i, int o) { return load32(src + 32 * i + 4 * o); }

void put_half(uint8_t* dst, int o, const uint8_t* half) { std::memcpy(dst + 2 * o, half, 2); }

float half_at(const uint8_t* src, int o) { return f16_to_f32(load16(src + 2 * o)); }

// ---- flat types: blocks of 32 ----

// Bit 4s + j of a stored fifth-bit word goes to bit s of byte j.
uint32_t bits_by_step(uint32_t stored) {
  uint32_t word = 0;
  for (int j = 0; j < 4; ++j) {
    uint32_t t = (stored >> j) & 0x11111111u;
    t = (t | (t >> 3)) & 0x03030303u;
    t = (t | (t >> 6)) & 0x000f000fu;
    t = (t | (t >> 12)) & 0x000000ffu;
    word |= t << (8 * j);
  }
  return word;
}

template <bool kFifth, bool kMinimum>
struct Flat {
  static constexpr int kLen = kGroupLen;
  static constexpr size_t kHead = kMinimum ? 4 : 2;  // d, m
  static constexpr size_t kCodes = kHead + (kFifth ? 4 : 0);
  static constexpr size_t kStored = kCodes + 16;
  static constexpr size_t kScale = kNibblesBytes + (kFifth ? kBitsBytes : 0);
  static constexpr size_t kPacked = kScale + (kMinimum ? 2 : 1) * kX8Bytes;

  static void pack(const Rows& rows, uint8_t* dst) {
    for (int o = 0; o < kTileN; ++o) {
      const uint8_t* src = rows[o];
      for (int i = 0; i < 4; ++i) put(dst, i, o, load32(src + kCodes + 4 * i));
      if (kFifth) put(dst + kNibblesBytes, 0, o, bits_by_step(load32(src + kHead)));
      put_half(dst + kScale, o, src);
      if (kMinimum) put_half(dst + kScale + kX8Bytes, o, src + 2);
    }
  }

  static void unpack(const uint8_t* src, int o, float* out) {
    const float d = half_at(src + kScale, o);
    const float m = kMinimum ? half_at(src + kScale + kX8Bytes, o) : 0.0f;
    const uint32_t bits = kFifth ? word_at(src + kNibblesBytes, 0, o) : 0;
    for (int s = 0; s < 8; ++s) {
      const uint32_t word = word_at(src, s & 3, o) >> (s < 4 ? 0 : 4);
      for (int j = 0; j < 4; ++j) {
        int32_t q = (word >> (8 * j)) & 15;
        if (kFifth) q |= ((bits >> (8 * j + s)) & 1) << 4;
        if (!kMinimum) q -= kFifth ? 16 : 8;
        const float product = static_cast<float>(q) * d;
        out[4 * s + j] = kMinimum ? product + m : product;
      }
    }
  }
};

struct Q8_0 {
  static constexpr int kLen = kGroupLen;
  static constexpr size_t kStored = 34;
  static constexpr size_t kPacked = kQ8_0Bytes;

  // Exchanges the two middle bytes (its own inverse).
  static uint32_t swap_middle(uint32_t w) {
    return (w & 0xff0000ffu) | ((w >> 8) & 0x0000ff00u) | ((w << 8) & 0x00ff0000u);
  }

  static void pack(const Rows& rows, uint8_t* dst) {
    for (int o = 0; o < kTileN; ++o) {
      for (int s = 0; s < 8; ++s) put(dst, s, o, swap_middle(load32(rows[o] + 2 + 4 * s)));
      put_half(dst + kBytesBytes, o, rows[o]);
    }
  }

  static void unpack(const uint8_t* src, int o, float* out) {
    const float d = half_at(src + kBytesBytes, o);
    for (int s = 0; s < 8; ++s) {
      const uint32_t word = swap_middle(word_at(src, s, o));
      for (int j = 0; j < 4; ++j) {
        out[4 * s + j] = static_cast<float>(static_cast<int8_t>(word >> (8 * j))) * d;
      }
    }
  }
};

// ---- K-quants: superblocks of 256 ----

// Nibbles of one group from eight words that hold it at bit 0 or 4 of each byte.
void put_nibbles(uint8_t* dst, int o, const uint8_t* stored, int shift) {
  for (int i = 0; i < 4; ++i) {
    const uint32_t low = (load32(stored + 4 * i) >> shift) & 0x0f0f0f0fu;
    const uint32_t high = (load32(stored + 16 + 4 * i) >> shift) & 0x0f0f0f0fu;
    put(dst, i, o, low | (high << 4));
  }
}

int32_t nibble_at(const uint8_t* src, int o, int k) {
  const uint32_t word = word_at(src, (k / 4) & 3, o);
  return (word >> (8 * (k & 3) + (k < 16 ? 0 : 4))) & 15;
}

// Source: ggml get_scale_min_k4: eight 6-bit scales and minima in 12 bytes.
void unpack_scales(const uint8_t* q, uint8_t (&scales)[8], uint8_t (&minima)[8]) {
  for (int g = 0; g < 4; ++g) {
    scales[g] = q[g] & 63;
    minima[g] = q[g + 4] & 63;
    scales[g + 4] = static_cast<uint8_t>((q[g + 8] & 15) | ((q[g] >> 6) << 4));
    minima[g + 4] = static_cast<uint8_t>((q[g + 8] >> 4) | ((q[g + 4] >> 6) << 4));
  }
}

template <bool kFifth>
struct Super45 {
  static constexpr int kLen = kSuperLen;
  static constexpr size_t kBits = 16;  // stored: d, dmin, scales, [fifth bits,] nibbles
  static constexpr size_t kCodes = kBits + (kFifth ? 32 : 0);
  static constexpr size_t kStored = kCodes + 128;
  static constexpr size_t kGroup = kNibblesBytes + (kFifth ? kBitsBytes : 0);
  static constexpr size_t kPacked = kSuperCodes + kSuperGroups * kGroup;

  static void pack(const Rows& rows, uint8_t* dst) {
    for (int o = 0; o < kTileN; ++o) {
      const uint8_t* src = rows[o];
      put_half(dst, o, src);
      put_half(dst + kX8Bytes, o, src + 2);
      uint8_t scales[8], minima[8];
      unpack_scales(src + 4, scales, minima);
      for (int g = 0; g < kSuperGroups; ++g) {
        dst[kSuperScales + 8 * g + o] = scales[g];
        dst[kSuperMinima + 8 * g + o] = minima[g];
        uint8_t* group = dst + kSuperCodes + kGroup * g;
        put_nibbles(group, o, src + kCodes + 32 * (g / 2), 4 * (g & 1));
        if (kFifth) put(group + kNibblesBytes, 0, o, group_bits(src + kBits, g));
      }
    }
  }

  // Bit g of the 32 stored bytes, by step.
  static uint32_t group_bits(const uint8_t* stored, int g) {
    uint32_t word = 0;
    for (int s = 0; s < 8; ++s) word |= ((load32(stored + 4 * s) >> g) & 0x01010101u) << s;
    return word;
  }

  static void unpack(const uint8_t* src, int o, float* out) {
    const float d = half_at(src, o);
    const float dmin = half_at(src + kX8Bytes, o);
    for (int g = 0; g < kSuperGroups; ++g) {
      const float scale = d * static_cast<float>(src[kSuperScales + 8 * g + o]);
      const float minimum = dmin * static_cast<float>(src[kSuperMinima + 8 * g + o]);
      const uint8_t* group = src + kSuperCodes + kGroup * g;
      const uint32_t bits = kFifth ? word_at(group + kNibblesBytes, 0, o) : 0;
      for (int k = 0; k < kGroupLen; ++k) {
        int32_t q = nibble_at(group, o, k);
        if (kFifth) q |= ((bits >> (8 * (k & 3) + k / 4)) & 1) << 4;
        out[kGroupLen * g + k] = scale * static_cast<float>(q) - minimum;
      }
    }
  }
};

// Stored: 128 bytes of low nibbles, 64 of upper bits, 16 signed scales, d. A half of 128 inputs is
// four groups: nibbles (bytes 0..31 low, 32..63 low, 0..31 high, 32..63 high), bit pairs 0..3.
struct Q6_K {
  static constexpr int kLen = kSuperLen;
  static constexpr size_t kStored = 210;
  static constexpr size_t kPacked = kQ6_KBytes;
  static constexpr size_t kGroup = kNibblesBytes + kPairsBytes;

  static void pack(const Rows& rows, uint8_t* dst) {
    for (int o = 0; o < kTileN; ++o) {
      const uint8_t* src = rows[o];
      put_half(dst, o, src + 208);
      for (int g = 0; g < kSuperGroups; ++g) {
        std::memcpy(dst + kQ6_KScales + 16 * g + 2 * o, src + 192 + 2 * g, 2);
        uint8_t* group = dst + kQ6_KCodes + kGroup * g;
        const int half = g / 4, part = g % 4;
        put_nibbles(group, o, src + 64 * half + 32 * (part & 1), 4 * (part >> 1));
        const uint8_t* upper = src + 128 + 32 * half;
        for (int v = 0; v < 2; ++v) {
          uint32_t word = 0;
          for (int t = 0; t < 4; ++t) {
            const uint32_t pair = (load32(upper + 16 * v + 4 * t) >> (2 * part)) & 0x03030303u;
            word |= pair << (2 * t);
          }
          put(group + kNibblesBytes, v, o, word);
        }
      }
    }
  }

  static void unpack(const uint8_t* src, int o, float* out) {
    const float d = half_at(src, o);
    for (int g = 0; g < kSuperGroups; ++g) {
      const uint8_t* group = src + kQ6_KCodes + kGroup * g;
      for (int k = 0; k < kGroupLen; ++k) {
        const auto scale = static_cast<int8_t>(src[kQ6_KScales + 16 * g + 2 * o + k / 16]);
        const uint32_t word = word_at(group + kNibblesBytes, k / 16, o);
        const int32_t upper = (word >> (8 * (k & 3) + 2 * ((k / 4) & 3))) & 3;
        const int32_t q = (nibble_at(group, o, k) | (upper << 4)) - 32;
        out[kGroupLen * g + k] = d * static_cast<float>(scale) * static_cast<float>(q);
      }
    }
  }
};

// ---- float types: single inputs ----

template <class T>
struct Plain {
  static constexpr int kLen = 1;
  static constexpr size_t kStored = sizeof(T);
  static constexpr size_t kPacked = kTileN * sizeof(T);

  static void pack(const Rows& rows, uint8_t* dst) {
    for (int o = 0; o < kTileN; ++o) std::memcpy(dst + sizeof(T) * o, rows[o], sizeof(T));
  }

  static T value(const uint8_t* src, int o) {
    T v;
    std::memcpy(&v, src + sizeof(T) * o, sizeof(T));
    return v;
  }
};

struct F32 : Plain<float> {
  static void unpack(const uint8_t* src, int o, float* out) { *out = value(src, o); }
};
struct F16 : Plain<uint16_t> {
  static void unpack(const uint8_t* src, int o, float* out) { *out = f16_to_f32(value(src, o)); }
};
struct Bf16 : Plain<uint16_t> {
  static void unpack(const uint8_t* src, int o, float* out) { *out = bf16_to_f32(value(src, o)); }
};

// ---- any type ----

template <class F>
void pack_format(const uint8_t* src, int32_t n, int32_t k, uint8_t* dst, int32_t tile_begin,
                 int32_t tile_end) {
  static constexpr uint8_t kZeros[F::kStored] = {};
  const int32_t units = k / F::kLen;
  const size_t row_bytes = units * F::kStored;
  dst += static_cast<size_t>(tile_begin) * units * F::kPacked;
  for (int32_t tile = tile_begin; tile < tile_end; ++tile) {
    const uint8_t* rows[kTileN];
    size_t step[kTileN];
    for (int o = 0; o < kTileN; ++o) {
      const int32_t row = tile * kTileN + o;
      rows[o] = row < n ? src + static_cast<size_t>(row) * row_bytes : kZeros;
      step[o] = row < n ? F::kStored : 0;
    }
    for (int32_t u = 0; u < units; ++u, dst += F::kPacked) {
      F::pack(rows, dst);
      for (int o = 0; o < kTileN; ++o) rows[o] += step[o];
    }
  }
}

template <class F>
void unpack_format(const PackedMatrix& w, int32_t row, float* out) {
  const uint8_t* src = w.data + static_cast<size_t>(row / kTileN) * w.tile_bytes;
  for (int32_t k = 0; k < w.k; k += F::kLen, src += F::kPacked) {
    F::unpack(src, row % kTileN, out + k);
  }
}

// Calls visit with a value of the type that describes dtype.
template <class Visit>
void with_format(DType dtype, Visit visit) {
  switch (dtype) {
    case DType::f32:
      return visit(F32{});
    case DType::f16:
      return visit(F16{});
    case DType::bf16:
      return visit(Bf16{});
    case DType::q4_0:
      return visit(Flat<false, false>{});
    case DType::q4_1:
      return visit(Flat<false, true>{});
    case DType::q5_0:
      return visit(Flat<true, false>{});
    case DType::q5_1:
      return visit(Flat<true, true>{});
    case DType::q8_0:
      return visit(Q8_0{});
    case DType::q4_k:
      return visit(Super45<false>{});
    case DType::q5_k:
      return visit(Super45<true>{});
    case DType::q6_k:
      return visit(Q6_K{});
  }
}

}  // namespace

void pack_tiles(DType dtype, const uint8_t* src, int32_t n, int32_t k, uint8_t* dst,
                int32_t tile_begin, int32_t tile_end) {
  with_format(dtype,
              [&](auto f) { pack_format<decltype(f)>(src, n, k, dst, tile_begin, tile_end); });
}

void unpack_row(const PackedMatrix& w, int32_t row, float* out) {
  with_format(w.dtype, [&](auto f) { unpack_format<decltype(f)>(w, row, out); });
}

}  // namespace headrace::HEADRACE_ISA_NS
