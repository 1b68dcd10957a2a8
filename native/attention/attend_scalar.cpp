// Attention of the scalar table.
#define HEADRACE_ISA_NS scalar
#include "attention/attend_kernel.h"
