// The ladder of the 4-bit product (Q4_1): rows of activations times packed weights.
#include <immintrin.h>

#include <cmath>
#include <cstring>
#include <memory>

#include "common/f16.h"
#include "common/table.h"
#include "gemm/layout.h"
#include "lab/lab.h"

namespace headrace::lab {
namespace {

constexpr size_t kStoredBytes = 20;  // d, m, 16 bytes of nibbles: a Q4_1 block of 32 weights

struct Problem {
  int32_t n, k, rows;
  int32_t groups;
  Aligned<uint8_t> stored;  // [n][groups] blocks
  Aligned<uint8_t> packed;  // tiles of 8 outputs
  Aligned<float> x;         // [rows][k]
  Aligned<uint8_t> act;     // [rows] quantized rows
  Aligned<float> out;       // [rows][n]
  PackedMatrix w;
  size_t act_bytes;

  Problem(int32_t outputs, int32_t inputs, int32_t num_rows)
      : n(outputs),
        k(inputs),
        rows(num_rows),
        groups(inputs / kGroupLen),
        stored(static_cast<size_t>(n) * groups * kStoredBytes),
        packed(static_cast<size_t>(n / kTileN) * packed_tile_bytes(DType::q4_1, k)),
        x(static_cast<size_t>(rows) * k),
        act(static_cast<size_t>(rows) * act_row_bytes(ActKind::a8, k)),
        out(static_cast<size_t>(rows) * n),
        act_bytes(act_row_bytes(ActKind::a8, k)) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < x.size(); ++i) x[i] = normal(random);
    for (size_t b = 0; b < static_cast<size_t>(n) * groups; ++b) {
      uint8_t* block = stored.data() + b * kStoredBytes;
      const uint16_t scale = f32_to_f16(0.01f + 0.001f * std::abs(normal(random)));
      const uint16_t minimum = f32_to_f16(-0.07f + 0.001f * normal(random));
      std::memcpy(block, &scale, 2);
      std::memcpy(block + 2, &minimum, 2);
      for (int i = 4; i < 20; ++i) block[i] = static_cast<uint8_t>(random());
    }
    const KernelTable& table = scalar_table();
    table.pack_tiles(DType::q4_1, stored.data(), n, k, packed.data(), 0, n / kTileN);
    table.quantize_rows(ActKind::a8, x.data(), k, rows, k, act.data(), act_bytes);
    w = {DType::q4_1, ActKind::a8, n, k, packed_tile_bytes(DType::q4_1, k), packed.data()};
  }

  const uint8_t* block(int32_t o, int32_t g) const {
    return const_cast<Problem*>(this)->stored.data() +
           (static_cast<size_t>(o) * groups + g) * kStoredBytes;
  }
  const A8Group& group(int32_t r, int32_t g) {
    return *reinterpret_cast<const A8Group*>(act.data() + act_bytes * r + sizeof(A8Group) * g);
  }
};

float half(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, 2);
  return f16_to_f32(bits);
}

void definition(Problem& p) {
  for (int32_t r = 0; r < p.rows; ++r) {
    for (int32_t o = 0; o < p.n; ++o) {
      float acc = 0.0f;
      for (int32_t g = 0; g < p.groups; ++g) {
        const uint8_t* block = p.block(o, g);
        const A8Group& a = p.group(r, g);
        int32_t sum = 0;
        for (int i = 0; i < 16; ++i) {
          sum += (block[4 + i] & 15) * a.codes[i] + (block[4 + i] >> 4) * a.codes[16 + i];
        }
        acc = std::fma(static_cast<float>(sum), half(block) * a.scale, acc);
        acc = std::fma(half(block + 2), a.scaled_sum, acc);
      }
      p.out[static_cast<size_t>(r) * p.n + o] = acc;
    }
  }
}

