// Types shared by every native part: stored tensor types and packed matrices.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headrace {

// Stored types; values are ggml's type ids (weights/base.py DType).
enum class DType : int32_t {
  f32 = 0,
  f16 = 1,
  q4_0 = 2,
  q4_1 = 3,
  q5_0 = 6,
  q5_1 = 7,
  q8_0 = 8,
  q4_k = 12,
  q5_k = 13,
  q6_k = 14,
  bf16 = 30,
};

// How a GEMM wants its activations (one arithmetic per packing, at every row count).
//   a8:  int8 per group of 32, float32 scale; weights of 4, 5 and 6 bits
//   a16: int16 per group of 32, float32 scale; weights of 8 bits
//   f32: plain floats; 16-bit and float weights
enum class ActKind : int32_t { a8 = 0, a16 = 1, f32 = 2 };

// A weight matrix (n outputs, k inputs) in tiles of kTileN outputs, each tile contiguous over all
// k. n is padded up to a multiple of kTileN with zero weights; k must be a multiple of the type's
// block. Memory is owned by whoever allocated it (Weights in tape/), 64-byte aligned.
constexpr int kTileN = 8;

struct PackedMatrix {
  DType dtype;
  ActKind act;  // how its products take activations: act_kind(dtype), or f32 by choice
  int32_t n;
  int32_t k;
  size_t tile_bytes;
  const uint8_t* data;

  int32_t num_tiles() const { return (n + kTileN - 1) / kTileN; }
};

// KV blocks hold this many positions (backends/layout.py BLOCK_LEN).
constexpr int kBlockLen = 16;
// Attention restarts its softmax state at absolute positions that are multiples of this.
constexpr int kSplitLen = 256;

}  // namespace headrace
