// The ladder of the 8-bit product (Q8_0) with int16 activations.
#include <immintrin.h>

#include <cmath>
#include <cstring>

#include "common/f16.h"
#include "common/table.h"
#include "gemm/layout.h"
#include "lab/lab.h"

namespace headrace::lab {
namespace {

struct Problem {
  int32_t n, k, rows, groups;
  Aligned<uint8_t> stored;  // [n][groups]: d, 32 signed codes
  Aligned<uint8_t> packed;
  Aligned<float> x;
  Aligned<uint8_t> act16;  // as the contract has it
  Aligned<uint8_t> act8;   // as others have it
  Aligned<float> out;
  PackedMatrix w;
  size_t act16_bytes, act8_bytes;

  static constexpr size_t kStoredBytes = 34;

  Problem(int32_t outputs, int32_t inputs, int32_t num_rows)
      : n(outputs),
        k(inputs),
        rows(num_rows),
        groups(inputs / kGroupLen),
        stored(static_cast<size_t>(n) * groups * kStoredBytes),
        packed(static_cast<size_t>(n / kTileN) * packed_tile_bytes(DType::q8_0, k)),
        x(static_cast<size_t>(rows) * k),
        act16(static_cast<size_t>(rows) * act_row_bytes(ActKind::a16, k)),
        act8(static_cast<size_t>(rows) * act_row_bytes(ActKind::a8, k)),
        out(static_cast<size_t>(rows) * n),
        act16_bytes(act_row_bytes(ActKind::a16, k)),
        act8_bytes(act_row_bytes(ActKind::a8, k)) {
    std::mt19937 random(2);
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < x.size(); ++i) x[i] = normal(random);
    for (size_t b = 0; b < static_cast<size_t>(n) * groups; ++b) {
      uint8_t* block = stored.data() + b * kStoredBytes;
      const uint16_t scale = f32_to_f16(0.001f + 0.0001f * std::abs(normal(random)));
      std::memcpy(block, &scale, 2);
      for (int i = 2; i < 34; ++i) block[i] = static_cast<uint8_t>(random() % 255 - 127);
    }
    const KernelTable& table = scalar_table();
    table.pack_tiles(DType::q8_0, stored.data(), n, k, packed.data(), 0, n / kTileN);
    table.quantize_rows(ActKind::a16, x.data(), k, rows, k, act16.data(), act16_bytes);
    table.quantize_rows(ActKind::a8, x.data(), k, rows, k, act8.data(), act8_bytes);
    w = {DType::q8_0, ActKind::a16, n, k, packed_tile_bytes(DType::q8_0, k), packed.data()};
  }

  const uint8_t* block(int32_t o, int32_t g) {
    return stored.data() + (static_cast<size_t>(o) * groups + g) * kStoredBytes;
  }
  const A16Group& group(int32_t r, int32_t g) {
    return *reinterpret_cast<A16Group*>(act16.data() + act16_bytes * r + sizeof(A16Group) * g);
  }
  const A8Group& group8(int32_t r, int32_t g) {
    return *reinterpret_cast<A8Group*>(act8.data() + act8_bytes * r + sizeof(A8Group) * g);
  }
};

uint16_t scale_bits(const uint8_t* block) {
  uint16_t bits;
  std::memcpy(&bits, block, 2);
  return bits;
}

void definition(Problem& p) {
  for (int32_t r = 0; r < p.rows; ++r) {
    for (int32_t o = 0; o < p.n; ++o) {
      float acc = 0.0f;
      for (int32_t g = 0; g < p.groups; ++g) {
        const uint8_t* block = p.block(o, g);
        const A16Group& a = p.group(r, g);
        int32_t sum = 0;
        for (int i = 0; i < kGroupLen; ++i) sum += static_cast<int8_t>(block[2 + i]) * a.codes[i];
        acc = std::fma(static_cast<float>(sum), f16_to_f32(scale_bits(block)) * a.scale, acc);
      }
      p.out[static_cast<size_t>(r) * p.n + o] = acc;
    }
  }
}

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")

#define LAB_INLINE __attribute__((always_inline)) inline

LAB_INLINE __m256i load(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
LAB_INLINE int32_t word(const int16_t* p) {
  int32_t value;
  std::memcpy(&value, p, 4);
  return value;
}

// 8-bit activations, magnitudes times signed codes: what has no unsigned operand does.
void abs_and_sign(Problem& p) {
  for (int32_t r = 0; r < p.rows; ++r) {
    for (int32_t o = 0; o < p.n; ++o) {
      __m256 acc = _mm256_setzero_ps();
      for (int32_t g = 0; g < p.groups; ++g) {
        const uint8_t* block = p.block(o, g);
        const A8Group& a = p.group8(r, g);
        const __m256i codes = load(block + 2);
        const __m256i products =
            _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(load(a.codes), codes));
        const __m256i sums = _mm256_madd_epi16(products, _mm256_set1_epi16(1));
        const float scale = _cvtsh_ss(scale_bits(block)) * a.scale;
        acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums), _mm256_set1_ps(scale), acc);
      }
      float lanes[8], total = 0.0f;
      _mm256_storeu_ps(lanes, acc);
      for (const float lane : lanes) total += lane;
      p.out[static_cast<size_t>(r) * p.n + o] = total;
    }
  }
}