// Float arithmetic on dequantized weights: what a program does that has only a float product.
void floats(Problem& p) {
  std::vector<float> row(static_cast<size_t>(p.k));
  for (int32_t o = 0; o < p.n; ++o) {
    scalar_table().unpack_row(p.w, o, row.data());
    for (int32_t r = 0; r < p.rows; ++r) {
      float acc = 0.0f;
      const float* x = p.x.data() + static_cast<size_t>(r) * p.k;
      for (int32_t i = 0; i < p.k; ++i) acc = std::fma(x[i], row[static_cast<size_t>(i)], acc);
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
LAB_INLINE __m256i broadcast4(const int8_t* p) {
  int32_t word;
  std::memcpy(&word, p, 4);
  return _mm256_set1_epi32(word);
}
LAB_INLINE __m256 halves(const uint8_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

// 32 codes of a stored block, in order.
LAB_INLINE __m256i codes_of(const uint8_t* block) {
  const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(block + 4));
  const __m256i both = _mm256_set_m128i(_mm_srli_epi16(raw, 4), raw);
  return _mm256_and_si256(both, _mm256_set1_epi8(15));
}

LAB_INLINE __m256i dot32(__m256i codes, __m256i act) {
  return _mm256_madd_epi16(_mm256_maddubs_epi16(codes, act), _mm256_set1_epi16(1));
}

LAB_INLINE int32_t sum8(__m256i v) {
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

void along_k(Problem& p) {
  for (int32_t r = 0; r < p.rows; ++r) {
    for (int32_t o = 0; o < p.n; ++o) {
      float acc = 0.0f;
      for (int32_t g = 0; g < p.groups; ++g) {
        const uint8_t* block = p.block(o, g);
        const A8Group& a = p.group(r, g);
        const int32_t sum = sum8(dot32(codes_of(block), load(a.codes)));
        acc = __builtin_fmaf(static_cast<float>(sum),
                             _cvtsh_ss(*reinterpret_cast<const uint16_t*>(block)) * a.scale, acc);
        acc = __builtin_fmaf(_cvtsh_ss(*reinterpret_cast<const uint16_t*>(block + 2)), a.scaled_sum,
                             acc);
      }
      p.out[static_cast<size_t>(r) * p.n + o] = acc;
    }
  }
}

void eight_float_sums(Problem& p) {
  for (int32_t r = 0; r < p.rows; ++r) {
    for (int32_t o = 0; o < p.n; ++o) {
      __m256 acc = _mm256_setzero_ps();
      float minima = 0.0f;
      for (int32_t g = 0; g < p.groups; ++g) {
        const uint8_t* block = p.block(o, g);
        const A8Group& a = p.group(r, g);
        const __m256 sums = _mm256_cvtepi32_ps(dot32(codes_of(block), load(a.codes)));
        const float scale = _cvtsh_ss(*reinterpret_cast<const uint16_t*>(block)) * a.scale;
        acc = _mm256_fmadd_ps(sums, _mm256_set1_ps(scale), acc);
        minima += _cvtsh_ss(*reinterpret_cast<const uint16_t*>(block + 2)) * a.scaled_sum;
      }
      float lanes[8];
      _mm256_storeu_ps(lanes, acc);
      float total = minima;
      for (const float lane : lanes) total += lane;
      p.out[static_cast<size_t>(r) * p.n + o] = total;
    }
  }
}

// T tiles by R rows; how the products of a group are added up is what the rungs differ in.
enum class Widen { every, once };

template <int T, int R, Widen widen>
LAB_INLINE void tiles_by_rows(Problem& p, int32_t tile, int32_t row) {
  __m256 acc[T][R];
  for (int t = 0; t < T; ++t) {
    for (int r = 0; r < R; ++r) acc[t][r] = _mm256_setzero_ps();
  }
  const __m256i mask = _mm256_set1_epi8(15);
  const __m256i ones = _mm256_set1_epi16(1);
  for (int32_t g = 0; g < p.groups; ++g) {
    const uint8_t* unit[T];
    for (int t = 0; t < T; ++t) unit[t] = p.w.data + p.w.tile_bytes * (tile + t) + kQ4_1Bytes * g;
    __m256i sums[T][R];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      __m256i low[T], high[T];
      for (int t = 0; t < T; ++t) {
        const __m256i raw = load(unit[t] + 32 * i);
        low[t] = _mm256_and_si256(raw, mask);
        high[t] = _mm256_and_si256(_mm256_srli_epi16(raw, 4), mask);
      }
      for (int r = 0; r < R; ++r) {
        const A8Group& a = p.group(row + r, g);
        for (int t = 0; t < T; ++t) {
          const __m256i first = _mm256_maddubs_epi16(low[t], broadcast4(a.codes + 4 * i));
          const __m256i second = _mm256_maddubs_epi16(high[t], broadcast4(a.codes + 4 * i + 16));
          if (widen == Widen::every) {
            const __m256i both =
                _mm256_add_epi32(_mm256_madd_epi16(first, ones), _mm256_madd_epi16(second, ones));
            sums[t][r] = i == 0 ? both : _mm256_add_epi32(sums[t][r], both);
          } else {
            const __m256i both = _mm256_add_epi16(first, second);
            sums[t][r] = i == 0 ? both : _mm256_add_epi16(sums[t][r], both);
          }
          asm("" : "+x"(sums[t][r]));
        }
      }
    }
    for (int t = 0; t < T; ++t) {
      const __m256 d = halves(unit[t] + kNibblesBytes);
      const __m256 m = halves(unit[t] + kNibblesBytes + kX8Bytes);
      for (int r = 0; r < R; ++r) {
        const A8Group& a = p.group(row + r, g);
        const __m256i sum =
            widen == Widen::every ? sums[t][r] : _mm256_madd_epi16(sums[t][r], ones);
        acc[t][r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum),
                                    _mm256_mul_ps(d, _mm256_broadcast_ss(&a.scale)), acc[t][r]);
        acc[t][r] = _mm256_fmadd_ps(m, _mm256_broadcast_ss(&a.scaled_sum), acc[t][r]);
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

template <int T, int R, Widen widen>
void tiled(Problem& p) {
  for (int32_t tile = 0; tile + T <= p.n / kTileN; tile += T) {
    for (int32_t row = 0; row + R <= p.rows; row += R) tiles_by_rows<T, R, widen>(p, tile, row);
  }
}

#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")

// One tile, two steps in a register: no insertion, but the halves must be added at every group.
void two_steps_wide(Problem& p) {
  const __m512i mask = _mm512_set1_epi8(15);
  for (int32_t tile = 0; tile < p.n / kTileN; ++tile) {
    for (int32_t row = 0; row < p.rows; ++row) {
      __m256 acc = _mm256_setzero_ps();
      for (int32_t g = 0; g < p.groups; ++g) {
        const uint8_t* unit = p.w.data + p.w.tile_bytes * tile + kQ4_1Bytes * g;
        const A8Group& a = p.group(row, g);
        __m512i sum = _mm512_setzero_si512();
        for (int i = 0; i < 4; i += 2) {
          const __m512i raw = _mm512_loadu_si512(unit + 32 * i);
          const __m512i first =
              _mm512_inserti64x4(_mm512_castsi256_si512(broadcast4(a.codes + 4 * i)),
                                 broadcast4(a.codes + 4 * i + 4), 1);
          const __m512i second =
              _mm512_inserti64x4(_mm512_castsi256_si512(broadcast4(a.codes + 4 * i + 16)),
                                 broadcast4(a.codes + 4 * i + 20), 1);
          sum = _mm512_dpbusd_epi32(sum, _mm512_and_si512(raw, mask), first);
          sum = _mm512_dpbusd_epi32(sum, _mm512_and_si512(_mm512_srli_epi16(raw, 4), mask), second);
        }
        const __m256i total =
            _mm256_add_epi32(_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64(sum, 1));
        const __m256 d = halves(unit + kNibblesBytes);
        acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(total),
                              _mm256_mul_ps(d, _mm256_broadcast_ss(&a.scale)), acc);
        acc = _mm256_fmadd_ps(halves(unit + kNibblesBytes + kX8Bytes),
                              _mm256_broadcast_ss(&a.scaled_sum), acc);
      }
      _mm256_storeu_ps(p.out.data() + static_cast<size_t>(row) * p.n + kTileN * tile, acc);
    }
  }
}

// Two tiles side by side: 16 outputs of one step in a register.
template <int R>
LAB_INLINE void two_tiles(Problem& p, int32_t tile, int32_t row) {
  const __m512i mask = _mm512_set1_epi8(15);
  __m512 acc[R];
  for (int r = 0; r < R; ++r) acc[r] = _mm512_setzero_ps();
  for (int32_t g = 0; g < p.groups; ++g) {
    const uint8_t* a_unit = p.w.data + p.w.tile_bytes * tile + kQ4_1Bytes * g;
    const uint8_t* b_unit = a_unit + p.w.tile_bytes;
    __m512i sums[R];
    for (int r = 0; r < R; ++r) sums[r] = _mm512_setzero_si512();
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m512i raw = _mm512_inserti64x4(_mm512_castsi256_si512(load(a_unit + 32 * i)),
                                             load(b_unit + 32 * i), 1);
      const __m512i low = _mm512_and_si512(raw, mask);
      const __m512i high = _mm512_and_si512(_mm512_srli_epi16(raw, 4), mask);
      for (int r = 0; r < R; ++r) {
        const A8Group& a = p.group(row + r, g);
        int32_t first, second;
        std::memcpy(&first, a.codes + 4 * i, 4);
        std::memcpy(&second, a.codes + 4 * i + 16, 4);
        sums[r] = _mm512_dpbusd_epi32(sums[r], low, _mm512_set1_epi32(first));
        sums[r] = _mm512_dpbusd_epi32(sums[r], high, _mm512_set1_epi32(second));
      }
    }
    const __m512 d = _mm512_insertf32x8(_mm512_castps256_ps512(halves(a_unit + kNibblesBytes)),
                                        halves(b_unit + kNibblesBytes), 1);
    const __m512 m =
        _mm512_insertf32x8(_mm512_castps256_ps512(halves(a_unit + kNibblesBytes + kX8Bytes)),
                           halves(b_unit + kNibblesBytes + kX8Bytes), 1);
    for (int r = 0; r < R; ++r) {
      const A8Group& a = p.group(row + r, g);
      const __m512 scale = _mm512_mul_ps(d, _mm512_set1_ps(a.scale));
      acc[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[r]), scale, acc[r]);
      acc[r] = _mm512_fmadd_ps(m, _mm512_set1_ps(a.scaled_sum), acc[r]);
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
  choose_table(isa)->gemm(p.w, 0, p.n / kTileN, p.act.data(), p.rows,
                          {p.out.data(), p.n, nullptr, false});
}

std::vector<Rung> many_rows(Problem& p) {
  const auto run = [&p](void (*f)(Problem&)) { return [&p, f] { f(p); }; };
  return {
      {"definition", "one loop per sum, as gemm/gemm.h writes it", "a few Gop/s", Needs::nothing,
       Match::equal, run(definition)},
      {"float weights", "dequantize a row of weights, multiply floats",
       "slow: one chain of fma, and sums of another rounding; not the contract of integer codes",
       Needs::nothing, Match::coarse, run(floats)},
      {"vectors along k", "32 products in two instructions, a horizontal sum per group",
       "10x; the horizontal sum costs more than the products", Needs::avx2, Match::equal,
       run(along_k)},
      {"eight float sums", "no horizontal sum before the end: eight float accumulators (llama.cpp)",
       "2x, but the order of roundings depends on the width: rejected", Needs::avx2, Match::close,
       run(eight_float_sums)},
      {"eight outputs interleaved", "a lane is an output: no horizontal sum at all",
       "1.5x; bound by the multiplier: two multiplies per 32 products", Needs::avx2, Match::equal,
       run(tiled<1, 1, Widen::every>)},
      {"int16 sums",
       "8 pairs of 4-bit products fit int16: widen once per group, 9 multiplies for 16", "1.3x",
       Needs::avx2, Match::equal, run(tiled<1, 1, Widen::once>)},
      {"four rows", "weights are unpacked once for four rows",
       "1.3x: 3 of 5 instructions per product vector were unpacking", Needs::avx2, Match::equal,
       run(tiled<1, 4, Widen::once>)},
      {"eight rows", "twice the reuse", "slower: 16 registers do not hold it; rejected",
       Needs::avx2, Match::equal, run(tiled<1, 8, Widen::once>)},
      {"two tiles by four rows", "a broadcast of activations serves two tiles", "1.1x", Needs::avx2,
       Match::equal, run(tiled<2, 4, Widen::once>)},
      {"avx2 table", "the same, over blocks of rows, with weights requested ahead", "equal here",
       Needs::avx2, Match::equal, [&p] { product(p, "avx2"); }},
      {"two steps in 512 bits", "vpdpbusd on one tile; halves added at every group",
       "slower than two tiles: the sum of halves and two insertions per step; rejected",
       Needs::avx512, Match::equal, run(two_steps_wide)},
      {"vpdpbusd, two tiles x 4", "16 outputs in a register, no int16 step, broadcasts are free",
       "1.7x: 8 multiply-adds and 4 others per 512 products", Needs::avx512, Match::equal,
       run(vnni<4>)},
      {"vpdpbusd, two tiles x 8", "32 registers hold eight rows: half the unpacking again", "1.15x",
       Needs::avx512, Match::equal, run(vnni<8>)},
      {"avx512 table", "the one that ships", "equal to the best above", Needs::avx512, Match::equal,
       [&p] { product(p, "avx512"); }},
  };
}

std::vector<Rung> one_row(Problem& p) {
  const auto run = [&p](void (*f)(Problem&)) { return [&p, f] { f(p); }; };
  return {
      {"definition", "one loop per sum", "compute bound", Needs::nothing, Match::equal,
       run(definition)},
      {"vectors along k", "32 products in two instructions", "still compute bound", Needs::avx2,
       Match::equal, run(along_k)},
      {"int16 sums, one tile", "a stream of weights: one tile after the other",
       "the memory's speed, nearly", Needs::avx2, Match::equal, run(tiled<1, 1, Widen::once>)},
      {"int16 sums, two tiles", "two streams at once", "slower or equal: the prefetcher sees two",
       Needs::avx2, Match::equal, run(tiled<2, 1, Widen::once>)},
      {"avx2 table", "one tile, requested 2 KiB ahead", "the memory's speed", Needs::avx2,
       Match::equal, [&p] { product(p, "avx2"); }},
      {"vpdpbusd, two tiles", "fewer instructions", "no gain: memory bound", Needs::avx512,
       Match::equal, run(vnni<1>)},
      {"avx512 table", "the one that ships", "the memory's speed", Needs::avx512, Match::equal,
       [&p] { product(p, "avx512"); }},
  };
}

Ladder ladder(const char* name, int32_t n, int32_t k, int32_t rows) {
  auto problem = std::make_shared<Problem>(n, k, rows);
  Problem& p = *problem;
  const bool stream = rows == 1;
  const double work = stream ? static_cast<double>(p.packed.size()) : 2.0 * n * k * rows;
  return {name,
          "Q4_1, " + std::to_string(n) + " outputs x " + std::to_string(k) + " inputs, " +
              std::to_string(rows) + (stream ? " row, weights beyond the caches" : " rows"),
          work * 1e-9,
          stream ? "GB/s" : "Gop/s",
          [&p] { return p.out.floats(); },
          [&p] { std::memset(p.out.data(), 0xff, p.out.size() * sizeof(float)); },
          stream ? one_row(p) : many_rows(p),
          problem};
}

}  // namespace

std::vector<Ladder> gemm4_ladders() {
  return {ladder("gemm4", 1536, 576, 64), ladder("gemv4", 1 << 17, 2048, 1)};
}

}  // namespace headrace::lab
