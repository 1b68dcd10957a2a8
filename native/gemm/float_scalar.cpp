// Float activations of the scalar table: the oracle of every other.
#define HEADRACE_ISA_NS scalar
#include "gemm/float_kernel.h"
