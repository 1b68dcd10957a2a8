// The ladders of attention: one query over a long context, and a chunk of a prompt.
#include <immintrin.h>

#include <cmath>
#include <cstring>
#include <numeric>

#include "attention/attend.h"
#include "common/f16.h"
#include "lab/lab.h"

namespace headrace::lab {
namespace {

constexpr int32_t kDim = 64;
constexpr int32_t kGroup = 3;  // query heads of the one KV head
constexpr int32_t kContext = 2048;

struct Problem {
  int32_t rows;  // the last ones of the context
  std::vector<int32_t> positions;
  std::vector<int32_t> table;
  Aligned<float> q;
  Aligned<float> out;
  Aligned<uint16_t> keys_by_key;    // [key][dim] halves: another layout, for the first rungs
  Aligned<uint16_t> values_by_key;  // [key][dim]
  Aligned<uint8_t> halves;          // the cache as float16
  Aligned<uint8_t> bytes;           // and as int8
  Aligned<float> scratch;

  static constexpr int64_t kHalfBlock = kv_head_bytes(KVType::f16, kDim);
  static constexpr int64_t kByteBlock = kv_head_bytes(KVType::i8, kDim);

  explicit Problem(int32_t num_rows)
      : rows(num_rows),
        positions(static_cast<size_t>(num_rows)),
        table(kContext / kBlockLen),
        q(static_cast<size_t>(num_rows) * kGroup * kDim),
        out(static_cast<size_t>(num_rows) * kGroup * kDim),
        keys_by_key(kContext * kDim),
        values_by_key(kContext * kDim),
        halves(kContext / kBlockLen * kHalfBlock),
        bytes(kContext / kBlockLen * kByteBlock),
        scratch(static_cast<size_t>(headrace::attend_scratch_floats(kGroup, 1, kDim))) {
    std::iota(positions.begin(), positions.end(), kContext - rows);
    std::iota(table.begin(), table.end(), 0);
    std::mt19937 random(4);
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < q.size(); ++i) q[i] = normal(random);
    const KernelTable& kernels = scalar_table();
    for (int32_t j = 0; j < kContext; ++j) {
      float k[kDim], v[kDim];
      for (int d = 0; d < kDim; ++d) {
        k[d] = normal(random);
        v[d] = normal(random);
        keys_by_key[static_cast<size_t>(j * kDim + d)] = f32_to_f16(k[d]);
        values_by_key[static_cast<size_t>(j * kDim + d)] = f32_to_f16(v[d]);
      }
      const int32_t block = j / kBlockLen, slot = j % kBlockLen;
      kernels.kv_store(KVType::f16, k, v, 1, kDim, halves.data() + block * kHalfBlock, slot);
      kernels.kv_store(KVType::i8, k, v, 1, kDim, bytes.data() + block * kByteBlock, slot);
    }
  }

  // Queries of `heads` heads from `head` on, as if there were no others.
  AttnParams params(KVType type, int32_t head, int32_t heads) {
    AttnParams p{};
    p.q = q.data() + head * kDim;
    p.ldq = kGroup * kDim;
    p.out = out.data() + head * kDim;
    p.ldo = kGroup * kDim;
    p.kv = type == KVType::f16 ? halves.data() : bytes.data();
    p.block_bytes = type == KVType::f16 ? kHalfBlock : kByteBlock;
    p.kv_type = type;
    p.num_heads = heads;
    p.num_kv_heads = 1;
    p.head_dim = kDim;
    p.scale = 0.125f;
    p.positions = positions.data();
    return p;
  }

