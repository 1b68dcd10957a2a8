// Row-wise float kernels: norms, rotary embedding, gates, and the write of K and V into the cache.
// Definitions stand at the entries of KernelTable (common/table.h).
#pragma once

#include "common/table.h"

// Entry points with the signatures of KernelTable, one set per instruction set.
#define HEADRACE_DECLARE_ELEMENTWISE(isa)                                                          \
  namespace headrace::isa {                                                                        \
  void rmsnorm(const float* x, int64_t ldx, const float* w, float eps, int32_t rows, int32_t dim,  \
               float* out, int64_t ldo);                                                           \
  void rope_angles(const int32_t* positions, int32_t rows, const double* inv_freq, int32_t pairs,  \
                   float* cos_sin);                                                                \
  void rope(float* x, int64_t ldx, int32_t rows, int32_t num_heads, int32_t head_dim,              \
            const float* cos_sin, int32_t pairs, bool interleaved);                                \
  void kv_store(KVType type, const float* k, const float* v, int32_t num_kv_heads,                 \
                int32_t head_dim, uint8_t* block, int32_t slot);                                   \
  void silu_gate(const float* x, int64_t ldx, int32_t rows, int32_t dim, float* out, int64_t ldo); \
  void gelu_gate(const float* x, int64_t ldx, int32_t rows, int32_t dim, float* out, int64_t ldo); \
  void add(float* x, int64_t ldx, const float* y, int64_t ldy, int32_t rows, int32_t dim);         \
  void scale(float* x, int64_t n, float factor);                                                   \
  void softcap(float* x, int64_t n, float cap);                                                    \
  }

HEADRACE_DECLARE_ELEMENTWISE(scalar)
#if defined(__x86_64__)
HEADRACE_DECLARE_ELEMENTWISE(avx2)
HEADRACE_DECLARE_ELEMENTWISE(avx512)
#elif defined(__aarch64__)
HEADRACE_DECLARE_ELEMENTWISE(neon)
#endif

#undef HEADRACE_DECLARE_ELEMENTWISE
