// Packing and unpacking of weights for the avx512 table.
#define HEADRACE_ISA_NS avx512
#include "gemm/pack_kernel.h"
