// Matrix products of the scalar table: the definition in gemm/gemm.h, operation by operation, and
// the oracle of every other table.
#define HEADRACE_ISA_NS scalar

#include <algorithm>
#include <cstring>

#include "common/f16.h"
#include "common/v8.h"
#include "gemm/gemm.h"
#include "gemm/layout.h"

namespace headrace::scalar {
namespace {

// Rows that share one decoding of the weights.
constexpr int kRows = 4;

// One group of 32 inputs of a tile, decoded. I = sum over halves h of
// multiplier[h] * (sum over the half of code * a - offset * A_h).
struct Group {
  int16_t codes[kGroupLen][kTileN];
  int32_t multipliers[2][kTileN];
  float scale[kTileN];
  float minimum[kTileN];  // m_w; used only where the type has one
};

float half_at(const uint8_t* x8, int o) {
  uint16_t half;
  std::memcpy(&half, x8 + 2 * o, sizeof(half));
  return f16_to_f32(half);
}

template <int kBits>
void decode_codes(const uint8_t* src, Group& group) {
  const uint8_t* upper = src + kNibblesBytes;
  for (int k = 0; k < kGroupLen; ++k) {
    const int s = k / 4;
    for (int o = 0; o < kTileN; ++o) {
      const int lane = 4 * o + k % 4;
      int code = (src[32 * (s % 4) + lane] >> (s < 4 ? 0 : 4)) & 15;
      if (kBits == 5) code |= ((upper[lane] >> s) & 1) << 4;
      if (kBits == 6) code |= ((upper[32 * (s / 4) + lane] >> (2 * (s % 4))) & 3) << 4;
      group.codes[k][o] = static_cast<int16_t>(code);
    }
  }
}

void set_multipliers(Group& group) {
  for (int o = 0; o < kTileN; ++o) group.multipliers[0][o] = group.multipliers[1][o] = 1;
}

template <int kBitsPerCode, bool kHasMinimum>
struct Flat {
  using Act = A8Group;
  static constexpr bool kMinimum = kHasMinimum;
  static constexpr int kOffset = kHasMinimum ? 0 : 1 << (kBitsPerCode - 1);
  static constexpr int kGroups = 1;
  static constexpr size_t kScale = kNibblesBytes + (kBitsPerCode == 5 ? kBitsBytes : 0);
  static constexpr size_t kBytes = kScale + (kHasMinimum ? 2 : 1) * kX8Bytes;

  static void decode(const uint8_t* unit, int, Group& group) {
    decode_codes<kBitsPerCode>(unit, group);
    set_multipliers(group);
    for (int o = 0; o < kTileN; ++o) {
      group.scale[o] = half_at(unit + kScale, o);
      if (kMinimum) group.minimum[o] = half_at(unit + kScale + kX8Bytes, o);
    }
  }
};

struct Q8_0 {
  using Act = A16Group;
  static constexpr bool kMinimum = false;
  static constexpr int kOffset = 0;
  static constexpr int kGroups = 1;
  static constexpr size_t kBytes = kQ8_0Bytes;

  static void decode(const uint8_t* unit, int, Group& group) {
    constexpr int kPlace[4] = {0, 2, 1, 3};
    set_multipliers(group);
    for (int o = 0; o < kTileN; ++o) {
      for (int k = 0; k < kGroupLen; ++k) {
        const uint8_t byte = unit[32 * (k / 4) + 4 * o + kPlace[k % 4]];
        group.codes[k][o] = static_cast<int8_t>(byte);
      }
      group.scale[o] = half_at(unit + kBytesBytes, o);
    }
  }
};

template <int kBitsPerCode>
struct Super45 {
  using Act = A8Group;
  static constexpr bool kMinimum = true;
  static constexpr int kOffset = 0;
  static constexpr int kGroups = kSuperGroups;
  static constexpr size_t kGroupBytes = kNibblesBytes + (kBitsPerCode == 5 ? kBitsBytes : 0);
  static constexpr size_t kBytes = kSuperCodes + kSuperGroups * kGroupBytes;

  static void decode(const uint8_t* unit, int g, Group& group) {
    decode_codes<kBitsPerCode>(unit + kSuperCodes + kGroupBytes * g, group);
    for (int o = 0; o < kTileN; ++o) {
      const int32_t multiplier = unit[kSuperScales + kTileN * g + o];
      group.multipliers[0][o] = group.multipliers[1][o] = multiplier;
      group.scale[o] = half_at(unit, o);
      const float minimum = static_cast<float>(unit[kSuperMinima + kTileN * g + o]);
      group.minimum[o] = -(half_at(unit + kX8Bytes, o) * minimum);
    }
  }
};

struct Q6_K {
  using Act = A8Group;
  static constexpr bool kMinimum = false;
  static constexpr int kOffset = 32;
  static constexpr int kGroups = kSuperGroups;
  static constexpr size_t kBytes = kQ6_KBytes;

