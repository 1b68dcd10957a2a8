// V8 for aarch64 (Advanced SIMD): two registers of four floats. See v8.h.
#pragma once

#include <arm_neon.h>

#include <cstdint>

namespace headrace {
namespace HEADRACE_ISA_NS {
namespace {

struct V8 {
  float32x4_t low;
  float32x4_t high;
};
struct I8 {
  int32x4_t low;
  int32x4_t high;
};
struct M8 {
  uint32x4_t low;  // all ones or zero in each lane
  uint32x4_t high;
};
struct D8 {
  float64x2_t part[4];
};

inline V8 zero8() { return {vdupq_n_f32(0.0f), vdupq_n_f32(0.0f)}; }
inline V8 splat(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x)}; }
inline V8 load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
inline V8 load_part(const float* p, int n, float fill = 0.0f) {
  float padded[8];
  for (int i = 0; i < 8; ++i) padded[i] = i < n ? p[i] : fill;
  return load(padded);
}
inline void store(float* p, V8 a) {
  vst1q_f32(p, a.low);
  vst1q_f32(p + 4, a.high);
}
inline void store_part(float* p, V8 a, int n) {
  float padded[8];
  store(padded, a);
  for (int i = 0; i < n; ++i) p[i] = padded[i];
}

inline V8 add(V8 a, V8 b) { return {vaddq_f32(a.low, b.low), vaddq_f32(a.high, b.high)}; }
inline V8 sub(V8 a, V8 b) { return {vsubq_f32(a.low, b.low), vsubq_f32(a.high, b.high)}; }
inline V8 mul(V8 a, V8 b) { return {vmulq_f32(a.low, b.low), vmulq_f32(a.high, b.high)}; }
inline V8 div(V8 a, V8 b) { return {vdivq_f32(a.low, b.low), vdivq_f32(a.high, b.high)}; }
inline V8 sqrt(V8 a) { return {vsqrtq_f32(a.low), vsqrtq_f32(a.high)}; }
inline V8 fma(V8 a, V8 b, V8 c) {
  return {vfmaq_f32(c.low, a.low, b.low), vfmaq_f32(c.high, a.high, b.high)};
}
inline V8 neg(V8 a) { return {vnegq_f32(a.low), vnegq_f32(a.high)}; }
inline V8 abs(V8 a) { return {vabsq_f32(a.low), vabsq_f32(a.high)}; }

inline M8 lt(V8 a, V8 b) { return {vcltq_f32(a.low, b.low), vcltq_f32(a.high, b.high)}; }
inline M8 gt(V8 a, V8 b) { return {vcgtq_f32(a.low, b.low), vcgtq_f32(a.high, b.high)}; }
inline M8 ge(V8 a, V8 b) { return {vcgeq_f32(a.low, b.low), vcgeq_f32(a.high, b.high)}; }
inline M8 eq(V8 a, V8 b) { return {vceqq_f32(a.low, b.low), vceqq_f32(a.high, b.high)}; }
inline M8 is_nan(V8 a) {
  return {vmvnq_u32(vceqq_f32(a.low, a.low)), vmvnq_u32(vceqq_f32(a.high, a.high))};
}
inline M8 first_lanes(int n) {
  const int32x4_t lane = {0, 1, 2, 3};
  const int32x4_t count = vdupq_n_s32(n);
  return {vcgtq_s32(count, lane), vcgtq_s32(count, vaddq_s32(lane, vdupq_n_s32(4)))};
}
inline M8 both(M8 a, M8 b) { return {vandq_u32(a.low, b.low), vandq_u32(a.high, b.high)}; }
inline int bits(M8 m) {
  const uint32x4_t low = {1, 2, 4, 8};
  const uint32x4_t high = {16, 32, 64, 128};
  return static_cast<int>(vaddvq_u32(vorrq_u32(vandq_u32(m.low, low), vandq_u32(m.high, high))));
}
inline V8 select(M8 m, V8 a, V8 b) {
  return {vbslq_f32(m.low, a.low, b.low), vbslq_f32(m.high, a.high, b.high)};
}
inline V8 keep(M8 m, V8 a) { return select(m, a, zero8()); }

// The instruction fmax would prefer a NaN and order the zeros: neither is a > b ? a : b.
inline float32x4_t max4(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
inline V8 max(V8 a, V8 b) { return {max4(a.low, b.low), max4(a.high, b.high)}; }
inline V8 copysign(V8 a, V8 b) {
  const uint32x4_t sign = vdupq_n_u32(0x80000000u);
  return {vbslq_f32(sign, b.low, a.low), vbslq_f32(sign, b.high, a.high)};
}

inline I8 as_int(V8 a) { return {vreinterpretq_s32_f32(a.low), vreinterpretq_s32_f32(a.high)}; }
inline V8 as_float(I8 a) { return {vreinterpretq_f32_s32(a.low), vreinterpretq_f32_s32(a.high)}; }
inline I8 add(I8 a, I8 b) { return {vaddq_s32(a.low, b.low), vaddq_s32(a.high, b.high)}; }
template <int kBits>
inline I8 shift_left(I8 a) {
  return {vshlq_n_s32(a.low, kBits), vshlq_n_s32(a.high, kBits)};
}

inline I8 shift_right(I8 a, int n) {
  const int32x4_t count = vdupq_n_s32(-n);
  return {vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(a.low), count)),
          vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(a.high), count))};
}
inline I8 splat_int(int32_t x) { return {vdupq_n_s32(x), vdupq_n_s32(x)}; }
inline I8 mask(I8 a, int32_t bits) {
  const int32x4_t wide = vdupq_n_s32(bits);
  return {vandq_s32(a.low, wide), vandq_s32(a.high, wide)};
}
inline I8 join(I8 a, I8 b) { return {vorrq_s32(a.low, b.low), vorrq_s32(a.high, b.high)}; }
inline I8 flip(I8 a, I8 b) { return {veorq_s32(a.low, b.low), veorq_s32(a.high, b.high)}; }
inline I8 load_words(const void* p) {
  const auto* bytes = static_cast<const uint8_t*>(p);
  return {vreinterpretq_s32_u8(vld1q_u8(bytes)), vreinterpretq_s32_u8(vld1q_u8(bytes + 16))};
}
inline V8 to_float(I8 a) { return {vcvtq_f32_s32(a.low), vcvtq_f32_s32(a.high)}; }

