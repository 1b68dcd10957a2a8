// Sizes of stored, packed and quantized rows.
#include "gemm/gemm.h"

#include "gemm/layout.h"

namespace headrace {
namespace {

struct Format {
  int32_t block_weights;
  int32_t block_bytes;
  size_t unit_bytes;  // packed bytes of kTileN outputs x block_weights inputs
  ActKind act;
};

Format format(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return {1, 4, 4 * kTileN, ActKind::f32};
    case DType::f16:
    case DType::bf16:
      return {1, 2, 2 * kTileN, ActKind::f32};
    case DType::q4_0:
      return {32, 18, kQ4_0Bytes, ActKind::a8};
    case DType::q4_1:
      return {32, 20, kQ4_1Bytes, ActKind::a8};
    case DType::q5_0:
      return {32, 22, kQ5_0Bytes, ActKind::a8};
    case DType::q5_1:
      return {32, 24, kQ5_1Bytes, ActKind::a8};
    case DType::q8_0:
      return {32, 34, kQ8_0Bytes, ActKind::a16};
    case DType::q4_k:
      return {256, 144, kQ4_KBytes, ActKind::a8};
    case DType::q5_k:
      return {256, 176, kQ5_KBytes, ActKind::a8};
    case DType::q6_k:
      return {256, 210, kQ6_KBytes, ActKind::a8};
  }
  __builtin_unreachable();
}

}  // namespace

size_t packed_tile_bytes(DType dtype, int32_t k) {
  const Format f = format(dtype);
  if (k <= 0 || k % f.block_weights != 0) return 0;
  return static_cast<size_t>(k / f.block_weights) * f.unit_bytes;
}

ActKind act_kind(DType dtype) { return format(dtype).act; }

size_t act_row_bytes(ActKind kind, int32_t k) { return (act_used_bytes(kind, k) + 31) / 32 * 32; }

int32_t block_weights(DType dtype) { return format(dtype).block_weights; }
int32_t block_bytes(DType dtype) { return format(dtype).block_bytes; }

}  // namespace headrace
