// V8 in plain C++: the equality oracle of every other implementation. See v8.h.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/f16.h"

namespace headrace {
namespace HEADRACE_ISA_NS {
namespace {

struct V8 {
  float lane[8];
};
struct I8 {
  int32_t lane[8];
};
struct M8 {
  uint32_t lane[8];  // all ones or zero
};
struct D8 {
  double lane[8];
};

// One lane of fma. Without the instruction: the product is exact in double; the sum is rounded to
// odd (its low bit set when inexact), after which rounding to float is the single correct rounding.
inline float fma1(float a, float b, float c) {
#if defined(__FMA__) || defined(__aarch64__)
  return __builtin_fmaf(a, b, c);
#else
  const double product = static_cast<double>(a) * static_cast<double>(b);
  const double addend = static_cast<double>(c);
  const double sum = product + addend;
  const double part = sum - product;
  const double error = (product - (sum - part)) + (addend - part);  // exact; NaN if not finite
  const bool inexact = (error > 0.0) | (error < 0.0);
  int64_t word = __builtin_bit_cast(int64_t, sum);
  const int64_t toward_error = (error > 0.0) == (sum > 0.0) ? 1 : -1;
  word += (inexact & ((word & 1) == 0)) ? toward_error : 0;
  return static_cast<float>(__builtin_bit_cast(double, word));
#endif
}

#define HEADRACE_LANES for (int i = 0; i < 8; ++i)

inline V8 zero8() { return V8{}; }
inline V8 splat(float x) {
  V8 r;
  HEADRACE_LANES r.lane[i] = x;
  return r;
}
inline V8 load(const float* p) {
  V8 r;
  HEADRACE_LANES r.lane[i] = p[i];
  return r;
}
inline V8 load_part(const float* p, int n, float fill = 0.0f) {
  V8 r;
  HEADRACE_LANES r.lane[i] = i < n ? p[i] : fill;
  return r;
}
inline void store(float* p, V8 a) { HEADRACE_LANES p[i] = a.lane[i]; }
inline void store_part(float* p, V8 a, int n) {
  for (int i = 0; i < n; ++i) p[i] = a.lane[i];
}

#define HEADRACE_UNARY(name, expression)     \
  inline V8 name(V8 a) {                     \
    V8 r;                                    \
    HEADRACE_LANES r.lane[i] = (expression); \
    return r;                                \
  }
#define HEADRACE_BINARY(type, name, expression) \
  inline type name(V8 a, V8 b) {                \
    type r;                                     \
    HEADRACE_LANES r.lane[i] = (expression);    \
    return r;                                   \
  }

HEADRACE_UNARY(neg, -a.lane[i])
HEADRACE_UNARY(abs, __builtin_fabsf(a.lane[i]))
HEADRACE_UNARY(sqrt, __builtin_sqrtf(a.lane[i]))
HEADRACE_BINARY(V8, add, a.lane[i] + b.lane[i])
HEADRACE_BINARY(V8, sub, a.lane[i] - b.lane[i])
HEADRACE_BINARY(V8, mul, a.lane[i] * b.lane[i])
HEADRACE_BINARY(V8, div, a.lane[i] / b.lane[i])
HEADRACE_BINARY(V8, max, a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i])
HEADRACE_BINARY(V8, copysign, __builtin_copysignf(a.lane[i], b.lane[i]))
HEADRACE_BINARY(M8, lt, a.lane[i] < b.lane[i] ? ~0u : 0u)
HEADRACE_BINARY(M8, gt, a.lane[i] > b.lane[i] ? ~0u : 0u)
HEADRACE_BINARY(M8, ge, a.lane[i] >= b.lane[i] ? ~0u : 0u)
HEADRACE_BINARY(M8, eq, a.lane[i] == b.lane[i] ? ~0u : 0u)

#undef HEADRACE_UNARY
#undef HEADRACE_BINARY

inline V8 fma(V8 a, V8 b, V8 c) {
  V8 r;
  HEADRACE_LANES r.lane[i] = fma1(a.lane[i], b.lane[i], c.lane[i]);
  return r;
}

inline M8 is_nan(V8 a) {
  M8 r;
  HEADRACE_LANES r.lane[i] = a.lane[i] != a.lane[i] ? ~0u : 0u;
  return r;
}
inline M8 first_lanes(int n) {
  M8 r;
  HEADRACE_LANES r.lane[i] = i < n ? ~0u : 0u;
  return r;
}
inline M8 both(M8 a, M8 b) {
  M8 r;
  HEADRACE_LANES r.lane[i] = a.lane[i] & b.lane[i];
  return r;
}
inline int bits(M8 m) {
  int r = 0;
  HEADRACE_LANES r |= static_cast<int>(m.lane[i] & 1u) << i;
  return r;
}
inline V8 select(M8 m, V8 a, V8 b) {
  V8 r;
  HEADRACE_LANES r.lane[i] = m.lane[i] != 0 ? a.lane[i] : b.lane[i];
  return r;
}
inline V8 keep(M8 m, V8 a) { return select(m, a, zero8()); }

inline I8 as_int(V8 a) { return __builtin_bit_cast(I8, a); }
inline V8 as_float(I8 a) { return __builtin_bit_cast(V8, a); }
inline I8 add(I8 a, I8 b) {
  I8 r;
  HEADRACE_LANES r.lane[i] =
      static_cast<int32_t>(static_cast<uint32_t>(a.lane[i]) + static_cast<uint32_t>(b.lane[i]));
  return r;
}
template <int kBits>
inline I8 shift_left(I8 a) {
  I8 r;
  HEADRACE_LANES r.lane[i] = static_cast<int32_t>(static_cast<uint32_t>(a.lane[i]) << kBits);
  return r;
}
#define HEADRACE_INT(signature, expression)  \
  inline I8 signature {                      \
    I8 r;                                    \
    HEADRACE_LANES r.lane[i] = (expression); \
    return r;                                \
  }

HEADRACE_INT(shift_right(I8 a, int n), static_cast<int32_t>(static_cast<uint32_t>(a.lane[i]) >> n))
HEADRACE_INT(mask(I8 a, int32_t bits), a.lane[i] & bits)
HEADRACE_INT(join(I8 a, I8 b), a.lane[i] | b.lane[i])
HEADRACE_INT(flip(I8 a, I8 b), a.lane[i] ^ b.lane[i])
HEADRACE_INT(splat_int(int32_t x), x)

#undef HEADRACE_INT

inline I8 load_words(const void* p) {
  I8 r;
  std::memcpy(&r, p, sizeof(r));
  return r;
}
inline V8 to_float(I8 a) {
  V8 r;
  HEADRACE_LANES r.lane[i] = static_cast<float>(a.lane[i]);
  return r;
}

inline V8 load_f16(const uint16_t* p) {
  V8 r;
  HEADRACE_LANES r.lane[i] = f16_to_f32(p[i]);
  return r;
}
inline V8 load_i8(const int8_t* p) {
  V8 r;
  HEADRACE_LANES r.lane[i] = static_cast<float>(p[i]);
  return r;
}
inline void store_f16(uint16_t* p, V8 a) { HEADRACE_LANES p[i] = f32_to_f16(a.lane[i]); }

inline void unzip(V8 a, V8 b, V8& even, V8& odd) {
  for (int i = 0; i < 4; ++i) {
    even.lane[i] = a.lane[2 * i];
    odd.lane[i] = a.lane[2 * i + 1];
    even.lane[i + 4] = b.lane[2 * i];
    odd.lane[i + 4] = b.lane[2 * i + 1];
  }
}
inline void zip(V8 even, V8 odd, V8& a, V8& b) {
  for (int i = 0; i < 4; ++i) {
    a.lane[2 * i] = even.lane[i];
    a.lane[2 * i + 1] = odd.lane[i];
    b.lane[2 * i] = even.lane[i + 4];
    b.lane[2 * i + 1] = odd.lane[i + 4];
  }
}

inline float reduce8(V8 a) {
  const float* x = a.lane;
  return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
}
inline float reduce8_max(V8 a) {
  float r[8];
  HEADRACE_LANES r[i] = a.lane[i];
  for (int half = 4; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) r[i] = r[i] > r[i + half] ? r[i] : r[i + half];
  }
  return r[0];
}

inline D8 zero_d8() { return D8{}; }
inline D8 widen(V8 a) {
  D8 r;
  HEADRACE_LANES r.lane[i] = static_cast<double>(a.lane[i]);
  return r;
}
inline D8 splat_d8(double x) {
  D8 r;
  HEADRACE_LANES r.lane[i] = x;
  return r;
}
inline V8 narrow(D8 a) {
  V8 r;
  HEADRACE_LANES r.lane[i] = static_cast<float>(a.lane[i]);
  return r;
}
inline D8 add(D8 a, D8 b) {
  D8 r;
  HEADRACE_LANES r.lane[i] = a.lane[i] + b.lane[i];
  return r;
}
inline D8 sub(D8 a, D8 b) {
  D8 r;
  HEADRACE_LANES r.lane[i] = a.lane[i] - b.lane[i];
  return r;
}
inline D8 div(D8 a, D8 b) {
  D8 r;
  HEADRACE_LANES r.lane[i] = a.lane[i] / b.lane[i];
  return r;
}
inline double reduce8(D8 a) {
  const double* x = a.lane;
  return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
}

#undef HEADRACE_LANES

}  // namespace
}  // namespace HEADRACE_ISA_NS
}  // namespace headrace
