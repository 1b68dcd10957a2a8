// The table of kernels: one per instruction set, equal bits from every one of them.
//
// Contract of every entry
// - A result row depends only on its own inputs. Reductions over K run in one accumulator per
//   output, in increasing k; reductions over a vector run on 8 lanes (lane = index % 8, increasing
//   index) and end in one tree: ((0+4)+(2+6))+((1+5)+(3+7)) (see reduce8 in common/v8.h). Every
//   fused multiply-add is written; the compiler may not contract. The callers have set MXCSR to
//   0x1F80 (threads/pool.h). No libm, no allocation, no locks, no exceptions.
// - Sizes are validated by the caller (tape/); kernels may assert, not check.
#pragma once

#include <vector>

#include "attention/attention.h"
#include "common/types.h"

namespace headrace {

// Where a product of rows goes, and what is added to it: y = acc + bias[o], or acc where there is
// no bias; out[r*ldo + o] = y, or out[r*ldo + o] + y with `accumulate` (a residual).
struct ProductOut {
  float* out;
  int64_t ldo;
  const float* bias;
  bool accumulate;
};

struct KernelTable {
  const char* name;  // "scalar", "avx2", "avx512", "neon"

  // ---- gemm/ ----
  // Packs source rows [8*tile, 8*tile+8) of `src` (stored rows of the dtype, row-major, n rows)
  // into tile t of dst, for tile_begin <= t < tile_end. Lossless: unpacking equals dequantizing the
  // source.
  void (*pack_tiles)(DType dtype, const uint8_t* src, int32_t n, int32_t k, uint8_t* dst,
                     int32_t tile_begin, int32_t tile_end);
  // out[0..k) = the dequantized weights of output `row`.
  void (*unpack_row)(const PackedMatrix& w, int32_t row, float* out);
  // Quantizes `rows` rows of k floats into dst rows `dst_stride` bytes apart; writes what the k
  // values take (act_used_bytes in gemm/layout.h) of each row and no more.
  void (*quantize_rows)(ActKind kind, const float* x, int64_t ldx, int32_t rows, int32_t k,
                        uint8_t* dst, size_t dst_stride);
  // acc[r][o] = sum_k w[o][k] * act[r][k], with rows of activations act_row_bytes(w.act, w.k)
  // apart, for outputs o of the tiles [tile_begin, tile_end), o < w.n; see ProductOut. Columns of
  // `to` are relative to output 0.
  void (*gemm)(const PackedMatrix& w, int32_t tile_begin, int32_t tile_end, const uint8_t* act,
               int32_t rows, const ProductOut& to);

  // ---- elementwise/ ----  (all [rows] x [dim] with leading dimensions in floats)
  // out = x * (1 / sqrt(mean(x^2) + eps)) * w; out may be x. Sum of squares: 8-lane fma reduction.
  void (*rmsnorm)(const float* x, int64_t ldx, const float* w, float eps, int32_t rows, int32_t dim,
                  float* out, int64_t ldo);
  // cos_sin[r][2*i], [2*i+1] = float32 cos and sin of position[r] * inv_freq[i], angle in float64.
  void (*rope_angles)(const int32_t* positions, int32_t rows, const double* inv_freq, int32_t pairs,
                      float* cos_sin);
  // Rotates num_heads heads of head_dim from x in place; pairs (2i, 2i+1) if interleaved, else
  // (i, i + pairs). a' = a*cos - b*sin, b' = b*cos + a*sin, as fma(a, cos, -(b*sin)), fma(b, cos,
  // a*sin).
  void (*rope)(float* x, int64_t ldx, int32_t rows, int32_t num_heads, int32_t head_dim,
               const float* cos_sin, int32_t pairs, bool interleaved);
  // Stores one row's K and V heads (float32) into block memory, rounded to nearest even: halves, or
  // bytes and scales (attention/attention.h).
  // block: start of this (layer, block) region; slot: position % kBlockLen.
  void (*kv_store)(KVType type, const float* k, const float* v, int32_t num_kv_heads,
                   int32_t head_dim, uint8_t* block, int32_t slot);
  // out = act(gate) * up, where gate = x[r][0..dim), up = x[r][dim..2*dim); out may be x.
  void (*silu_gate)(const float* x, int64_t ldx, int32_t rows, int32_t dim, float* out,
                    int64_t ldo);
  void (*gelu_gate)(const float* x, int64_t ldx, int32_t rows, int32_t dim, float* out,
                    int64_t ldo);
  void (*add)(float* x, int64_t ldx, const float* y, int64_t ldy, int32_t rows, int32_t dim);
  void (*scale)(float* x, int64_t n, float factor);
  // x = cap * tanh(x / cap)
  void (*softcap)(float* x, int64_t n, float cap);

  // ---- attention/ ----  see attention/attention.h
  void (*attend_item)(const AttnParams& params, const AttnItem& item, float* scratch);
  void (*merge_splits)(const AttnParams& params, const AttnMerge& merge);

  // ---- sampling/ ----  reductions over one row of logits
  // Highest value and its lowest index; NaN anywhere gives index -1.
  int32_t (*argmax)(const float* x, int32_t n, float* value);
  // log(sum(exp(x - max))) + max in float64; exp in float32, summed in float64 in blocks of 4,096
  // by index: inside a block on 8 float64 lanes and the fixed tree, blocks in order.
  double (*logsumexp)(const float* x, int32_t n, float max);
  // out[i] = exp(float32(float64(x[i]) / temperature - float64(max) / temperature)), exp in
  // float32.
  void (*softmax_weights)(const float* x, int32_t n, float max, double temperature, float* out);
};

// Bytes of one packed tile; 0 if k is not a multiple of the dtype's block.
size_t packed_tile_bytes(DType dtype, int32_t k);
ActKind act_kind(DType dtype);
// Bytes of one quantized activation row, a multiple of 32.
size_t act_row_bytes(ActKind kind, int32_t k);
// (weights per block, bytes per block) of a stored type.
int32_t block_weights(DType dtype);
int32_t block_bytes(DType dtype);

const KernelTable& scalar_table();
#if defined(__x86_64__)
const KernelTable& avx2_table();
const KernelTable& avx512_table();
#elif defined(__aarch64__)
const KernelTable& neon_table();
#endif
// The best table this processor (and operating system) supports, or the one named; nullptr if
// unknown or unsupported. `name` is the value of HEADRACE_ISA, or nullptr.
const KernelTable* choose_table(const char* name);
// Names that choose_table takes here, best first.
std::vector<const char*> supported_tables();

}  // namespace headrace
