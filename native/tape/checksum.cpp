#include "tape/checksum.h"

#include <array>
#include <bit>
#include <cstring>

namespace headrace {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87;
constexpr uint64_t kPrime2 = 0xC2B2AE3D27D4EB4F;
constexpr uint64_t kPrime3 = 0x165667B19E3779F9;
constexpr uint64_t kPrime4 = 0x85EBCA77C2B2AE63;
constexpr uint64_t kPrime5 = 0x27D4EB2F165667C5;

template <typename T>
T load(const uint8_t* p) {
  T value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

uint64_t round(uint64_t acc, uint64_t input) {
  return std::rotl(acc + input * kPrime2, 31) * kPrime1;
}

uint64_t merge_round(uint64_t hash, uint64_t acc) {
  return (hash ^ round(0, acc)) * kPrime1 + kPrime4;
}

// Consumes all whole stripes of 32 bytes.
uint64_t hash_stripes(const uint8_t*& p, const uint8_t* end, uint64_t seed) {
  std::array<uint64_t, 4> acc = {seed + kPrime1 + kPrime2, seed + kPrime2, seed, seed - kPrime1};
  for (; end - p >= 32; p += 32) {
    for (size_t i = 0; i < 4; ++i) acc[i] = round(acc[i], load<uint64_t>(p + 8 * i));
  }
  uint64_t hash =
      std::rotl(acc[0], 1) + std::rotl(acc[1], 7) + std::rotl(acc[2], 12) + std::rotl(acc[3], 18);
  for (const uint64_t a : acc) hash = merge_round(hash, a);
  return hash;
}

}  // namespace

uint64_t xxh64(const uint8_t* data, size_t bytes, uint64_t seed) {
  const uint8_t* p = data;
  const uint8_t* end = data + bytes;
  uint64_t hash = bytes >= 32 ? hash_stripes(p, end, seed) : seed + kPrime5;
  hash += bytes;
  for (; end - p >= 8; p += 8) {
    hash = std::rotl(hash ^ round(0, load<uint64_t>(p)), 27) * kPrime1 + kPrime4;
  }
  if (end - p >= 4) {
    hash = std::rotl(hash ^ (load<uint32_t>(p) * kPrime1), 23) * kPrime2 + kPrime3;
    p += 4;
  }
  for (; p < end; ++p) hash = std::rotl(hash ^ (*p * kPrime5), 11) * kPrime1;
  hash = (hash ^ (hash >> 33)) * kPrime2;
  hash = (hash ^ (hash >> 29)) * kPrime3;
  return hash ^ (hash >> 32);
}

uint64_t combine_checksums(const std::vector<uint64_t>& pieces, size_t total_bytes) {
  return xxh64(reinterpret_cast<const uint8_t*>(pieces.data()), pieces.size() * sizeof(uint64_t),
               total_bytes);
}

}  // namespace headrace