  double multiply_adds() const {
    double keys = 0.0;
    for (const int32_t position : positions) keys += position + 1;
    return keys * kGroup * kDim * 2;
  }
};

// The kernel of a table, `step` rows and `heads` heads at a time.
void attend(Problem& p, const char* isa, int32_t step, int32_t heads, KVType type = KVType::f16) {
  const KernelTable& kernels = *choose_table(isa);
  for (int32_t head = 0; head < kGroup; head += heads) {
    const AttnParams params = p.params(type, head, heads);
    for (int32_t row = 0; row < p.rows; row += step) {
      AttnItem item{};
      item.row_begin = row;
      item.num_rows = std::min(step, p.rows - row);
      item.split_begin = 0;
      item.split_end = (p.positions[static_cast<size_t>(row + item.num_rows - 1)]) / kSplitLen + 1;
      item.table = p.table.data();
      item.partial = -1;
      item.shared = -1;
      kernels.attend_item(params, item, p.scratch.data());
    }
  }
}

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")

__attribute__((always_inline)) inline __m256 load_halves(const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

float dot(const float* q, const uint16_t* key) {
  __m256 sum = _mm256_setzero_ps();
  for (int d = 0; d < kDim; d += 8) {
    sum = _mm256_fmadd_ps(_mm256_loadu_ps(q + d), load_halves(key + d), sum);
  }
  float lanes[8], total = 0.0f;
  _mm256_storeu_ps(lanes, sum);
  for (const float lane : lanes) total += lane;
  return total;
}

void add_value(float weight, const uint16_t* value, float* acc) {
  for (int d = 0; d < kDim; d += 8) {
    const __m256 sum =
        _mm256_fmadd_ps(_mm256_set1_ps(weight), load_halves(value + d), _mm256_loadu_ps(acc + d));
    _mm256_storeu_ps(acc + d, sum);
  }
}

void three_passes(Problem& p) {
  std::vector<float> scores(kContext);
  for (int head = 0; head < kGroup; ++head) {
    const float* q = p.q.data() + head * kDim;
    float highest = -INFINITY;
    for (int j = 0; j < kContext; ++j) {
      scores[static_cast<size_t>(j)] = 0.125f * dot(q, p.keys_by_key.data() + j * kDim);
      highest = std::max(highest, scores[static_cast<size_t>(j)]);
    }
    float acc[kDim] = {}, sum = 0.0f;
    for (int j = 0; j < kContext; ++j) {
      const float e = std::exp(scores[static_cast<size_t>(j)] - highest);
      sum += e;
      add_value(e, p.values_by_key.data() + j * kDim, acc);
    }
    for (int d = 0; d < kDim; ++d) p.out[static_cast<size_t>(head * kDim + d)] = acc[d] / sum;
  }
}

void online(Problem& p) {
  for (int head = 0; head < kGroup; ++head) {
    const float* q = p.q.data() + head * kDim;
    float acc[kDim] = {}, sum = 0.0f, highest = -INFINITY;
    for (int j = 0; j < kContext; ++j) {
      const float s = 0.125f * dot(q, p.keys_by_key.data() + j * kDim);
      if (s > highest) {
        const float shrink = std::exp(highest - s);
        sum *= shrink;
        for (float& a : acc) a *= shrink;
        highest = s;
      }
      const float e = std::exp(s - highest);
      sum += e;
      add_value(e, p.values_by_key.data() + j * kDim, acc);
    }
    for (int d = 0; d < kDim; ++d) p.out[static_cast<size_t>(head * kDim + d)] = acc[d] / sum;
  }
}

#pragma GCC pop_options

std::vector<Rung> decode_rungs(Problem& p) {
  return {
      {"scalar table", "the definition: splits of 256 keys, lane = key, eight virtual lanes",
       "slow", Needs::nothing, Match::equal, [&p] { attend(p, "scalar", 1, kGroup); }},
      {"three passes", "scores, softmax, values; keys as rows, a horizontal sum per key",
       "bound by exp of libm and by horizontal sums", Needs::avx2, Match::close,
       [&p] { three_passes(p); }},
      {"online softmax", "one pass; rescale when a larger score comes",
       "no faster: scores of one context fit the first cache anyway; rejected", Needs::avx2,
       Match::close, [&p] { online(p); }},
      {"lane = key, head by head", "keys stored transposed: no horizontal sum; vector exp",
       "3x, but K and V are read and widened once per head", Needs::avx2, Match::equal,
       [&p] { attend(p, "avx2", 1, 1); }},
      {"avx2 table", "the heads of a group share one pass", "2x", Needs::avx2, Match::equal,
       [&p] { attend(p, "avx2", 1, kGroup); }},
      {"avx512 table", "a block is one register of 16 keys", "1.5x", Needs::avx512, Match::equal,
       [&p] { attend(p, "avx512", 1, kGroup); }},
      {"int8 cache", "half the bytes; codes widened to floats, scales once per key",
       "slower here, where the context is cached: it pays when memory is the limit", Needs::avx512,
       Match::coarse, [&p] { attend(p, "avx512", 1, kGroup, KVType::i8); }},
  };
}

std::vector<Rung> prefill_rungs(Problem& p) {
  const int32_t full = kItemLines / kGroup;
  return {
      {"scalar table", "the definition", "slow", Needs::nothing, Match::equal,
       [&p, full] { attend(p, "scalar", full, kGroup); }},
      {"row by row", "a prompt as so many queries", "as decode: every row widens all of K and V",
       Needs::avx2, Match::equal, [&p] { attend(p, "avx2", 1, kGroup); }},
      {"one tile", "two rows x three heads: six lines fill the registers",
       "2x: 12 accumulators hide the latency of fma", Needs::avx2, Match::equal,
       [&p] { attend(p, "avx2", 2, kGroup); }},
      {"avx2 table", "32 rows at a time: K and V of a block meet all tiles while they are near",
       "1.2x", Needs::avx2, Match::equal, [&p, full] { attend(p, "avx2", full, kGroup); }},
      {"avx512 table", "sixteen lanes, 24 accumulators", "1.7x", Needs::avx512, Match::equal,
       [&p, full] { attend(p, "avx512", full, kGroup); }},
  };
}

Ladder ladder(const char* name, const char* problem, double work, const char* unit,
              std::shared_ptr<Problem> data, std::vector<Rung> rungs) {
  Problem& p = *data;
  return {name,
          problem,
          work * 1e-9,
          unit,
          [&p] { return p.out.floats(); },
          [&p] { std::memset(p.out.data(), 0xff, p.out.size() * sizeof(float)); },
          std::move(rungs),
          data};
}

}  // namespace

std::vector<Ladder> attention_ladders() {
  auto one = std::make_shared<Problem>(1);
  auto chunk = std::make_shared<Problem>(64);
  const double kv_bytes = double{kContext} * kDim * 2 * sizeof(uint16_t);
  return {ladder("decode", "1 row x 3 heads over 2,048 keys of 64 floats; bytes of a float16 cache",
                 kv_bytes, "GB/s", one, decode_rungs(*one)),
          ladder("prefill", "the last 64 rows of 2,048, 3 heads of 64 floats, softmax included",
                 2.0 * chunk->multiply_adds(), "Gflop/s", chunk, prefill_rungs(*chunk))};
}

}  // namespace headrace::lab
