// V16 as two V8. See v16.h.
#pragma once

#include "common/v8.h"

namespace headrace {
namespace HEADRACE_ISA_NS {
namespace {

struct V16 {
  V8 low, high;
};
struct I16 {
  I8 low, high;
};
struct M16 {
  M8 low, high;
};

inline V16 zero16() { return {zero8(), zero8()}; }
inline V16 splat16(float x) {
  const V8 half = splat(x);
  return {half, half};
}
inline V16 load16(const float* p) { return {load(p), load(p + 8)}; }
inline void store(float* p, V16 a) {
  store(p, a.low);
  store(p + 8, a.high);
}

inline V16 add(V16 a, V16 b) { return {add(a.low, b.low), add(a.high, b.high)}; }
inline V16 sub(V16 a, V16 b) { return {sub(a.low, b.low), sub(a.high, b.high)}; }
inline V16 mul(V16 a, V16 b) { return {mul(a.low, b.low), mul(a.high, b.high)}; }
inline V16 max(V16 a, V16 b) { return {max(a.low, b.low), max(a.high, b.high)}; }
inline V16 fma(V16 a, V16 b, V16 c) {
  return {fma(a.low, b.low, c.low), fma(a.high, b.high, c.high)};
}

inline M16 gt(V16 a, V16 b) { return {gt(a.low, b.low), gt(a.high, b.high)}; }
inline M16 ge(V16 a, V16 b) { return {ge(a.low, b.low), ge(a.high, b.high)}; }
inline M16 is_nan(V16 a) { return {is_nan(a.low), is_nan(a.high)}; }
inline V16 select(M16 m, V16 a, V16 b) {
  return {select(m.low, a.low, b.low), select(m.high, a.high, b.high)};
}
inline V16 keep(M16 m, V16 a) { return {keep(m.low, a.low), keep(m.high, a.high)}; }
inline V16 keep_lanes(int begin, int end, V16 a, V16 b) {
  const V8 low = select(first_lanes(end), a.low, b.low);
  const V8 high = select(first_lanes(end - 8), a.high, b.high);
  return {select(first_lanes(begin), b.low, low), select(first_lanes(begin - 8), b.high, high)};
}

inline I16 as_int(V16 a) { return {as_int(a.low), as_int(a.high)}; }
inline V16 as_float(I16 a) { return {as_float(a.low), as_float(a.high)}; }
inline I16 add(I16 a, I16 b) { return {add(a.low, b.low), add(a.high, b.high)}; }
template <int kBits>
inline I16 shift_left(I16 a) {
  return {shift_left<kBits>(a.low), shift_left<kBits>(a.high)};
}

inline V16 load16_f16(const uint16_t* p) { return {load_f16(p), load_f16(p + 8)}; }
inline V16 load16_i8(const int8_t* p) { return {load_i8(p), load_i8(p + 8)}; }

inline V8 low(V16 a) { return a.low; }
inline V8 high(V16 a) { return a.high; }
inline V16 join(V8 low, V8 high) { return {low, high}; }
inline float reduce16_max(V16 a) { return reduce8_max(max(a.low, a.high)); }

}  // namespace
}  // namespace HEADRACE_ISA_NS
}  // namespace headrace
