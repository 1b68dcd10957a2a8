// Sixteen lanes: two V8 side by side, or one wide register where the instruction set has it. For
// kernels whose lanes are chains of their own (attention's scores and weighted sums): such a lane
// has the same bits at any width. Sums over lanes stay on V8 and its tree: low and high give the
// halves.
//
// Types: V16 sixteen floats, I16 sixteen int32, M16 a mask per lane. Operations as in v8.h:
//   zero16 splat16 load16 store
//   add sub mul fma max gt ge is_nan select keep as_int as_float shift_left
//   keep_lanes(begin, end, a, b)   a in lanes begin <= i < end, else b; 0 <= begin, end <= 16
//   load16_f16 load16_i8            sixteen halves or bytes; exact
//   low high join reduce16_max
#pragma once

#include "common/v8.h"

#if defined(HEADRACE_V16_AVX512)
#include "common/v16_avx512.h"
#else
#include "common/v16_pair.h"
#endif

namespace headrace {
namespace HEADRACE_ISA_NS {
namespace {

// The same number in every lane of a V8 or V16, for code that is written once for both.
template <typename V>
inline V fill(float x);
template <>
inline V8 fill<V8>(float x) {
  return splat(x);
}
template <>
inline V16 fill<V16>(float x) {
  return splat16(x);
}

}  // namespace
}  // namespace HEADRACE_ISA_NS
}  // namespace headrace
