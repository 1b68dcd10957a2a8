// V8 for x86-64 with AVX2, FMA and F16C. See v8.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace headrace {
namespace HEADRACE_ISA_NS {
namespace {

struct V8 {
  __m256 v;
};
struct I8 {
  __m256i v;
};
struct M8 {
  __m256 v;  // all ones or zero in each lane
};
struct D8 {
  __m256d low;
  __m256d high;
};

inline V8 zero8() { return {_mm256_setzero_ps()}; }
inline V8 splat(float x) { return {_mm256_set1_ps(x)}; }
inline V8 load(const float* p) { return {_mm256_loadu_ps(p)}; }
inline V8 load_part(const float* p, int n, float fill = 0.0f) {
  float padded[8];
  for (int i = 0; i < 8; ++i) padded[i] = i < n ? p[i] : fill;
  return load(padded);
}
inline void store(float* p, V8 a) { _mm256_storeu_ps(p, a.v); }
inline void store_part(float* p, V8 a, int n) {
  float padded[8];
  store(padded, a);
  for (int i = 0; i < n; ++i) p[i] = padded[i];
}

inline V8 add(V8 a, V8 b) { return {_mm256_add_ps(a.v, b.v)}; }
inline V8 sub(V8 a, V8 b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline V8 mul(V8 a, V8 b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline V8 div(V8 a, V8 b) { return {_mm256_div_ps(a.v, b.v)}; }
inline V8 sqrt(V8 a) { return {_mm256_sqrt_ps(a.v)}; }
inline V8 fma(V8 a, V8 b, V8 c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
inline V8 max(V8 a, V8 b) { return {_mm256_max_ps(a.v, b.v)}; }
inline V8 neg(V8 a) { return {_mm256_xor_ps(a.v, _mm256_set1_ps(-0.0f))}; }
inline V8 abs(V8 a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }
inline V8 copysign(V8 a, V8 b) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_or_ps(_mm256_andnot_ps(sign, a.v), _mm256_and_ps(sign, b.v))};
}

inline M8 lt(V8 a, V8 b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ)}; }
inline M8 gt(V8 a, V8 b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_GT_OQ)}; }
inline M8 ge(V8 a, V8 b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_GE_OQ)}; }
inline M8 eq(V8 a, V8 b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_EQ_OQ)}; }
inline M8 is_nan(V8 a) { return {_mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q)}; }
inline M8 first_lanes(int n) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane))};
}
inline M8 both(M8 a, M8 b) { return {_mm256_and_ps(a.v, b.v)}; }
inline int bits(M8 m) { return _mm256_movemask_ps(m.v); }
inline V8 select(M8 m, V8 a, V8 b) { return {_mm256_blendv_ps(b.v, a.v, m.v)}; }
inline V8 keep(M8 m, V8 a) { return {_mm256_and_ps(m.v, a.v)}; }

inline I8 as_int(V8 a) { return {_mm256_castps_si256(a.v)}; }
inline V8 as_float(I8 a) { return {_mm256_castsi256_ps(a.v)}; }
inline I8 add(I8 a, I8 b) { return {_mm256_add_epi32(a.v, b.v)}; }
template <int kBits>
inline I8 shift_left(I8 a) {
  return {_mm256_slli_epi32(a.v, kBits)};
}
inline I8 shift_right(I8 a, int n) { return {_mm256_srli_epi32(a.v, n)}; }
inline I8 mask(I8 a, int32_t bits) { return {_mm256_and_si256(a.v, _mm256_set1_epi32(bits))}; }
inline I8 join(I8 a, I8 b) { return {_mm256_or_si256(a.v, b.v)}; }
inline I8 flip(I8 a, I8 b) { return {_mm256_xor_si256(a.v, b.v)}; }
inline I8 splat_int(int32_t x) { return {_mm256_set1_epi32(x)}; }
inline I8 load_words(const void* p) { return {_mm256_loadu_si256(static_cast<const __m256i*>(p))}; }
inline V8 to_float(I8 a) { return {_mm256_cvtepi32_ps(a.v)}; }

inline V8 load_f16(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
inline V8 load_i8(const int8_t* p) {
  const __m128i codes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes))};
}
inline void store_f16(uint16_t* p, V8 a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

inline void unzip(V8 a, V8 b, V8& even, V8& odd) {
  const __m256 low = _mm256_permute2f128_ps(a.v, b.v, 0x20);   // a0 a1 a2 a3 b0 b1 b2 b3
  const __m256 high = _mm256_permute2f128_ps(a.v, b.v, 0x31);  // a4 a5 a6 a7 b4 b5 b6 b7
  even.v = _mm256_shuffle_ps(low, high, 0x88);                 // a0 a2 a4 a6 b0 b2 b4 b6
  odd.v = _mm256_shuffle_ps(low, high, 0xDD);
}
inline void zip(V8 even, V8 odd, V8& a, V8& b) {
  const __m256 low = _mm256_unpacklo_ps(even.v, odd.v);
  const __m256 high = _mm256_unpackhi_ps(even.v, odd.v);
  a.v = _mm256_permute2f128_ps(low, high, 0x20);
  b.v = _mm256_permute2f128_ps(low, high, 0x31);
}

inline float reduce8(V8 a) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
inline float reduce8_max(V8 a) {
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

inline D8 zero_d8() { return {_mm256_setzero_pd(), _mm256_setzero_pd()}; }
inline D8 widen(V8 a) {
  return {_mm256_cvtps_pd(_mm256_castps256_ps128(a.v)),
          _mm256_cvtps_pd(_mm256_extractf128_ps(a.v, 1))};
}
inline D8 splat_d8(double x) { return {_mm256_set1_pd(x), _mm256_set1_pd(x)}; }
inline V8 narrow(D8 a) {
  return {_mm256_set_m128(_mm256_cvtpd_ps(a.high), _mm256_cvtpd_ps(a.low))};
}
inline D8 add(D8 a, D8 b) { return {_mm256_add_pd(a.low, b.low), _mm256_add_pd(a.high, b.high)}; }
inline D8 sub(D8 a, D8 b) { return {_mm256_sub_pd(a.low, b.low), _mm256_sub_pd(a.high, b.high)}; }
inline D8 div(D8 a, D8 b) { return {_mm256_div_pd(a.low, b.low), _mm256_div_pd(a.high, b.high)}; }
inline double reduce8(D8 a) {
  const __m256d four = _mm256_add_pd(a.low, a.high);
  const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
  return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

}  // namespace
}  // namespace HEADRACE_ISA_NS
}  // namespace headrace
