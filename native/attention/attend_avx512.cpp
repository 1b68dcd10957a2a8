// Attention of the avx512 table.
#define HEADRACE_ISA_NS avx512
#define HEADRACE_V8_AVX2
#define HEADRACE_V16_AVX512
#include "attention/attend_kernel.h"
