// Probes of ARMv8.2 with the dot product.
#include <arm_neon.h>

#include "roof/roof.h"

namespace headrace {
namespace {

// Enough independent sums to cover latency times the number of ports (four, of four cycles).
constexpr int kSums = 16;

// A value that the compiler knows nothing about: equal sums would be one sum, equal products one.
template <typename Register>
Register unknown(Register value) {
  asm volatile("" : "+w"(value));
  return value;
}

uint64_t read(const uint8_t* p, int64_t bytes) {
  uint8x16_t sums[4] = {vdupq_n_u8(0), vdupq_n_u8(0), vdupq_n_u8(0), vdupq_n_u8(0)};
  for (int64_t i = 0; i < bytes; i += 64) {
    for (int lane = 0; lane < 4; ++lane) {
      sums[lane] = veorq_u8(sums[lane], vld1q_u8(p + i + lane * 16));
    }
  }
  const uint8x16_t sum = veorq_u8(veorq_u8(sums[0], sums[1]), veorq_u8(sums[2], sums[3]));
  const uint64x2_t words = vreinterpretq_u64_u8(sum);
  return vgetq_lane_u64(words, 0) ^ vgetq_lane_u64(words, 1);
}

double fma(int64_t passes, void* sink) {
  float32x4_t sums[kSums];
  for (float32x4_t& sum : sums) sum = unknown(vdupq_n_f32(1.0f));
  const float32x4_t half = vdupq_n_f32(0.5f);
  const float32x4_t other = unknown(vdupq_n_f32(1.0f));
  // The sum is the addend: one of these instructions each, and no copy.
  for (int64_t pass = 0; pass < passes; ++pass) {
    for (float32x4_t& sum : sums) sum = vfmaq_f32(sum, half, other);
  }
  for (int i = 1; i < kSums; ++i) sums[0] = vaddq_f32(sums[0], sums[i]);
  vst1q_f32(static_cast<float*>(sink), sums[0]);
  return 2.0 * 4 * kSums * static_cast<double>(passes);
}

void store_sums(int32x4_t* sums, int count, void* sink) {
  for (int i = 1; i < count; ++i) sums[0] = vaddq_s32(sums[0], sums[i]);
  vst1q_s32(static_cast<int32_t*>(sink), sums[0]);
}

double int8(int64_t passes, void* sink) {
  int32x4_t sums[kSums];
  for (int32x4_t& sum : sums) sum = unknown(vdupq_n_s32(0));
  int8x16_t weights = vdupq_n_s8(3);
  const int8x16_t acts = vdupq_n_s8(5);
  for (int64_t pass = 0; pass < passes; ++pass) {
    for (int32x4_t& sum : sums) {
      weights = unknown(weights);
      sum = vdotq_s32(sum, weights, acts);
    }
  }
  store_sums(sums, kSums, sink);
  return 2.0 * 16 * kSums * static_cast<double>(passes);
}

// A register of weights holds four outputs of four inputs in either half of its bytes; four of
// them share a register of activations for each half, one lane each.
template <int Rows>
void int4_pass(const uint8_t* weights, const int8_t* acts, int32x4_t* sums) {
  constexpr int kChains = Rows == 1 ? 8 : 4;  // of each row: all sums stay in registers
  const uint8x16_t mask = vdupq_n_u8(15);
  int32x4_t kept[Rows * kChains];
  for (int i = 0; i < Rows * kChains; ++i) kept[i] = sums[i];
  for (int32_t i = 0; i < kRoofWeightBytes; i += 64) {
    int8x16_t low[4], high[4];
#pragma GCC unroll 4
    for (int step = 0; step < 4; ++step) {
      const uint8x16_t both = vld1q_u8(weights + i + step * 16);
      low[step] = vreinterpretq_s8_u8(vandq_u8(both, mask));
      high[step] = vreinterpretq_s8_u8(vshrq_n_u8(both, 4));
    }
#pragma GCC unroll 4
    for (int row = 0; row < Rows; ++row) {
      const int8_t* group = acts + row * 1024 + i / 2 % 1024;
      const int8x16_t first = vld1q_s8(group), second = vld1q_s8(group + 16);
      int32x4_t* to = kept + row * kChains;
      to[0] = vdotq_laneq_s32(to[0], low[0], first, 0);
      to[1] = vdotq_laneq_s32(to[1], low[1], first, 1);
      to[2] = vdotq_laneq_s32(to[2], low[2], first, 2);
      to[3] = vdotq_laneq_s32(to[3], low[3], first, 3);
      int32x4_t* also = to + kChains - 4;
      also[0] = vdotq_laneq_s32(also[0], high[0], second, 0);
      also[1] = vdotq_laneq_s32(also[1], high[1], second, 1);
      also[2] = vdotq_laneq_s32(also[2], high[2], second, 2);
      also[3] = vdotq_laneq_s32(also[3], high[3], second, 3);
    }
  }
  for (int i = 0; i < Rows * kChains; ++i) sums[i] = kept[i];
}

double int4(int64_t passes, int32_t rows, const uint8_t* weights, const int8_t* acts, void* sink) {
  int32x4_t sums[16];
  for (int32x4_t& sum : sums) sum = vdupq_n_s32(0);
  for (int64_t pass = 0; pass < passes; ++pass) {
    if (rows == 1) {
      int4_pass<1>(weights, acts, sums);
    } else {
      int4_pass<4>(weights, acts, sums);
    }
  }
  store_sums(sums, 16, sink);
  return 4.0 * kRoofWeightBytes * rows * static_cast<double>(passes);
}

}  // namespace

const RoofTable& neon_roof() {
  static constexpr RoofTable kTable = {"neon", read, fma, int8, int4};
  return kTable;
}

}  // namespace headrace
