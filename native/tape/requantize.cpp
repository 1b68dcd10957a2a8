#include "tape/requantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/f16.h"
#include "common/table.h"

namespace headrace {
namespace {

constexpr int32_t kBlock = 32;
constexpr float kMaxF16 = 65504.0f;
constexpr uint16_t kNanF16 = 0x7e00;

bool is_float(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
}

uint16_t f32_to_bf16(float value) {
  const uint32_t bits = bits_from_float(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// The float16 code of a scale, and its value.
float store_half(float value, uint8_t* dst) {
  const uint16_t half = f32_to_f16(std::clamp(value, -kMaxF16, kMaxF16));
  std::memcpy(dst, &half, sizeof(half));
  return f16_to_f32(half);
}

// Nearest even integer of value / scale, kept in range; both are finite.
int32_t nearest_code(float value, float scale, float low, float high) {
  if (scale == 0.0f) return 0;
  constexpr float kShift = 12582912.0f;  // 1.5 * 2^23: adding it leaves no fraction bits
  return static_cast<int32_t>((std::clamp(value / scale, low, high) + kShift) - kShift);
}

// A block with a NaN or infinity cannot be coded: its scale becomes NaN, and so does every product.
bool poison(const float* x, uint8_t* dst, size_t bytes) {
  if (std::all_of(x, x + kBlock, [](float value) { return std::isfinite(value); })) return false;
  std::memset(dst, 0, bytes);
  std::memcpy(dst, &kNanF16, sizeof(kNanF16));
  return true;
}

// Stored: d, 32 signed bytes.
void quantize_q8_0(const float* x, uint8_t* dst) {
  if (poison(x, dst, 2 + kBlock)) return;
  float amax = 0.0f;
  for (int32_t i = 0; i < kBlock; ++i) amax = std::max(amax, std::fabs(x[i]));
  const float d = store_half(amax / 127.0f, dst);
  for (int32_t i = 0; i < kBlock; ++i) {
    dst[2 + i] = static_cast<uint8_t>(nearest_code(x[i], d, -127.0f, 127.0f));
  }
}

// Stored: d, m, 16 bytes; byte i holds code i low and code i + 16 high.
void quantize_q4_1(const float* x, uint8_t* dst) {
  if (poison(x, dst, 4 + kBlock / 2)) return;
  const auto [low, high] = std::minmax_element(x, x + kBlock);
  const float m = store_half(*low, dst + 2);
  const float d = store_half((*high - m) / 15.0f, dst);
  const auto code = [&](float value) { return nearest_code(value - m, d, 0.0f, 15.0f); };
  for (int32_t i = 0; i < kBlock / 2; ++i) {
    dst[4 + i] = static_cast<uint8_t>(code(x[i]) | (code(x[i + kBlock / 2]) << 4));
  }
}

}  // namespace

bool can_requantize(DType from, DType to) {
  return is_float(from) && (to == DType::bf16 || to == DType::q8_0 || to == DType::q4_1);
}

void widen(DType from, const uint8_t* src, int64_t count, float* dst) {
  if (from == DType::f32) {
    std::memcpy(dst, src, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    uint16_t half;
    std::memcpy(&half, src + 2 * i, sizeof(half));
    dst[i] = from == DType::f16 ? f16_to_f32(half) : bf16_to_f32(half);
  }
}

void requantize_rows(DType from, DType to, const uint8_t* src, int32_t rows, int32_t k,
                     float* floats, uint8_t* dst) {
  const size_t src_bytes = static_cast<size_t>(k) * static_cast<size_t>(block_bytes(from));
  const size_t block = static_cast<size_t>(block_bytes(to));
  for (int32_t r = 0; r < rows; ++r, src += src_bytes) {
    widen(from, src, k, floats);
    for (int32_t i = 0; i < k; i += block_weights(to), dst += block) {
      if (to == DType::q8_0) quantize_q8_0(floats + i, dst);
      if (to == DType::q4_1) quantize_q4_1(floats + i, dst);
      if (to == DType::bf16) {
        const uint16_t half = f32_to_bf16(floats[i]);
        std::memcpy(dst, &half, sizeof(half));
      }
    }
  }
}

}  // namespace headrace
