// Quantization of activation rows for the neon table; see gemm/gemm.h for the definition.
#include <arm_neon.h>

#include <cstring>

#include "common/f16.h"
#include "gemm/gemm.h"
#include "gemm/layout.h"

namespace headrace::neon {
namespace {

// Rounded codes of a group as eight vectors of int32, and its scale. Codes need no clamp: the
// product exceeds the limit by less than two roundings, so it rounds to the limit.
float round_codes(const float* src, float limit, int32x4_t (&codes)[8]) {
  float32x4_t x[8];
  for (int i = 0; i < 8; ++i) x[i] = vld1q_f32(src + 4 * i);
  // Magnitudes as bits are ordered like the floats, with NaN above infinity.
  uint32x4_t most = vreinterpretq_u32_f32(vabsq_f32(x[0]));
  for (int i = 1; i < 8; ++i) most = vmaxq_u32(most, vreinterpretq_u32_f32(vabsq_f32(x[i])));
  const uint32_t amax_bits = vmaxvq_u32(most);
  if (amax_bits < kTinyBits || amax_bits >= kInfinityBits) [[unlikely]] {
    for (int i = 0; i < 8; ++i) codes[i] = vdupq_n_s32(0);
    return float_from_bits(amax_bits < kTinyBits ? 0 : kNanBits);
  }
  const float amax = float_from_bits(amax_bits);
  const float inverse = limit / amax;
  for (int i = 0; i < 8; ++i) codes[i] = vcvtnq_s32_f32(vmulq_n_f32(x[i], inverse));
  return amax / limit;
}

int16x8_t narrow_words(int32x4_t low, int32x4_t high) {
  return vcombine_s16(vmovn_s32(low), vmovn_s32(high));
}

void quantize(const float* x, A8Group& group) {
  int32x4_t c[8];
  group.scale = round_codes(x, 127.0f, c);
  int32_t sums[2];
  for (int h = 0; h < 2; ++h) {
    const int16x8_t low = narrow_words(c[4 * h], c[4 * h + 1]);
    const int16x8_t high = narrow_words(c[4 * h + 2], c[4 * h + 3]);
    vst1q_s8(group.codes + 16 * h, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
    sums[h] = vaddvq_s16(vaddq_s16(low, high));
    group.half_sums[h] = static_cast<int16_t>(sums[h]);
  }
  group.scaled_sum = group.scale * static_cast<float>(sums[0] + sums[1]);
}

void quantize(const float* x, A16Group& group) {
  int32x4_t c[8];
  group.scale = round_codes(x, 32767.0f, c);
  for (int i = 0; i < 4; ++i) {
    vst1q_s16(group.codes + 8 * i, narrow_words(c[2 * i], c[2 * i + 1]));
  }
}

}  // namespace
}  // namespace headrace::neon

#define HEADRACE_ISA_NS neon
#include "gemm/quantize_kernel.h"
