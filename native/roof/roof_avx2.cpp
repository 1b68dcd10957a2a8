// Probes of 256 bits.
#include <immintrin.h>

#include "roof/roof.h"

namespace headrace {
namespace {

// Enough independent sums to cover latency times the number of ports.
constexpr int kSums = 12;

// A value that the compiler knows nothing about: equal sums would be one sum, equal products one.
template <typename Register>
Register unknown(Register value) {
  asm volatile("" : "+x"(value));
  return value;
}

uint64_t read(const uint8_t* p, int64_t bytes) {
  __m256i sums[4] = {};
  for (int64_t i = 0; i < bytes; i += 128) {
    for (int lane = 0; lane < 4; ++lane) {
      const auto* from = reinterpret_cast<const __m256i*>(p + i + lane * 32);
      sums[lane] = _mm256_xor_si256(sums[lane], _mm256_loadu_si256(from));
    }
  }
  const __m256i sum =
      _mm256_xor_si256(_mm256_xor_si256(sums[0], sums[1]), _mm256_xor_si256(sums[2], sums[3]));
  uint64_t words[4];
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(words), sum);
  return words[0] ^ words[1] ^ words[2] ^ words[3];
}

double fma(int64_t passes, void* sink) {
  __m256 sums[kSums];
  for (__m256& sum : sums) sum = unknown(_mm256_set1_ps(0.0f));
  const __m256 half = _mm256_set1_ps(0.5f);
  const __m256 one = _mm256_set1_ps(1.0f);
  for (int64_t pass = 0; pass < passes; ++pass) {
    for (__m256& sum : sums) sum = _mm256_fmadd_ps(sum, half, one);
  }
  for (int i = 1; i < kSums; ++i) sums[0] = _mm256_add_ps(sums[0], sums[i]);
  _mm256_storeu_ps(static_cast<float*>(sink), sums[0]);
  return 2.0 * 8 * kSums * static_cast<double>(passes);
}

// Four products of bytes summed in each int32, as maddubs, madd and an addition.
__m256i add_products(__m256i sum, __m256i weights, __m256i acts) {
  const __m256i pairs = _mm256_maddubs_epi16(weights, acts);
  return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

void store_sums(__m256i* sums, int count, void* sink) {
  for (int i = 1; i < count; ++i) sums[0] = _mm256_add_epi32(sums[0], sums[i]);
  _mm256_storeu_si256(static_cast<__m256i*>(sink), sums[0]);
}

double int8(int64_t passes, void* sink) {
  __m256i sums[8];
  for (__m256i& sum : sums) sum = unknown(_mm256_setzero_si256());
  __m256i weights = _mm256_set1_epi8(3);
  const __m256i acts = _mm256_set1_epi8(5);
  for (int64_t pass = 0; pass < passes; ++pass) {
    for (__m256i& sum : sums) {
      weights = unknown(weights);
      sum = add_products(sum, weights, acts);
    }
  }
  store_sums(sums, 8, sink);
  return 2.0 * 32 * 8 * static_cast<double>(passes);
}

__m256i broadcast(const int8_t* p) {
  return _mm256_set1_epi32(*reinterpret_cast<const int32_t*>(p));
}

// 32 weights for each of 8 outputs in one go: sums of 16 bits hold that many, as in gemm/.
template <int Rows>
void int4_pass(const uint8_t* weights, const int8_t* acts, __m256i* sums) {
  const __m256i mask = _mm256_set1_epi8(15);
  __m256i kept[Rows];
  for (int row = 0; row < Rows; ++row) kept[row] = sums[row];
  for (int32_t i = 0; i < kRoofWeightBytes; i += 128) {
    const int8_t* group = acts + i % 1024;
    __m256i pairs[Rows] = {};
#pragma GCC unroll 4
    for (int step = 0; step < 4; ++step) {
      const auto* from = reinterpret_cast<const __m256i*>(weights + i + step * 32);
      const __m256i both = _mm256_loadu_si256(from);
      const __m256i low = _mm256_and_si256(both, mask);
      const __m256i high = _mm256_and_si256(_mm256_srli_epi16(both, 4), mask);
#pragma GCC unroll 4
      for (int row = 0; row < Rows; ++row) {
        const int8_t* act = group + row * 1024 + step * 8;
        pairs[row] = _mm256_add_epi16(pairs[row], _mm256_maddubs_epi16(low, broadcast(act)));
        pairs[row] = _mm256_add_epi16(pairs[row], _mm256_maddubs_epi16(high, broadcast(act + 4)));
      }
    }
    for (int row = 0; row < Rows; ++row) {
      const __m256i wide = _mm256_madd_epi16(pairs[row], _mm256_set1_epi16(1));
      kept[row] = _mm256_add_epi32(kept[row], wide);
    }
  }
  for (int row = 0; row < Rows; ++row) sums[row] = kept[row];
}

double int4(int64_t passes, int32_t rows, const uint8_t* weights, const int8_t* acts, void* sink) {
  __m256i sums[4] = {};
  for (int64_t pass = 0; pass < passes; ++pass) {
    if (rows == 1) {
      int4_pass<1>(weights, acts, sums);
    } else {
      int4_pass<4>(weights, acts, sums);
    }
  }
  store_sums(sums, 4, sink);
  return 4.0 * kRoofWeightBytes * rows * static_cast<double>(passes);
}

}  // namespace

const RoofTable& avx2_roof() {
  static constexpr RoofTable kTable = {"avx2", read, fma, int8, int4};
  return kTable;
}

}  // namespace headrace