template <int T, int R>
LAB_INLINE void tiles_by_rows(Problem& p, int32_t tile, int32_t row) {
  __m256 acc[T][R];
  for (int t = 0; t < T; ++t) {
    for (int r = 0; r < R; ++r) acc[t][r] = _mm256_setzero_ps();
  }
  for (int32_t g = 0; g < p.groups; ++g) {
    const uint8_t* unit[T];
    for (int t = 0; t < T; ++t) unit[t] = p.w.data + p.w.tile_bytes * (tile + t) + kQ8_0Bytes * g;
    __m256i sums[T][R];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      __m256i low[T], high[T];
      for (int t = 0; t < T; ++t) {
        const __m256i raw = load(unit[t] + 32 * i);
        low[t] = _mm256_srai_epi16(_mm256_slli_epi16(raw, 8), 8);
        high[t] = _mm256_srai_epi16(raw, 8);
      }
      for (int r = 0; r < R; ++r) {
        const A16Group& a = p.group(row + r, g);
        for (int t = 0; t < T; ++t) {
          const __m256i both = _mm256_add_epi32(
              _mm256_madd_epi16(low[t], _mm256_set1_epi32(word(a.codes + 4 * i))),
              _mm256_madd_epi16(high[t], _mm256_set1_epi32(word(a.codes + 4 * i + 2))));
          sums[t][r] = i == 0 ? both : _mm256_add_epi32(sums[t][r], both);
          asm("" : "+x"(sums[t][r]));
        }
      }
    }
    for (int t = 0; t < T; ++t) {
      const __m256 d =
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(unit[t] + kBytesBytes)));
      for (int r = 0; r < R; ++r) {
        const __m256 scale = _mm256_mul_ps(d, _mm256_set1_ps(p.group(row + r, g).scale));
        acc[t][r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[t][r]), scale, acc[t][r]);
      }
    }
  }
  for (int t = 0; t < T; ++t) {
    for (int r = 0; r < R; ++r) {
      _mm256_storeu_ps(p.out.data() + static_cast<size_t>(row + r) * p.n + kTileN * (tile + t),
                       acc[t][r]);
    }
  }
}

template <int T, int R>
void tiled(Problem& p) {
  for (int32_t tile = 0; tile + T <= p.n / kTileN; tile += T) {
    for (int32_t row = 0; row + R <= p.rows; row += R) tiles_by_rows<T, R>(p, tile, row);
  }
}

#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")

LAB_INLINE __m512i beside(const uint8_t* a, const uint8_t* b) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(load(a)), load(b), 1);
}

