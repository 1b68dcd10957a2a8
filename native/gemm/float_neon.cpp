// Float activations of the neon table.
#define HEADRACE_ISA_NS neon
#define HEADRACE_V8_NEON
#include "gemm/float_kernel.h"
