// Float functions on eight lanes, exp on sixteen too: fixed polynomials, no libm, equal bits on
// every instruction set.
#pragma once

#include "common/v16.h"
#include "common/v8.h"

namespace headrace {
namespace HEADRACE_ISA_NS {
namespace {

constexpr float kExpLowest = -87.0f;           // below: 0, so that no result is denormal
constexpr float kExpHighest = 0x1.62e42ep+6f;  // above: infinity
constexpr float kInfinity = __builtin_inff();

// exp(x) for x < 88.7 or NaN; error below 1 ulp, exp(+-0) = 1, exp(x < -87) = 0.
// x = n ln 2 + r: exp(r) = 1 + (r + r^2 q(r)), |r| <= ln 2 / 2, q minimax (error 2^-28); 2^n goes
// straight into the exponent bits: of n * 2^23 + 1.5 * 2^23 only n survives the shift.
template <typename V>
inline V exp_not_large(V x) {
  const V magic = fill<V>(0x1.8p23f);
  const V shifted = fma(x, fill<V>(0x1.715476p+0f), magic);
  const V n = sub(shifted, magic);
  V r = fma(n, fill<V>(-0x1.62e43p-1f), x);
  r = fma(n, fill<V>(0x1.05c61p-29f), r);
  V q = fill<V>(0.001381435008104672f);
  q = fma(q, r, fill<V>(0.00836885094096731f));
  q = fma(q, r, fill<V>(0.04166840065145393f));
  q = fma(q, r, fill<V>(0.16666519526421453f));
  q = fma(q, r, fill<V>(0.4999999337411597f));
  const V p = add(fill<V>(1.0f), fma(mul(r, r), q, r));
  const V scaled = as_float(add(as_int(p), shift_left<23>(as_int(shifted))));
  const V tiny_is_zero = keep(ge(x, fill<V>(kExpLowest)), scaled);
  return select(is_nan(x), x, tiny_is_zero);
}

// As exp_not_large, and infinity above.
inline V8 exp(V8 x) {
  return select(gt(x, splat(kExpHighest)), splat(kInfinity), exp_not_large(x));
}

// x / (1 + exp(-x))
inline V8 silu(V8 x) { return div(x, add(splat(1.0f), exp(neg(x)))); }

// Odd polynomial below 0.625 (minimax, error 2^-27.8), else 1 - 2 / (exp(2|x|) + 1).
inline V8 tanh(V8 x) {
  const V8 one = splat(1.0f);
  const V8 magnitude = abs(x);
  const V8 z = mul(x, x);
  V8 p = splat(-0.005717046805095248f);
  p = fma(p, z, splat(0.02065058899485651f));
  p = fma(p, z, splat(-0.05374349857087928f));
  p = fma(p, z, splat(0.13331491290422445f));
  p = fma(p, z, splat(-0.3333328392516649f));
  const V8 small = fma(mul(magnitude, z), p, magnitude);
  const V8 large = sub(one, div(splat(2.0f), add(exp(add(magnitude, magnitude)), one)));
  return copysign(select(lt(magnitude, splat(0.625f)), small, large), x);
}

// 0.5 x (1 + tanh(u)) = x / (1 + exp(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3)
inline V8 gelu_tanh(V8 x) {
  constexpr float kLinear = -1.5957691216057308f;  // -2 sqrt(2/pi)
  constexpr float kCubic = -0.07135481627260025f;  // kLinear * 0.044715
  const V8 minus_2u = mul(x, fma(mul(x, x), splat(kCubic), splat(kLinear)));
  return div(x, add(splat(1.0f), exp(minus_2u)));
}

}  // namespace
}  // namespace HEADRACE_ISA_NS
}  // namespace headrace
