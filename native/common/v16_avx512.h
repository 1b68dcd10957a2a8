// V16 in one register of AVX-512. See v16.h.
#pragma once

#include "common/v8.h"

namespace headrace {
namespace HEADRACE_ISA_NS {
namespace {

struct V16 {
  __m512 v;
};
struct I16 {
  __m512i v;
};
struct M16 {
  __mmask16 v;
};

inline V16 zero16() { return {_mm512_setzero_ps()}; }
inline V16 splat16(float x) { return {_mm512_set1_ps(x)}; }
inline V16 load16(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, V16 a) { _mm512_storeu_ps(p, a.v); }

inline V16 add(V16 a, V16 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline V16 sub(V16 a, V16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline V16 mul(V16 a, V16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline V16 max(V16 a, V16 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline V16 fma(V16 a, V16 b, V16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }

inline M16 gt(V16 a, V16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ)}; }
inline M16 ge(V16 a, V16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ)}; }
inline M16 is_nan(V16 a) { return {_mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q)}; }
inline V16 select(M16 m, V16 a, V16 b) { return {_mm512_mask_blend_ps(m.v, b.v, a.v)}; }
inline V16 keep(M16 m, V16 a) { return {_mm512_maskz_mov_ps(m.v, a.v)}; }
inline V16 keep_lanes(int begin, int end, V16 a, V16 b) {
  const uint32_t below_begin = (1u << begin) - 1u;
  const uint32_t below_end = (1u << end) - 1u;
  return select({static_cast<__mmask16>(below_end & ~below_begin)}, a, b);
}

inline I16 as_int(V16 a) { return {_mm512_castps_si512(a.v)}; }
inline V16 as_float(I16 a) { return {_mm512_castsi512_ps(a.v)}; }
inline I16 add(I16 a, I16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
template <int kBits>
inline I16 shift_left(I16 a) {
  return {_mm512_slli_epi32(a.v, kBits)};
}

inline V16 load16_f16(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline V16 load16_i8(const int8_t* p) {
  const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes))};
}

inline V8 low(V16 a) { return {_mm512_castps512_ps256(a.v)}; }
inline V8 high(V16 a) { return {_mm512_extractf32x8_ps(a.v, 1)}; }
inline V16 join(V8 low, V8 high) {
  return {_mm512_insertf32x8(_mm512_castps256_ps512(low.v), high.v, 1)};
}
inline float reduce16_max(V16 a) { return reduce8_max(max(low(a), high(a))); }

}  // namespace
}  // namespace HEADRACE_ISA_NS
}  // namespace headrace
