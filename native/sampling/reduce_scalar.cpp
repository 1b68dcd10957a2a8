// Reductions of logits of the scalar table.
#define HEADRACE_ISA_NS scalar
#include "sampling/reduce_kernel.h"