  static void decode(const uint8_t* unit, int g, Group& group) {
    decode_codes<6>(unit + kQ6_KCodes + (kNibblesBytes + kPairsBytes) * g, group);
    for (int o = 0; o < kTileN; ++o) {
      const uint8_t* scales = unit + kQ6_KScales + 16 * g + 2 * o;
      group.multipliers[0][o] = static_cast<int8_t>(scales[0]);
      group.multipliers[1][o] = static_cast<int8_t>(scales[1]);
      group.scale[o] = half_at(unit, o);
    }
  }
};

int32_t half_sum(const A8Group& a, int h) { return a.half_sums[h]; }
int32_t half_sum(const A16Group&, int) { return 0; }
float scaled_sum(const A8Group& a) { return a.scaled_sum; }
float scaled_sum(const A16Group&) { return 0.0f; }

template <class F>
void add_group(const Group& w, const typename F::Act& a, float (&acc)[kTileN]) {
  int32_t total[kTileN] = {};
  for (int h = 0; h < 2; ++h) {
    int32_t sum[kTileN] = {};
    for (int k = 16 * h; k < 16 * h + 16; ++k) {
      for (int o = 0; o < kTileN; ++o) sum[o] += w.codes[k][o] * a.codes[k];
    }
    for (int o = 0; o < kTileN; ++o) {
      total[o] += w.multipliers[h][o] * (sum[o] - F::kOffset * half_sum(a, h));
    }
  }
  for (int o = 0; o < kTileN; ++o) {
    acc[o] = fma1(static_cast<float>(total[o]), w.scale[o] * a.scale, acc[o]);
    if (F::kMinimum) acc[o] = fma1(w.minimum[o], scaled_sum(a), acc[o]);
  }
}

template <class F>
void tile_rows(const uint8_t* w, int32_t k, const uint8_t* act, size_t act_bytes, int num_rows,
               float (&acc)[kRows][kTileN]) {
  using Act = typename F::Act;
  for (int32_t i = 0; i < k; i += F::kGroups * kGroupLen, w += F::kBytes) {
    for (int g = 0; g < F::kGroups; ++g, act += sizeof(Act)) {
      Group group;
      F::decode(w, g, group);
      for (int r = 0; r < num_rows; ++r) {
        Act a;
        std::memcpy(&a, act + act_bytes * r, sizeof(a));
        add_group<F>(group, a, acc[r]);
      }
    }
  }
}

// Float weights: `load` gives weight o of the unit of one input.
template <size_t kElement, class Load>
void float_tile_rows(const uint8_t* w, int32_t k, const uint8_t* act, size_t act_bytes,
                     int num_rows, float (&acc)[kRows][kTileN], Load load) {
  for (int32_t i = 0; i < k; ++i, w += kElement * kTileN) {
    for (int r = 0; r < num_rows; ++r) {
      float a;
      std::memcpy(&a, act + act_bytes * r + sizeof(a) * i, sizeof(a));
      for (int o = 0; o < kTileN; ++o) acc[r][o] = fma1(a, load(w, o), acc[r][o]);
    }
  }
}

uint16_t load16(const uint8_t* w, int o) {
  uint16_t half;
  std::memcpy(&half, w + 2 * o, sizeof(half));
  return half;
}

float load32(const uint8_t* w, int o) {
  float value;
  std::memcpy(&value, w + 4 * o, sizeof(value));
  return value;
}

void any_tile_rows(DType dtype, const uint8_t* w, int32_t k, const uint8_t* act, size_t act_bytes,
                   int num_rows, float (&acc)[kRows][kTileN]) {
  switch (dtype) {
    case DType::f32:
      return float_tile_rows<4>(w, k, act, act_bytes, num_rows, acc, load32);
    case DType::f16:
      return float_tile_rows<2>(w, k, act, act_bytes, num_rows, acc,
                                [](const uint8_t* p, int o) { return half_at(p, o); });
    case DType::bf16:
      return float_tile_rows<2>(w, k, act, act_bytes, num_rows, acc,
                                [](const uint8_t* p, int o) { return bf16_to_f32(load16(p, o)); });
    case DType::q4_0:
      return tile_rows<Flat<4, false>>(w, k, act, act_bytes, num_rows, acc);
    case DType::q4_1:
      return tile_rows<Flat<4, true>>(w, k, act, act_bytes, num_rows, acc);
    case DType::q5_0:
      return tile_rows<Flat<5, false>>(w, k, act, act_bytes, num_rows, acc);
    case DType::q5_1:
      return tile_rows<Flat<5, true>>(w, k, act, act_bytes, num_rows, acc);
    case DType::q8_0:
      return tile_rows<Q8_0>(w, k, act, act_bytes, num_rows, acc);
    case DType::q4_k:
      return tile_rows<Super45<4>>(w, k, act, act_bytes, num_rows, acc);
    case DType::q5_k:
      return tile_rows<Super45<5>>(w, k, act, act_bytes, num_rows, acc);
    case DType::q6_k:
      return tile_rows<Q6_K>(w, k, act, act_bytes, num_rows, acc);
  }
}

}  // namespace

void gemm(const PackedMatrix& w, int32_t tile_begin, int32_t tile_end, const uint8_t* act,
          int32_t rows, const ProductOut& to) {
  if (w.act != act_kind(w.dtype)) return float_gemm(w, tile_begin, tile_end, act, rows, to);
  const size_t act_bytes = act_row_bytes(w.act, w.k);
  for (int32_t tile = tile_begin; tile < tile_end; ++tile) {
    const int32_t first = tile * kTileN;
    const int32_t num_outputs = std::min(kTileN, w.n - first);
    for (int32_t row = 0; row < rows; row += kRows) {
      float acc[kRows][kTileN] = {};
      const int num_rows = std::min(kRows, rows - row);
      any_tile_rows(w.dtype, w.data + w.tile_bytes * tile, w.k, act + act_bytes * row, act_bytes,
                    num_rows, acc);
      for (int r = 0; r < num_rows; ++r) {
        float* dst = to.out + (row + r) * to.ldo + first;
        for (int o = 0; o < num_outputs; ++o) {
          const float y = to.bias ? acc[r][o] + to.bias[first + o] : acc[r][o];
          dst[o] = to.accumulate ? dst[o] + y : y;
        }
      }
    }
  }
}

}  // namespace headrace::scalar
