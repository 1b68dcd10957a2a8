// Elementwise kernels of the avx512 table.
#define HEADRACE_ISA_NS avx512
#define HEADRACE_V8_AVX2
#include "elementwise/elementwise_kernel.h"
