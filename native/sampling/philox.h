// Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011): counter-based noise, no state.
#pragma once

#include <array>
#include <cstdint>

namespace headrace {

// Words for (seed, output position); word of token id = block(id / 4)[id % 4].
class Philox {
 public:
  Philox(uint64_t seed, uint32_t output_pos)
      : key0_(static_cast<uint32_t>(seed)),
        key1_(static_cast<uint32_t>(seed >> 32)),
        output_pos_(output_pos) {}

  std::array<uint32_t, 4> block(uint32_t index) const {
    std::array<uint32_t, 4> c{index, output_pos_, 0, 0};
    uint32_t k0 = key0_;
    uint32_t k1 = key1_;
    for (int round = 0; round < 10; ++round) {
      const uint64_t p0 = uint64_t{0xD2511F53} * c[0];
      const uint64_t p1 = uint64_t{0xCD9E8D57} * c[2];
      c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
           static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p0)};
      k0 += 0x9E3779B9;
      k1 += 0xBB67AE85;
    }
    return c;
  }

  uint32_t word(int32_t id) const {
    return block(static_cast<uint32_t>(id) / 4)[static_cast<size_t>(id % 4)];
  }

 private:
  uint32_t key0_;
  uint32_t key1_;
  uint32_t output_pos_;
};

}  // namespace headrace
