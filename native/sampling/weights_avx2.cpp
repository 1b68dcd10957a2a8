#define HEADRACE_ISA_NS avx2
#define HEADRACE_V8_AVX2
#include "sampling/weights_kernel.h"
