// The elementwise kernels over V8, for the instruction set of HEADRACE_ISA_NS.
// A tail shorter than eight lanes runs the same vector routine on padded data.
#include "common/math.h"
#include "common/v8.h"
#include "common/v8_math.h"
#include "elementwise/elementwise.h"

namespace headrace {
namespace HEADRACE_ISA_NS {
namespace {

// Rows whose sums of squares run side by side, to hide the latency of each row's single chain.
constexpr int kNormRows = 4;

// out[i] = f(x[i])
template <typename F>
inline void map(const float* x, int64_t n, float* out, F f) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) store(out + i, f(load(x + i)));
  if (i < n) {
    const int rest = static_cast<int>(n - i);
    store_part(out + i, f(load_part(x + i, rest)), rest);
  }
}

// out[i] = f(x[i], y[i])
template <typename F>
inline void map(const float* x, const float* y, int64_t n, float* out, F f) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) store(out + i, f(load(x + i), load(y + i)));
  if (i < n) {
    const int rest = static_cast<int>(n - i);
    store_part(out + i, f(load_part(x + i, rest), load_part(y + i, rest)), rest);
  }
}

template <int kRows>
inline void norm_rows(const float* x, int64_t ldx, const float* w, float eps, int32_t dim,
                      float* out, int64_t ldo) {
  V8 sum[kRows];
  for (int r = 0; r < kRows; ++r) sum[r] = zero8();
  int32_t i = 0;
  for (; i + 8 <= dim; i += 8) {
    for (int r = 0; r < kRows; ++r) {
      const V8 value = load(x + r * ldx + i);
      sum[r] = fma(value, value, sum[r]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    const float* row = x + r * ldx;
    if (i < dim) {
      const V8 value = load_part(row + i, dim - i);
      sum[r] = fma(value, value, sum[r]);
    }
    const V8 mean = div(splat(reduce8(sum[r])), splat(static_cast<float>(dim)));
    const V8 inverse = div(splat(1.0f), sqrt(add(mean, splat(eps))));
    map(row, w, dim, out + r * ldo,
        [inverse](V8 value, V8 weight) { return mul(mul(value, inverse), weight); });
  }
}

// a' = a*cos - b*sin, b' = b*cos + a*sin
inline void rotate(V8& a, V8& b, V8 cosine, V8 sine) {
  const V8 turned = fma(a, cosine, neg(mul(b, sine)));
  b = fma(b, cosine, mul(a, sine));
  a = turned;
}

// Pairs p[0] p[1], p[2] p[3], ...: `count` of them, at most eight.
inline void load_pairs(const float* p, int count, V8& first, V8& second) {
  unzip(load_some(p, 2 * count), load_some(p + 8, 2 * count - 8), first, second);
}

inline void rotate_interleaved(float* head, int count, V8 cosine, V8 sine) {
  V8 a;
  V8 b;
  load_pairs(head, count, a, b);
  rotate(a, b, cosine, sine);
  V8 low;
  V8 high;
  zip(a, b, low, high);
  store_some(head, low, 2 * count);
  store_some(head + 8, high, 2 * count - 8);
}

inline void rotate_halves(float* head, int32_t pairs, int count, V8 cosine, V8 sine) {
  V8 a = load_some(head, count);
  V8 b = load_some(head + pairs, count);
  rotate(a, b, cosine, sine);
  store_some(head, a, count);
  store_some(head + pairs, b, count);
}

// K of one head goes down a column of its block, V along a row.
inline void store_halves(const float* k, const float* v, int32_t dim, uint16_t* keys,
                         uint16_t* values) {
  for (int32_t d = 0; d < dim; d += 8) {
    uint16_t lanes[8];
    store_f16(lanes, load(k + d));
    for (int i = 0; i < 8; ++i) keys[(d + i) * kBlockLen] = lanes[i];
    store_f16(values + d, load(v + d));
  }
}

// Scale of `dim` values as signed bytes, see attention/attention.h.
struct ByteScale {
  float scale;
  float inverse;  // 0 where all codes are

  ByteScale(const float* x, int32_t dim) {
    V8 highest = zero8();
    V8 poison = zero8();  // 0 * x is NaN for a NaN and for an infinity
    for (int32_t d = 0; d < dim; d += 8) {
      const V8 value = load(x + d);
      highest = max(highest, abs(value));
      poison = fma(value, zero8(), poison);
    }
    const float amax = reduce8_max(highest);
    const bool is_finite = bits(is_nan(poison)) == 0;
    const bool is_zero = is_finite && amax < 0x1p-100f;
    scale = is_finite ? amax / 127.0f : __builtin_nanf("");
    inverse = 127.0f / amax;
    if (is_zero) scale = 0.0f;
    if (is_zero || !is_finite) inverse = 0.0f;
  }
};

// The low byte of 1.5 * 2^23 + n is that of the integer n: adding it rounds to nearest even. What
// is not finite has code 0.
inline void store_codes(const ByteScale& scale, const float* x, int32_t dim, uint8_t* codes,
                        int32_t stride) {
  const V8 shift = splat(0x1.8p23f);
  const V8 inverse = splat(scale.inverse);
  for (int32_t d = 0; d < dim; d += 8) {
    uint32_t lanes[8];
    float shifted[8];
    const V8 code = mul(load(x + d), inverse);
    store(shifted, add(keep(lt(abs(code), splat(128.0f)), code), shift));
    __builtin_memcpy(lanes, shifted, sizeof(lanes));
    for (int i = 0; i < 8; ++i) codes[int64_t{d + i} * stride] = static_cast<uint8_t>(lanes[i]);
  }
}

}  // namespace

void rmsnorm(const float* x, int64_t ldx, const float* w, float eps, int32_t rows, int32_t dim,
             float* out, int64_t ldo) {
  int32_t r = 0;
  for (; r + kNormRows <= rows; r += kNormRows) {
    norm_rows<kNormRows>(x + r * ldx, ldx, w, eps, dim, out + r * ldo, ldo);
  }
  for (; r < rows; ++r) norm_rows<1>(x + r * ldx, ldx, w, eps, dim, out + r * ldo, ldo);
}

void rope_angles(const int32_t* positions, int32_t rows, const double* inv_freq, int32_t pairs,
                 float* cos_sin) {
  for (int32_t r = 0; r < rows; ++r) {
    const double position = static_cast<double>(positions[r]);
    for (int32_t i = 0; i < pairs; ++i) {
      const CosSin value = cos_sin64(position * inv_freq[i]);
      *cos_sin++ = value.cos;
      *cos_sin++ = value.sin;
    }
  }
}

void rope(float* x, int64_t ldx, int32_t rows, int32_t num_heads, int32_t head_dim,
          const float* cos_sin, int32_t pairs, bool interleaved) {
  for (int32_t r = 0; r < rows; ++r) {
    const float* angles = cos_sin + static_cast<int64_t>(r) * 2 * pairs;
    for (int32_t i = 0; i < pairs; i += 8) {
      const int count = pairs - i < 8 ? pairs - i : 8;
      V8 cosine;
      V8 sine;
      load_pairs(angles + 2 * i, count, cosine, sine);
      float* head = x + r * ldx + (interleaved ? 2 * i : i);
      for (int32_t h = 0; h < num_heads; ++h, head += head_dim) {
        if (interleaved) {
          rotate_interleaved(head, count, cosine, sine);
        } else {
          rotate_halves(head, pairs, count, cosine, sine);
        }
      }
    }
  }
}

void kv_store(KVType type, const float* k, const float* v, int32_t num_kv_heads, int32_t head_dim,
              uint8_t* block, int32_t slot) {
  const int64_t part_bytes = kv_part_bytes(type, head_dim);
  for (int32_t h = 0; h < num_kv_heads; ++h, k += head_dim, v += head_dim) {
    if (type == KVType::i8) {
      auto* scales = reinterpret_cast<float*>(block + 2 * part_bytes);
      const ByteScale key(k, head_dim);
      const ByteScale value(v, head_dim);
      scales[slot] = key.scale;
      scales[kBlockLen + slot] = value.scale;
      store_codes(key, k, head_dim, block + slot, kBlockLen);
      store_codes(value, v, head_dim, block + part_bytes + int64_t{slot} * head_dim, 1);
    } else {
      auto* keys = reinterpret_cast<uint16_t*>(block);
      auto* values = reinterpret_cast<uint16_t*>(block + part_bytes) + int64_t{slot} * head_dim;
      store_halves(k, v, head_dim, keys + slot, values);
    }
    block += kv_head_bytes(type, head_dim);
  }
}

void silu_gate(const float* x, int64_t ldx, int32_t rows, int32_t dim, float* out, int64_t ldo) {
  for (int32_t r = 0; r < rows; ++r) {
    const float* gate = x + r * ldx;
    map(gate, gate + dim, dim, out + r * ldo, [](V8 g, V8 up) { return mul(silu(g), up); });
  }
}

void gelu_gate(const float* x, int64_t ldx, int32_t rows, int32_t dim, float* out, int64_t ldo) {
  for (int32_t r = 0; r < rows; ++r) {
    const float* gate = x + r * ldx;
    map(gate, gate + dim, dim, out + r * ldo, [](V8 g, V8 up) { return mul(gelu_tanh(g), up); });
  }
}

void add(float* x, int64_t ldx, const float* y, int64_t ldy, int32_t rows, int32_t dim) {
  for (int32_t r = 0; r < rows; ++r) {
    map(x + r * ldx, y + r * ldy, dim, x + r * ldx, [](V8 a, V8 b) { return add(a, b); });
  }
}

void scale(float* x, int64_t n, float factor) {
  const V8 wide = splat(factor);
  map(x, n, x, [wide](V8 value) { return mul(value, wide); });
}

void softcap(float* x, int64_t n, float cap) {
  const V8 wide = splat(cap);
  map(x, n, x, [wide](V8 value) { return mul(wide, tanh(div(value, wide))); });
}

}  // namespace HEADRACE_ISA_NS
}  // namespace headrace
