// Byte layout of packed weights and quantized activations.
//
// A tile is 8 outputs over all k, cut into units along k: 32 inputs for the flat types, 256 for the
// K-quants, one input for the float types. Inside a group of 32 inputs, "step" s = 0..7 is the four
// inputs 4s..4s+3, and a code vector is 8 outputs x 4 inputs: byte 4*o + j belongs to output o,
// input 4s + j. This is what an 8-bit multiply-add of 32-byte vectors consumes.
//
//   nibbles  128 B  four vectors; low nibbles of vector i are step i, high nibbles are step i + 4
//   bits      32 B  fifth bits: bit s of byte 4*o + j belongs to step s
//   pairs     64 B  two vectors of bits 4..5: field t (bits 2t, 2t+1) of vector v is step 4v + t
//   bytes    256 B  eight vectors of signed bytes, one per step, the inputs of a step in the order
//                   0, 2, 1, 3: the low bytes of the 16-bit lanes are inputs 0, 1, the high 2, 3
//   x8        16 B  eight float16, one per output
//
//   Q4_0  nibbles, d x8                    Q4_1  nibbles, d x8, m x8
//   Q5_0  nibbles, bits, d x8              Q5_1  nibbles, bits, d x8, m x8
//   Q8_0  bytes, d x8
//   Q4_K  d x8, dmin x8, scales [group][output], minima [group][output], 8 x nibbles
//   Q5_K  the same, then 8 x (nibbles, bits)
//   Q6_K  d x8, signed scales [group][output][half of 16], 8 x (nibbles, pairs)
//   float, f16, bf16  [input][output]
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "common/types.h"

namespace headrace {

static_assert(std::endian::native == std::endian::little, "packed weights are little-endian");

constexpr int kGroupLen = 32;
constexpr int kSuperLen = 256;
constexpr int kSuperGroups = kSuperLen / kGroupLen;

constexpr size_t kNibblesBytes = 128;
constexpr size_t kBitsBytes = 32;
constexpr size_t kPairsBytes = 64;
constexpr size_t kBytesBytes = 256;
constexpr size_t kX8Bytes = 16;

// Unit sizes and, for K-quants, where the parts of a unit start.
constexpr size_t kQ4_0Bytes = kNibblesBytes + kX8Bytes;
constexpr size_t kQ4_1Bytes = kNibblesBytes + 2 * kX8Bytes;
constexpr size_t kQ5_0Bytes = kNibblesBytes + kBitsBytes + kX8Bytes;
constexpr size_t kQ5_1Bytes = kNibblesBytes + kBitsBytes + 2 * kX8Bytes;
constexpr size_t kQ8_0Bytes = kBytesBytes + kX8Bytes;

constexpr size_t kSuperScales = 2 * kX8Bytes;
constexpr size_t kSuperMinima = kSuperScales + kSuperGroups * kTileN;
constexpr size_t kSuperCodes = kSuperMinima + kSuperGroups * kTileN;
constexpr size_t kQ4_KBytes = kSuperCodes + kSuperGroups * kNibblesBytes;
constexpr size_t kQ5_KBytes = kSuperCodes + kSuperGroups * (kNibblesBytes + kBitsBytes);
constexpr size_t kQ6_KScales = kX8Bytes;
constexpr size_t kQ6_KCodes = kQ6_KScales + kSuperGroups * kTileN * 2;
constexpr size_t kQ6_KBytes = kQ6_KCodes + kSuperGroups * (kNibblesBytes + kPairsBytes);

// Activations: a row is its groups one after the other, padded with zeros to a multiple of 32
// bytes.
struct A8Group {
  using Code = int8_t;
  int8_t codes[kGroupLen];
  float scale;           // d_a
  float scaled_sum;      // s_a = d_a * float(sum of the codes)
  int16_t half_sums[2];  // sums of codes 0..15 and 16..31
};
static_assert(sizeof(A8Group) == 44);

struct A16Group {
  using Code = int16_t;
  int16_t codes[kGroupLen];
  float scale;
};
static_assert(sizeof(A16Group) == 68);

// Bytes of a row before its padding.
static constexpr size_t act_used_bytes(ActKind kind, int32_t k) {
  const size_t len = static_cast<size_t>(k);
  if (kind == ActKind::a8) return len / kGroupLen * sizeof(A8Group);
  if (kind == ActKind::a16) return len / kGroupLen * sizeof(A16Group);
  return len * sizeof(float);
}

// A group whose largest magnitude is below 2^-100 is zero: L / amax stays finite above it.
constexpr uint32_t kTinyBits = 0x0d800000;
constexpr uint32_t kInfinityBits = 0x7f800000;
constexpr uint32_t kNanBits = 0x7fc00000;

}  // namespace headrace
