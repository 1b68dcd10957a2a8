// Quantization of activation rows for the scalar table; see gemm/gemm.h for the definition.
#include <cstring>

#include "common/f16.h"
#include "gemm/gemm.h"
#include "gemm/layout.h"

namespace headrace::scalar {
namespace {

// Nearest even integer of |x| <= 2^22: adding 1.5 * 2^23 leaves no fraction bits.
int32_t round_even(float x) {
  constexpr float kShift = 12582912.0f;
  return static_cast<int32_t>((x + kShift) - kShift);
}

template <class Group, int kLimit>
int32_t quantize_group(const float* x, Group& group) {
  uint32_t amax_bits = 0;
  for (int k = 0; k < kGroupLen; ++k) {
    const uint32_t bits = bits_from_float(x[k]) & 0x7fffffffu;
    amax_bits = bits > amax_bits ? bits : amax_bits;
  }
  std::memset(&group, 0, sizeof(group));
  if (amax_bits < kTinyBits) return 0;
  if (amax_bits >= kInfinityBits) {
    group.scale = float_from_bits(kNanBits);
    return 0;
  }
  const float amax = float_from_bits(amax_bits);
  const float inverse = static_cast<float>(kLimit) / amax;
  group.scale = amax / static_cast<float>(kLimit);
  int32_t sum = 0;
  for (int k = 0; k < kGroupLen; ++k) {
    const int32_t code = round_even(x[k] * inverse);
    group.codes[k] = static_cast<typename Group::Code>(code);
    sum += code;
  }
  return sum;
}

void quantize(const float* x, A8Group& group) {
  const int32_t sum = quantize_group<A8Group, 127>(x, group);
  int32_t first = 0;
  for (int k = 0; k < kGroupLen / 2; ++k) first += group.codes[k];
  group.half_sums[0] = static_cast<int16_t>(first);
  group.half_sums[1] = static_cast<int16_t>(sum - first);
  group.scaled_sum = group.scale * static_cast<float>(sum);
}

void quantize(const float* x, A16Group& group) { quantize_group<A16Group, 32767>(x, group); }

}  // namespace
}  // namespace headrace::scalar

#define HEADRACE_ISA_NS scalar
#include "gemm/quantize_kernel.h"
