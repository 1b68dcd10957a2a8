// What a kernel table computes over fixed inputs, as one digest per entry: programs that were built
// for different instruction sets, or run under emulation, agree bit for bit when their lines do.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "common/table.h"

namespace headrace::digest {

// Fixed pseudo-random inputs (splitmix64): no library decides a bit of them.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t bits() {
    state_ += 0x9E3779B97F4A7C15u;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  int32_t below(int32_t n) {
    return static_cast<int32_t>((bits() >> 33) % static_cast<uint32_t>(n));
  }
  bool chance(int32_t one_in) { return below(one_in) == 0; }
  // About normal, standard deviation 1: four uniform numbers, exact in float64.
  float normal() {
    double sum = -2.0;
    for (int i = 0; i < 4; ++i) sum += static_cast<double>(bits() >> 11) * 0x1p-53;
    return static_cast<float>(sum * 1.75);
  }

 private:
  uint64_t state_;
};

// A digest of numbers. All NaN are one: their signs and payloads differ between processors, and no
// result but a NaN comes of them.
class Digest {
 public:
  void word(uint64_t value) {
    state_ = (state_ ^ value) * 0x9E3779B97F4A7C15u;
    state_ ^= state_ >> 29;
  }
  void value(float x) { word(x == x ? __builtin_bit_cast(uint32_t, x) : 0x7fc00000u); }
  void value(double x) { word(x == x ? __builtin_bit_cast(uint64_t, x) : 0x7ff8000000000000u); }
  void half(uint16_t x) { word((x & 0x7fff) > 0x7c00 ? 0x7e00 : x); }
  void floats(const std::vector<float>& x) {
    for (const float each : x) value(each);
  }
  void bytes(const std::vector<uint8_t>& x) {
    for (const uint8_t each : x) word(each);
  }
  uint64_t result() const { return state_; }

 private:
  uint64_t state_ = 0;
};

inline void print(const std::string& entry, const Digest& digest) {
  std::printf("%s %016llx\n", entry.c_str(), static_cast<unsigned long long>(digest.result()));
}

// Numbers of every kind: mostly ordinary ones, and with `special` what breaks shortcuts.
inline std::vector<float> floats(Random& random, size_t n, float scale = 1.0f,
                                 bool special = false) {
  constexpr uint32_t kSpecial[] = {
      0x00000000, 0x80000000, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc00000,  // 0, inf, NaN
      0x00000001, 0x80000001, 0x007fffff, 0x00800000, 0x7f7fffff, 0xff7fffff,  // ends of the range
      0x42b17218, 0x42b17217, 0xc2ae0000, 0xc2ae0001, 0x3f200000, 0x3f1fffff,  // ends of exp, tanh
      0x33000000, 0x33000001, 0x38800000, 0x387fffff, 0x477fefff, 0x477ff000,  // ends of float16
  };
  std::vector<float> x(n);
  for (float& each : x) {
    each = random.normal() * scale;
    if (special && random.chance(6)) {
      const uint32_t bits = kSpecial[random.below(sizeof(kSpecial) / sizeof(kSpecial[0]))];
      each = __builtin_bit_cast(float, bits);
    }
  }
  return x;
}

// Each prints the digests of its entries of the table.
void digest_gemm(const KernelTable& table);
void digest_elementwise(const KernelTable& table);
void digest_attention(const KernelTable& table);
void digest_sampling(const KernelTable& table);

}  // namespace headrace::digest