inline V8 load_f16(const uint16_t* p) {
  const float16x8_t halves = vreinterpretq_f16_u16(vld1q_u16(p));
  return {vcvt_f32_f16(vget_low_f16(halves)), vcvt_high_f32_f16(halves)};
}
inline V8 load_i8(const int8_t* p) {
  const int16x8_t words = vmovl_s8(vld1_s8(p));
  return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(words))), vcvtq_f32_s32(vmovl_high_s16(words))};
}
inline void store_f16(uint16_t* p, V8 a) {
  vst1q_u16(p, vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(a.low), a.high)));
}

inline void unzip(V8 a, V8 b, V8& even, V8& odd) {
  even = {vuzp1q_f32(a.low, a.high), vuzp1q_f32(b.low, b.high)};
  odd = {vuzp2q_f32(a.low, a.high), vuzp2q_f32(b.low, b.high)};
}
inline void zip(V8 even, V8 odd, V8& a, V8& b) {
  a = {vzip1q_f32(even.low, odd.low), vzip2q_f32(even.low, odd.low)};
  b = {vzip1q_f32(even.high, odd.high), vzip2q_f32(even.high, odd.high)};
}

inline float reduce8(V8 a) {
  const float32x4_t four = vaddq_f32(a.low, a.high);
  const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
inline float reduce8_max(V8 a) {
  const float32x4_t four = max4(a.low, a.high);
  const float32x4_t two = max4(four, vextq_f32(four, four, 2));
  return vgetq_lane_f32(max4(two, vdupq_laneq_f32(two, 1)), 0);
}

inline D8 splat_d8(double x) {
  const float64x2_t wide = vdupq_n_f64(x);
  return {{wide, wide, wide, wide}};
}
inline D8 zero_d8() { return splat_d8(0.0); }
inline D8 widen(V8 a) {
  return {{vcvt_f64_f32(vget_low_f32(a.low)), vcvt_high_f64_f32(a.low),
           vcvt_f64_f32(vget_low_f32(a.high)), vcvt_high_f64_f32(a.high)}};
}
inline V8 narrow(D8 a) {
  return {vcvt_high_f32_f64(vcvt_f32_f64(a.part[0]), a.part[1]),
          vcvt_high_f32_f64(vcvt_f32_f64(a.part[2]), a.part[3])};
}
inline D8 add(D8 a, D8 b) {
  D8 r;
  for (int i = 0; i < 4; ++i) r.part[i] = vaddq_f64(a.part[i], b.part[i]);
  return r;
}
inline D8 sub(D8 a, D8 b) {
  D8 r;
  for (int i = 0; i < 4; ++i) r.part[i] = vsubq_f64(a.part[i], b.part[i]);
  return r;
}
inline D8 div(D8 a, D8 b) {
  D8 r;
  for (int i = 0; i < 4; ++i) r.part[i] = vdivq_f64(a.part[i], b.part[i]);
  return r;
}
inline double reduce8(D8 a) {
  const float64x2_t low = vaddq_f64(a.part[0], a.part[2]);   // 0+4, 1+5
  const float64x2_t high = vaddq_f64(a.part[1], a.part[3]);  // 2+6, 3+7
  const float64x2_t two = vaddq_f64(low, high);
  return vgetq_lane_f64(two, 0) + vgetq_lane_f64(two, 1);
}

}  // namespace
}  // namespace HEADRACE_ISA_NS
}  // namespace headrace
