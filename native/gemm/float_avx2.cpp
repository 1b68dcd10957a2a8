// Float activations of the avx2 table.
#define HEADRACE_ISA_NS avx2
#define HEADRACE_V8_AVX2
#include "gemm/float_kernel.h"
