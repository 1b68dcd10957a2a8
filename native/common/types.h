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
constexpr size_t kActKinds = 3;

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
// How K and V are stored (backends/layout.py KV_DTYPES). Of one layer, block and KV head:
//   f16  K: head_dim x 16 halves, V: 16 x head_dim halves
//   i8   the same in signed bytes, then the 16 float32 scales of K and the 16 of V
// K is transposed, so that the key of position p sits in lane p % 16: scores are then chains of
// their own. Measured with AVX-512 at 64 dims against 16 x head_dim, whose sums end across lanes
// (ns per key, K in cache; halves / bytes): 1 line 2.2 / 2.2 against 3.4 / 3.7, 3 lines 3.6 / 3.8
// against 7.6 / 7.6, 6 lines 4.9 / 6.0 against 14.9 / 15.4.
enum class KVType : int32_t { f16 = 0, i8 = 1 };

// Bytes of K, or of V, without scales.
constexpr int64_t kv_part_bytes(KVType type, int32_t head_dim) {
  return int64_t{head_dim} * kBlockLen * (type == KVType::f16 ? 2 : 1);
}
constexpr int64_t kv_head_bytes(KVType type, int32_t head_dim) {
  const int64_t scale_bytes = type == KVType::f16 ? 0 : 2 * kBlockLen * int64_t{sizeof(float)};
  return 2 * kv_part_bytes(type, head_dim) + scale_bytes;
}

// Attention restarts its softmax state at absolute positions that are multiples of this.
constexpr int kSplitLen = 256;

}  // namespace headrace
