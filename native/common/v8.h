// Eight virtual lanes: the vector type in which every float kernel is written once.
//
// A kernel source is a header included by one .cpp per instruction set (*_scalar.cpp, *_avx2.cpp,
// *_neon.cpp ...), each of which defines HEADRACE_ISA_NS (a namespace of its own, so that no symbol
// is shared between instruction sets) and, unless it is scalar, the implementation to use
// (HEADRACE_V8_AVX2, HEADRACE_V8_NEON), and includes this file. All implementations give equal bits
// (signs and payloads of NaN aside): all operations are single IEEE operations (fma included), and
// reduce8 is the same tree.
//
// Types: V8 eight floats, I8 eight int32, M8 a mask per lane, D8 eight doubles. Operations:
//   zero8 splat load load_part store store_part       load_part fills the missing lanes
//   load_some store_some                              the first min(n, 8) lanes
//   add sub mul div sqrt fma(a, b, c) = a*b + c       fma rounds once
//   max                                               a > b ? a : b, as x86
//   neg abs copysign
//   lt gt ge eq is_nan first_lanes bits both          masks; bits: lane i in bit i
//   select(m, a, b) = m ? a : b, keep(m, a) = m ? a : +0
//   as_int as_float add shift_left                    on the bits of floats
//   shift_right mask join flip splat_int load_words   logical shift, a & bits, a | b, a ^ b
//   to_float                                          integers below 2^24: exact
//   load_f16 store_f16                                eight halves; exact, and nearest even
//   load_i8                                           eight signed bytes; exact
//   zip unzip                                         a0 b0 a1 b1 ... <-> a0 a1 ..., b0 b1 ...
//   reduce8 = ((0+4)+(2+6))+((1+5)+(3+7)), reduce8_max by the same tree
//   zero_d8 splat_d8 add sub div, reduce8(D8), widen(V8) -> D8, narrow(D8) -> V8
#pragma once

#if defined(HEADRACE_V8_AVX2)
#include "common/v8_avx2.h"
#elif defined(HEADRACE_V8_NEON)
#include "common/v8_neon.h"
#else
#include "common/v8_scalar.h"
#endif

namespace headrace {
namespace HEADRACE_ISA_NS {
namespace {

inline V8 load_some(const float* p, int64_t n, float fill = 0.0f) {
  return n >= 8 ? load(p) : load_part(p, static_cast<int>(n), fill);
}
inline void store_some(float* p, V8 a, int64_t n) {
  if (n >= 8) {
    store(p, a);
  } else {
    store_part(p, a, static_cast<int>(n));
  }
}

}  // namespace
}  // namespace HEADRACE_ISA_NS
}  // namespace headrace
