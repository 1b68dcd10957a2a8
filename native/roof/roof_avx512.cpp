// Probes of 512 bits, with the dot products of VNNI.
#include <immintrin.h>

#include "roof/roof.h"

namespace headrace {
namespace {

// Enough independent sums to cover latency times the number of ports.
constexpr int kSums = 16;

// A value that the compiler knows nothing about: equal sums would be one sum, equal products one.
template <typename Register>
Register unknown(Register value) {
  asm volatile("" : "+v"(value));
  return value;
}

uint64_t read(const uint8_t* p, int64_t bytes) {
  __m512i sums[4] = {};
  for (int64_t i = 0; i < bytes; i += 256) {
    for (int lane = 0; lane < 4; ++lane) {
      sums[lane] = _mm512_xor_si512(sums[lane], _mm512_loadu_si512(p + i + lane * 64));
    }
  }
  const __m512i sum =
      _mm512_xor_si512(_mm512_xor_si512(sums[0], sums[1]), _mm512_xor_si512(sums[2], sums[3]));
  uint64_t words[8];
  _mm512_storeu_si512(words, sum);
  uint64_t folded = 0;
  for (const uint64_t word : words) folded ^= word;
  return folded;
}

double fma(int64_t passes, void* sink) {
  __m512 sums[kSums];
  for (__m512& sum : sums) sum = unknown(_mm512_setzero_ps());
  const __m512 half = _mm512_set1_ps(0.5f);
  const __m512 one = _mm512_set1_ps(1.0f);
  for (int64_t pass = 0; pass < passes; ++pass) {
    for (__m512& sum : sums) sum = _mm512_fmadd_ps(sum, half, one);
  }
  for (int i = 1; i < kSums; ++i) sums[0] = _mm512_add_ps(sums[0], sums[i]);
  _mm512_storeu_ps(sink, sums[0]);
  return 2.0 * 16 * kSums * static_cast<double>(passes);
}

void store_sums(__m512i* sums, int count, void* sink) {
  for (int i = 1; i < count; ++i) sums[0] = _mm512_add_epi32(sums[0], sums[i]);
  _mm512_storeu_si512(sink, sums[0]);
}

double int8(int64_t passes, void* sink) {
  __m512i sums[kSums];
  for (__m512i& sum : sums) sum = unknown(_mm512_setzero_si512());
  const __m512i weights = _mm512_set1_epi8(3);
  const __m512i acts = _mm512_set1_epi8(5);
  for (int64_t pass = 0; pass < passes; ++pass) {
    for (__m512i& sum : sums) sum = _mm512_dpbusd_epi32(sum, weights, acts);
  }
  store_sums(sums, kSums, sink);
  return 2.0 * 64 * kSums * static_cast<double>(passes);
}

__m512i broadcast(const int8_t* p) {
  return _mm512_set1_epi32(*reinterpret_cast<const int32_t*>(p));
}

// Sums of their own for both halves of a byte and for even and odd steps: a chain of products takes
// the latency of each. Unrolled, so that they stay in registers.
template <int Rows>
void int4_pass(const uint8_t* weights, const int8_t* acts, __m512i* sums) {
  const __m512i mask = _mm512_set1_epi8(15);
  __m512i kept[Rows * 4];
  for (int i = 0; i < Rows * 4; ++i) kept[i] = sums[i];
  for (int32_t i = 0; i < kRoofWeightBytes; i += 256) {
    const int8_t* group = acts + i / 8 % 1024;
#pragma GCC unroll 4
    for (int step = 0; step < 4; ++step) {
      const __m512i both = _mm512_loadu_si512(weights + i + step * 64);
      const __m512i low = _mm512_and_si512(both, mask);
      const __m512i high = _mm512_and_si512(_mm512_srli_epi16(both, 4), mask);
#pragma GCC unroll 4
      for (int row = 0; row < Rows; ++row) {
        const int8_t* act = group + row * 1024 + step * 8;
        __m512i* to = kept + (step % 2 * Rows + row) * 2;
        to[0] = _mm512_dpbusd_epi32(to[0], low, broadcast(act));
        to[1] = _mm512_dpbusd_epi32(to[1], high, broadcast(act + 4));
      }
    }
  }
  for (int i = 0; i < Rows * 4; ++i) sums[i] = kept[i];
}

double int4(int64_t passes, int32_t rows, const uint8_t* weights, const int8_t* acts, void* sink) {
  __m512i sums[16] = {};
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

const RoofTable& avx512_roof() {
  static constexpr RoofTable kTable = {"avx512", read, fma, int8, int4};
  return kTable;
}

}  // namespace headrace
