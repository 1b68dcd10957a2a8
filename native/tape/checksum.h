// Checksums of tensor bytes, for the model's identity. Not cryptographic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace headrace {

// XXH64 (github.com/Cyan4973/xxHash, doc/xxhash_spec.md).
uint64_t xxh64(const uint8_t* data, size_t bytes, uint64_t seed);

// The checksum of a tensor is XXH64 with seed = total bytes over the little-endian XXH64 digests
// (seed 0) of its pieces of kChecksumPiece bytes: pieces can be hashed by any number of threads.
constexpr size_t kChecksumPiece = size_t{1} << 20;

uint64_t combine_checksums(const std::vector<uint64_t>& pieces, size_t total_bytes);

}  // namespace headrace
