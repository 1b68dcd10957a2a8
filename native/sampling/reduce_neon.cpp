// Reductions of logits of the neon table.
#define HEADRACE_ISA_NS neon
#define HEADRACE_V8_NEON
#include "sampling/reduce_kernel.h"
