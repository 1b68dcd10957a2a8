#define HEADRACE_ISA_NS scalar
#include "sampling/weights_kernel.h"
