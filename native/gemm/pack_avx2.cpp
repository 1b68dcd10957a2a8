// Packing and unpacking of weights for the avx2 table.
#define HEADRACE_ISA_NS avx2
#include "gemm/pack_kernel.h"
