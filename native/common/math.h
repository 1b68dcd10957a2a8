// Scalar double math of our own: the same bits on every machine, as nothing here is fused or from
// libm. Functions have internal linkage, so that files of any instruction set may include this.
#pragma once

#include <cstdint>

namespace headrace {

// Natural logarithm, error below 1 ulp. log64(0) = -inf, log64(x < 0) = NaN, log64(1) = +0.
// x = 2^e (1 + f) with 1 + f in (sqrt(1/2), sqrt(2)), s = f / (2 + f):
// log(1 + f) = 2 atanh(s) = f - (f^2/2 - s (f^2/2 + R)), R = s^2 P(s^2), P minimax (error 2^-65).
static inline double log64(double x) {
  constexpr double kLn2High = 0x1.62e42feep-1;  // 32 bits: e * kLn2High is exact
  constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
  constexpr uint64_t kInf = 0x7FF0000000000000;
  uint64_t bits = __builtin_bit_cast(uint64_t, x);
  int32_t exponent = 0;
  if (bits - 0x0010000000000000 >= kInf - 0x0010000000000000) {  // not a positive normal number
    if (bits << 1 == 0) return __builtin_bit_cast(double, kInf | 0x8000000000000000);
    if (bits == kInf) return x;
    if (bits > kInf) return __builtin_bit_cast(double, 0x7FF8000000000000);
    bits = __builtin_bit_cast(uint64_t, x * 0x1p54);
    exponent = -54;
  }
  // Moves the boundary of the exponent from 1 to sqrt(1/2).
  const uint64_t offset = bits - 0x3FE6A09E667F3BCD;
  exponent += static_cast<int32_t>(static_cast<int64_t>(offset) >> 52);
  bits -= offset & 0xFFF0000000000000;
  const double f = __builtin_bit_cast(double, bits) - 1.0;
  const double s = f / (2.0 + f);
  const double z = s * s;
  const double z2 = z * z;
  const double even =
      0x1.9999999999e06p-2 +
      z2 * (0x1.c71c7259aa3eap-3 + z2 * (0x1.3b20b4deb27aap-3 + z2 * 0x1.0f6a9a3427b24p-3));
  const double odd =
      0x1.5555555555555p-1 +
      z2 * (0x1.249249242aaf5p-2 + z2 * (0x1.745cddff6631ep-3 + z2 * 0x1.0f5bf6083e8fcp-3));
  const double r = z * (odd + z * even);
  const double half_square = 0.5 * f * f;
  const double e = static_cast<double>(exponent);
  return e * kLn2High - ((half_square - (s * (half_square + r) + e * kLn2Low)) - f);
}

struct CosSin {
  float cos;
  float sin;
};

// float32 cosine and sine of a float64 angle, |angle| <= 1e7: below 0.5001 ulp of float32.
// The angle loses n * pi/2 in three parts of 30, 30 and 53 bits, so that n * part is exact.
static inline CosSin cos_sin64(double angle) {
  constexpr double kRound = 0x1.8p52;  // adding it rounds to an integer, nearest even
  const double shifted = angle * 0x1.45f306dc9c883p-1 + kRound;
  const double n = shifted - kRound;
  const uint64_t quadrant = __builtin_bit_cast(uint64_t, shifted);
  const double r =
      ((angle - n * 0x1.921fb54p+0) - n * 0x1.10b46118p-30) - n * 0x1.313198a2e0370p-61;
  const double z = r * r;
  const double sin_tail =
      -0.16666666666666632 +
      z * (0.00833333333332237 +
           z * (-0.00019841269829771308 +
                z * (2.755731367870166e-06 +
                     z * (-2.505075596538654e-08 + z * 1.5896666662568313e-10))));
  const double cos_tail =
      0.0416666666666666 +
      z * (-0.0013888888888874064 +
           z * (2.4801587289443533e-05 +
                z * (-2.7557314340665426e-07 +
                     z * (2.087572162367232e-09 + z * -1.1359559294243683e-11))));
  const double sine = r + r * z * sin_tail;
  const double cosine = 1.0 - 0.5 * z + z * z * cos_tail;
  const float c = static_cast<float>((quadrant & 1) != 0 ? sine : cosine);
  const float s = static_cast<float>((quadrant & 1) != 0 ? cosine : sine);
  return {((quadrant + 1) & 2) != 0 ? -c : c, (quadrant & 2) != 0 ? -s : s};
}

}  // namespace headrace
