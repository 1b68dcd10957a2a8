// Packing and unpacking of weights for the scalar table.
#define HEADRACE_ISA_NS scalar
#include "gemm/pack_kernel.h"
