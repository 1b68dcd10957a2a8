// Quantization of activation rows for the avx2 table; see gemm/gemm.h for the definition.
#include <immintrin.h>

#include <cstring>

#include "common/f16.h"
#include "gemm/gemm.h"
#include "gemm/layout.h"

namespace headrace::avx2 {
namespace {

// Largest of 32 magnitudes, as bits: ordered like the floats, with NaN above infinity.
uint32_t max_magnitude(const __m256 (&x)[4]) {
  const __m256i mask = _mm256_set1_epi32(0x7fffffff);
  __m256i most = _mm256_and_si256(_mm256_castps_si256(x[0]), mask);
  for (int i = 1; i < 4; ++i) {
    most = _mm256_max_epi32(most, _mm256_and_si256(_mm256_castps_si256(x[i]), mask));
  }
  __m128i half = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
  half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0x4e));
  half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0xb1));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(half));
}

// Rounded codes of a group as four vectors of int32, and its scale. Codes need no clamp: the
// product exceeds the limit by less than two roundings, so it rounds to the limit.
float round_codes(const float* src, float limit, __m256i (&codes)[4]) {
  __m256 x[4];
  for (int i = 0; i < 4; ++i) x[i] = _mm256_loadu_ps(src + 8 * i);
  const uint32_t amax_bits = max_magnitude(x);
  if (amax_bits < kTinyBits || amax_bits >= kInfinityBits) [[unlikely]] {
    for (int i = 0; i < 4; ++i) codes[i] = _mm256_setzero_si256();
    return float_from_bits(amax_bits < kTinyBits ? 0 : kNanBits);
  }
  const float amax = float_from_bits(amax_bits);
  const __m256 inverse = _mm256_set1_ps(limit / amax);
  for (int i = 0; i < 4; ++i) codes[i] = _mm256_cvtps_epi32(_mm256_mul_ps(x[i], inverse));
  return amax / limit;
}

void quantize(const float* x, A8Group& group) {
  __m256i c[4];
  group.scale = round_codes(x, 127.0f, c);
  const __m256i words01 = _mm256_packs_epi32(c[0], c[1]);
  const __m256i words23 = _mm256_packs_epi32(c[2], c[3]);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const __m256i codes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(words01, words23), order);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(group.codes), codes);
  // int32 sums of four, then of eight and sixteen: lanes 0 and 4 of the last are the halves.
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), codes);
  __m256i sums = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32(sums, 0x4e));
  sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32(sums, 0xb1));
  const int32_t first = _mm256_extract_epi32(sums, 0);
  const int32_t second = _mm256_extract_epi32(sums, 4);
  group.half_sums[0] = static_cast<int16_t>(first);
  group.half_sums[1] = static_cast<int16_t>(second);
  group.scaled_sum = group.scale * static_cast<float>(first + second);
}

void quantize(const float* x, A16Group& group) {
  __m256i c[4];
  group.scale = round_codes(x, 32767.0f, c);
  for (int i = 0; i < 2; ++i) {
    const __m256i words = _mm256_packs_epi32(c[2 * i], c[2 * i + 1]);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(group.codes + 16 * i),
                        _mm256_permute4x64_epi64(words, 0xd8));
  }
}

}  // namespace
}  // namespace headrace::avx2

#define HEADRACE_ISA_NS avx2
#include "gemm/quantize_kernel.h"
