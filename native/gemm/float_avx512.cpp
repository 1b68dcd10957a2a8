// Float activations of the avx512 table: two tiles are one vector.
#define HEADRACE_ISA_NS avx512
#define HEADRACE_V8_AVX2
#define HEADRACE_PAIR_AVX512
#include "gemm/float_kernel.h"
