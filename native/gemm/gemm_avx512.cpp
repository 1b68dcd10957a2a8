// Matrix products of the avx512 table.
#include "gemm/gemm.h"

namespace headrace::avx512 {

void gemm(const PackedMatrix& w, int32_t tile_begin, int32_t tile_end, const uint8_t* act,
          int32_t rows, const ProductOut& to) {
  if (w.act != act_kind(w.dtype)) return float_gemm(w, tile_begin, tile_end, act, rows, to);
  avx2::gemm(w, tile_begin, tile_end, act, rows, to);
}

void quantize_rows(ActKind kind, const float* x, int64_t ldx, int32_t rows, int32_t k, uint8_t* dst,
                   size_t dst_stride) {
  avx2::quantize_rows(kind, x, ldx, rows, k, dst, dst_stride);
}

}  // namespace headrace::avx512