template <int R>
LAB_INLINE void two_tiles(Problem& p, int32_t tile, int32_t row) {
  __m512 acc[R];
  for (int r = 0; r < R; ++r) acc[r] = _mm512_setzero_ps();
  for (int32_t g = 0; g < p.groups; ++g) {
    const uint8_t* a_unit = p.w.data + p.w.tile_bytes * tile + kQ8_0Bytes * g;
    const uint8_t* b_unit = a_unit + p.w.tile_bytes;
    __m512i sums[R];
    for (int r = 0; r < R; ++r) sums[r] = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      const __m512i raw = beside(a_unit + 32 * i, b_unit + 32 * i);
      const __m512i low = _mm512_srai_epi16(_mm512_slli_epi16(raw, 8), 8);
      const __m512i high = _mm512_srai_epi16(raw, 8);
      for (int r = 0; r < R; ++r) {
        const A16Group& a = p.group(row + r, g);
        sums[r] = _mm512_dpwssd_epi32(sums[r], low, _mm512_set1_epi32(word(a.codes + 4 * i)));
        sums[r] = _mm512_dpwssd_epi32(sums[r], high, _mm512_set1_epi32(word(a.codes + 4 * i + 2)));
      }
    }
    const __m512 d = _mm512_cvtph_ps(
        _mm256_set_m128i(_mm_loadu_si128(reinterpret_cast<const __m128i*>(b_unit + kBytesBytes)),
                         _mm_loadu_si128(reinterpret_cast<const __m128i*>(a_unit + kBytesBytes))));
    for (int r = 0; r < R; ++r) {
      const __m512 scale = _mm512_mul_ps(d, _mm512_set1_ps(p.group(row + r, g).scale));
      acc[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[r]), scale, acc[r]);
    }
  }
  for (int r = 0; r < R; ++r) {
    _mm512_storeu_ps(p.out.data() + static_cast<size_t>(row + r) * p.n + kTileN * tile, acc[r]);
  }
}

template <int R>
void vnni(Problem& p) {
  for (int32_t tile = 0; tile + 2 <= p.n / kTileN; tile += 2) {
    for (int32_t row = 0; row + R <= p.rows; row += R) two_tiles<R>(p, tile, row);
  }
}

#pragma GCC pop_options

void product(Problem& p, const char* isa) {
  choose_table(isa)->gemm(p.w, 0, p.n / kTileN, p.act16.data(), p.rows,
                          {p.out.data(), p.n, nullptr, false});
}

}  // namespace

std::vector<Ladder> gemm8_ladders() {
  auto problem = std::make_shared<Problem>(1536, 576, 64);
  Problem& p = *problem;
  const auto run = [&p](void (*f)(Problem&)) { return [&p, f] { f(p); }; };
  Ladder ladder{
      "gemm8",
      "Q8_0, 1536 outputs x 576 inputs, 64 rows, int16 activations",
      2.0 * p.n * p.k * p.rows * 1e-9,
      "Gop/s",
      [&p] { return p.out.floats(); },
      [&p] { std::memset(p.out.data(), 0xff, p.out.size() * sizeof(float)); },
      {
          {"definition", "one loop per sum, as gemm/gemm.h writes it",
           "the compiler vectorises it: tens of Gop/s", Needs::nothing, Match::equal,
           run(definition)},
          {"int8 activations", "magnitudes times signed codes: both operands 8 bits (llama.cpp)",
           "as fast as int16 where a multiplier is the limit, and 1/256 of the accuracy: rejected",
           Needs::avx2, Match::coarse, run(abs_and_sign)},
          {"widened, one row", "interleaved outputs; two shifts give int16 operands",
           "half the rate of 4 bits: 16 products per multiply, and unpacking is as dear",
           Needs::avx2, Match::equal, run(tiled<1, 1>)},
          {"four rows", "weights are widened once for four rows", "1.4x", Needs::avx2, Match::equal,
           run(tiled<1, 4>)},
          {"two tiles by four rows", "a broadcast serves two tiles", "1.1x", Needs::avx2,
           Match::equal, run(tiled<2, 4>)},
          {"avx2 table", "the same, over blocks of rows", "equal here", Needs::avx2, Match::equal,
           [&p] { product(p, "avx2"); }},
          {"vpdpwssd, two tiles x 4", "32 products and the addition in one instruction", "2x",
           Needs::avx512, Match::equal, run(vnni<4>)},
          {"vpdpwssd, two tiles x 8", "half the widening again", "1.2x", Needs::avx512,
           Match::equal, run(vnni<8>)},
          {"avx512 table", "the one that ships", "equal to the best above", Needs::avx512,
           Match::equal, [&p] { product(p, "avx512"); }},
      },
      problem};
  return {ladder};
}

}  // namespace headrace::lab
