// Probes in plain C++, for whatever vector unit the baseline of the platform has.
#include <cstring>

#include "roof/roof.h"

namespace headrace {
namespace {

constexpr int kLanes = 32;

uint64_t read(const uint8_t* p, int64_t bytes) {
  uint64_t sums[8] = {};
  const auto* words = reinterpret_cast<const uint64_t*>(p);
  for (int64_t i = 0; i < bytes / 8; i += 8) {
    for (int lane = 0; lane < 8; ++lane) sums[lane] ^= words[i + lane];
  }
  uint64_t sum = 0;
  for (const uint64_t lane : sums) sum ^= lane;
  return sum;
}

// Not fused: the baseline may lack the instruction.
double fma(int64_t passes, void* sink) {
  float sums[kLanes] = {};
  for (int64_t pass = 0; pass < passes; ++pass) {
    for (float& sum : sums) sum = sum * 0.5f + 1.0f;
  }
  std::memcpy(sink, sums, 64);
  return 2.0 * kLanes * static_cast<double>(passes);
}

int32_t dot(const uint8_t* weights, const int8_t* acts, int32_t count) {
  int32_t sum = 0;
  for (int32_t i = 0; i < count; ++i) sum += weights[i] * acts[i];
  return sum;
}

double int8(int64_t passes, void* sink) {
  uint8_t weights[1024];
  int8_t acts[1024];
  std::memset(weights, 3, sizeof(weights));
  std::memset(acts, 5, sizeof(acts));
  uint32_t sums[16] = {};
  for (int64_t pass = 0; pass < passes; ++pass) {
    weights[pass & 1023] ^= 1;  // or one pass would do for all
    sums[pass & 15] += static_cast<uint32_t>(dot(weights, acts, 1024));
  }
  std::memcpy(sink, sums, 64);
  return 2.0 * 1024 * static_cast<double>(passes);
}

double int4(int64_t passes, int32_t rows, const uint8_t* weights, const int8_t* acts, void* sink) {
  uint32_t sums[16] = {};
  uint8_t unpacked[64];
  for (int64_t pass = 0; pass < passes; ++pass) {
    for (int32_t i = 0; i < kRoofWeightBytes; i += 32) {
      for (int lane = 0; lane < 32; ++lane) {
        unpacked[lane] = weights[i + lane] & 15;
        unpacked[lane + 32] = weights[i + lane] >> 4;
      }
      for (int32_t row = 0; row < rows; ++row) {
        sums[row] += static_cast<uint32_t>(dot(unpacked, acts + row * 1024 + i % 512, 64));
      }
    }
  }
  std::memcpy(sink, sums, 64);
  return 4.0 * kRoofWeightBytes * rows * static_cast<double>(passes);
}

}  // namespace

const RoofTable& scalar_roof() {
  static constexpr RoofTable kTable = {"scalar", read, fma, int8, int4};
  return kTable;
}

}  // namespace headrace
