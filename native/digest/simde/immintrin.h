// Stands in for the compiler's <immintrin.h> in headrace_digest_simde, where AVX-512 is emulated:
// the instructions up to AVX2 are the real ones, those above are the plain C of SIMDe.
#pragma once

#include_next <immintrin.h>

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>

// Alias of SIMDe 0.7.4 with the parameters of another function.
#undef _mm512_madd_epi16
#define _mm512_madd_epi16(a, b) simde_mm512_madd_epi16(a, b)

// What it lacks.
namespace emulated {
namespace {

template <class To, class From>
inline To cast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof(to));
  return to;
}

typedef int8_t Bytes __attribute__((vector_size(16)));
typedef uint8_t UBytes __attribute__((vector_size(16)));
typedef uint16_t UWords __attribute__((vector_size(32)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef float Floats __attribute__((vector_size(64)));

template <class To, class From, class Register>
inline Register convert(From from) {
  return cast<Register>(__builtin_convertvector(from, To));
}

inline __m512 cvtepi32_ps(__m512i a) { return convert<Floats, Ints, __m512>(cast<Ints>(a)); }
inline __m512i cvtepi8_epi32(__m128i a) { return convert<Ints, Bytes, __m512i>(cast<Bytes>(a)); }
inline __m512i cvtepu8_epi32(__m128i a) { return convert<Ints, UBytes, __m512i>(cast<UBytes>(a)); }
inline __m512i cvtepu16_epi32(__m256i a) { return convert<Ints, UWords, __m512i>(cast<UWords>(a)); }

inline __m512i srai_epi32(__m512i a, int count) { return cast<__m512i>(cast<Ints>(a) >> count); }

struct Halves {
  __m256 part[2];
};

inline __m512 cvtph_ps(__m256i a) {
  const __m128i low = _mm256_castsi256_si128(a);
  const __m128i high = _mm256_extracti128_si256(a, 1);
  return cast<__m512>(Halves{{_mm256_cvtph_ps(low), _mm256_cvtph_ps(high)}});
}
inline __m256 extractf32x8_ps(__m512 a, int part) { return cast<Halves>(a).part[part]; }

inline __m512 maskz_loadu_ps(__mmask16 mask, const void* p) {
  float lanes[16] = {};
  for (int i = 0; i < 16; ++i) {
    if (mask >> i & 1) lanes[i] = static_cast<const float*>(p)[i];
  }
  return _mm512_loadu_ps(lanes);
}
inline void mask_storeu_ps(void* p, __mmask16 mask, __m512 a) {
  for (int i = 0; i < 16; ++i) {
    if (mask >> i & 1) static_cast<float*>(p)[i] = cast<Floats>(a)[i];
  }
}

}  // namespace
}  // namespace emulated

#define _mm512_cvtepi32_ps(a) emulated::cvtepi32_ps(a)
#define _mm512_cvtepi8_epi32(a) emulated::cvtepi8_epi32(a)
#define _mm512_cvtepu8_epi32(a) emulated::cvtepu8_epi32(a)
#define _mm512_cvtepu16_epi32(a) emulated::cvtepu16_epi32(a)
#undef _mm512_srai_epi32
#define _mm512_srai_epi32(a, count) emulated::srai_epi32(a, count)
#undef _mm512_cvtph_ps
#define _mm512_cvtph_ps(a) emulated::cvtph_ps(a)
#undef _mm512_extractf32x8_ps
#define _mm512_extractf32x8_ps(a, part) emulated::extractf32x8_ps(a, part)
#define _mm512_maskz_loadu_ps(mask, p) emulated::maskz_loadu_ps(mask, p)
#define _mm512_mask_storeu_ps(p, mask, a) emulated::mask_storeu_ps(p, mask, a)
