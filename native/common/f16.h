// Half precision to float, exactly, and back, rounded to nearest even, on any processor: equal bits
// to the F16C instructions, NaN included.
//
// Functions have internal linkage: this file is included by sources compiled for several
// instruction sets, and no copy of one may be linked into another.
#pragma once

#include <cstdint>
#include <cstring>

namespace headrace {

[[maybe_unused]] static inline float float_from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

[[maybe_unused]] static inline uint32_t bits_from_float(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// IEEE binary16 to binary32. The product with 2^112 moves the exponent's bias and normalizes
// subnormals in one exact operation; NaN payloads are kept and made quiet, as vcvtph2ps does.
[[maybe_unused]] static inline float f16_to_f32(uint16_t half) {
  const uint32_t sign = (half & 0x8000u) << 16;
  const uint32_t magnitude = half & 0x7fffu;
  if (magnitude >= 0x7c00u) {
    const uint32_t quiet = magnitude > 0x7c00u ? 0x00400000u : 0u;
    return float_from_bits(sign | 0x7f800000u | quiet | (magnitude << 13));
  }
  const float scaled = float_from_bits(magnitude << 13) * 0x1p112f;
  return float_from_bits(sign | bits_from_float(scaled));
}

// binary32 to binary16, to nearest, ties to even; overflow gives infinity, NaN becomes quiet.
[[maybe_unused]] static inline uint16_t f32_to_f16(float value) {
  const uint32_t bits = bits_from_float(value);
  const uint32_t sign = bits >> 16 & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u | (magnitude >> 13 & 0x3ffu);
  } else if (magnitude >= 0x477ff000u) {  // 65520 and above round to infinity
    half = 0x7c00u;
  } else if (magnitude >= 0x38800000u) {  // normal halves; a carry may raise the exponent
    half = (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
  } else {  // the unit is 2^-24, as that of floats in [0.5, 1): the addition rounds to it
    half = bits_from_float(float_from_bits(magnitude) + 0.5f) - 0x3f000000u;
  }
  return static_cast<uint16_t>(sign | half);
}

// bfloat16 to binary32: its upper half.
[[maybe_unused]] static inline float bf16_to_f32(uint16_t half) {
  return float_from_bits(static_cast<uint32_t>(half) << 16);
}

}  // namespace headrace
