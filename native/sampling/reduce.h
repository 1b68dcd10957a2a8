// Reductions over one row of logits. Definitions stand at the entries of KernelTable
// (common/table.h).
#pragma once

#include "common/table.h"

// Entry points with the signatures of KernelTable, one set per instruction set.
#define HEADRACE_DECLARE_REDUCE(isa)                                                          \
  namespace headrace::isa {                                                                   \
  int32_t argmax(const float* x, int32_t n, float* value);                                    \
  double logsumexp(const float* x, int32_t n, float max);                                     \
  void softmax_weights(const float* x, int32_t n, float max, double temperature, float* out); \
  }

HEADRACE_DECLARE_REDUCE(scalar)
#if defined(__x86_64__)
HEADRACE_DECLARE_REDUCE(avx2)
HEADRACE_DECLARE_REDUCE(avx512)
#elif defined(__aarch64__)
HEADRACE_DECLARE_REDUCE(neon)
#endif

#undef HEADRACE_DECLARE_REDUCE
