// Packing and unpacking of weights for the neon table.
#define HEADRACE_ISA_NS neon
#include "gemm/pack_kernel.h"
