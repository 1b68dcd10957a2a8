// Elementwise kernels of the scalar table.
#define HEADRACE_ISA_NS scalar
#include "elementwise/elementwise_kernel.h"
