// Matrix products of packed weights with quantized activation rows: definition and entry points.
//
// Every table computes exactly this, at every row count and for every range of tiles. Per row r and
// output o one float32 accumulator starts at +0 and takes the groups of 32 inputs in increasing k
// (single inputs for the float types). Integers are exact; every float operation is one rounding:
//
//   Q4_0 Q5_0  I = sum q a - z A           z = 8, 16
//              acc = fma(float(I), d_w * d_a, acc)
//   Q4_1 Q5_1  I = sum q a
//              acc = fma(float(I), d_w * d_a, acc);  acc = fma(m_w, s_a, acc)
//   Q4_K Q5_K  I = scale * sum q a         (6-bit scale and minimum of the group)
//              acc = fma(float(I), d_w * d_a, acc);  acc = fma(-(dmin_w * float(min)), s_a, acc)
//   Q6_K       I = scale_0 (sum_0 q a - 32 A_0) + scale_1 (sum_1 q a - 32 A_1)   (halves of 16)
//              acc = fma(float(I), d_w * d_a, acc)
//   Q8_0       I = sum w a
//              acc = fma(float(I), d_w * d_a, acc)
//   float, f16, bf16  acc = fma(a, w, acc)
//
// q: unsigned stored code; w: signed stored code; a: activation code; A: sum of the group's
// (half's) activation codes; d_a: the group's activation scale; s_a = d_a * float(A). At the end
// y = acc + bias[o], or acc where there is no bias; out = y, or out + y (a residual).
//
// Float activations, the choice of PackedMatrix::act = f32 for a quantized type: every weight is
// first unpacked to the float that unpack_row gives (w'), and inputs are taken one by one, as for
// the float types: acc = fma(a, w', acc) in increasing k.
//
// Activations, per group of 32 inputs, with L = 127 (a8) or 32767 (a16) and amax the largest |x|:
//   d_a = amax / L;  code = x * (L / amax) rounded to nearest even, so |code| <= L.
//   amax < 2^-100: the group is zero (d_a = 0, codes 0). A NaN or infinity in the group: d_a = NaN
//   and codes 0, so that every output of that row, and of no other, is NaN.
//
// No int16 sum overflows: a pair of products is at most 2 * 127 * q_max, and 8 (q_max = 15),
// 4 (31) or 2 (63) pairs are added before they are widened: 30,480, 31,496 and 32,004.
#pragma once

#include "common/table.h"

// Entry points with the signatures of KernelTable, one set per instruction set.
#define HEADRACE_DECLARE_GEMM(isa)                                                                 \
  namespace headrace::isa {                                                                        \
  void pack_tiles(DType dtype, const uint8_t* src, int32_t n, int32_t k, uint8_t* dst,             \
                  int32_t tile_begin, int32_t tile_end);                                           \
  void unpack_row(const PackedMatrix& w, int32_t row, float* out);                                 \
  void quantize_rows(ActKind kind, const float* x, int64_t ldx, int32_t rows, int32_t k,           \
                     uint8_t* dst, size_t dst_stride);                                             \
  void gemm(const PackedMatrix& w, int32_t tile_begin, int32_t tile_end, const uint8_t* act,       \
            int32_t rows, const ProductOut& to);                                                   \
  /* gemm() of quantized weights with float activations (gemm/float_kernel.h). */                  \
  void float_gemm(const PackedMatrix& w, int32_t tile_begin, int32_t tile_end, const uint8_t* act, \
                  int32_t rows, const ProductOut& to);                                             \
  }

HEADRACE_DECLARE_GEMM(scalar)
#if defined(__x86_64__)
HEADRACE_DECLARE_GEMM(avx2)
HEADRACE_DECLARE_GEMM(avx512)
#elif defined(__aarch64__)
HEADRACE_DECLARE_GEMM(neon)
#endif

#undef HEADRACE_DECLARE_GEMM
