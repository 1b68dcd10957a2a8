// Eight virtual lanes: the vector type in which every float kernel is written once.
//
// A kernel source is a header included by one *_scalar.cpp and one *_avx2.cpp, each of which
// defines HEADRACE_ISA_NS (a namespace of its own, so that no symbol is shared between instruction
// sets) and includes this file. Both implementations give equal bits: all operations are single
// IEEE operations (fma included), and reduce8 is the same tree.
#pragma once

#if defined(HEADRACE_V8_AVX2)
#include "common/v8_avx2.h"
#else
#include "common/v8_scalar.h"
#endif
