// The ladders of the exponential: the gate of an MLP, and the log-sum-exp over a vocabulary.
#include <immintrin.h>

#include <cmath>
#include <cstring>

#include "common/table.h"
#include "lab/lab.h"

namespace headrace::lab {
namespace {

struct Problem {
  int32_t n;
  Aligned<float> x;
  Aligned<float> out;

  Problem(int32_t length, int32_t outputs)
      : n(length), x(static_cast<size_t>(2 * length)), out(static_cast<size_t>(outputs)) {
    std::mt19937 random(3);
    std::normal_distribution<float> normal(0.0f, 3.0f);
    for (size_t i = 0; i < x.size(); ++i) x[i] = normal(random);
  }
};

void libm_gate(Problem& p) {
  for (int32_t i = 0; i < p.n; ++i) {
    const auto at = static_cast<size_t>(i);
    p.out[at] = p.x[at] / (1.0f + std::exp(-p.x[at])) * p.x[static_cast<size_t>(p.n) + at];
  }
}

void libm_logsumexp(Problem& p) {
  double sum = 0.0;
  float highest = p.x[0];
  for (int32_t i = 1; i < p.n; ++i) highest = std::max(highest, p.x[static_cast<size_t>(i)]);
  for (int32_t i = 0; i < p.n; ++i) sum += std::exp(p.x[static_cast<size_t>(i)] - highest);
  p.out[0] = static_cast<float>(std::log(sum) + highest);
}

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")

// The processor's own reciprocal: 12 bits, and other bits on other processors.
void approximate_gate(Problem& p) {
  for (int32_t i = 0; i < p.n; i += 8) {
    const __m256 g = _mm256_loadu_ps(p.x.data() + i);
    const __m256 scaled = _mm256_mul_ps(g, _mm256_set1_ps(-1.44269504f));
    const __m256 n = _mm256_round_ps(scaled, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m256 r = _mm256_mul_ps(_mm256_sub_ps(scaled, n), _mm256_set1_ps(0.69314718f));
    __m256 q = _mm256_set1_ps(1.0f / 24);
    q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(1.0f / 6));
    q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(0.5f));
    q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(1.0f));
    q = _mm256_fmadd_ps(q, r, _mm256_set1_ps(1.0f));
    const __m256i bits = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
    const __m256 e = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(q), bits));
    const __m256 inverse = _mm256_rcp_ps(_mm256_add_ps(_mm256_set1_ps(1.0f), e));
    _mm256_storeu_ps(p.out.data() + i, _mm256_mul_ps(_mm256_mul_ps(g, inverse),
                                                     _mm256_loadu_ps(p.x.data() + p.n + i)));
  }
}

#pragma GCC pop_options

void gate(Problem& p, const char* isa) {
  choose_table(isa)->silu_gate(p.x.data(), 2 * p.n, 1, p.n, p.out.data(), p.n);
}

void logsumexp(Problem& p, const char* isa) {
  const KernelTable& table = *choose_table(isa);
  float highest = 0.0f;
  table.argmax(p.x.data(), p.n, &highest);
  p.out[0] = static_cast<float>(table.logsumexp(p.x.data(), p.n, highest));
}

Ladder ladder(const char* name, const char* problem, std::shared_ptr<Problem> data,
              std::vector<Rung> rungs) {
  Problem& p = *data;
  return {name,
          problem,
          p.n * 1e-9,
          "Gel/s",
          [&p] { return p.out.floats(); },
          [&p] { std::memset(p.out.data(), 0xff, p.out.size() * sizeof(float)); },
          std::move(rungs),
          data};
}

}  // namespace

std::vector<Ladder> softmax_ladders() {
  auto gated = std::make_shared<Problem>(1536, 1536);
  auto logits = std::make_shared<Problem>(49152, 1);
  Problem& g = *gated;
  Problem& l = *logits;
  return {
      ladder(
          "gate", "silu(gate) * up over 1536 floats", gated,
          {{"scalar table", "eight lanes as an array: the definition", "0.1 Gel/s", Needs::nothing,
            Match::equal, [&g] { gate(g, "scalar"); }},
           {"libm", "expf of the C library", "slow, and other bits with another library: rejected",
            Needs::nothing, Match::close, [&g] { libm_gate(g); }},
           {"approximate reciprocal", "short polynomial, the processor's 12-bit reciprocal",
            "fastest; bits differ between makers of processors: rejected", Needs::avx2,
            Match::coarse, [&g] { approximate_gate(g); }},
           {"avx2 table", "own polynomial, all operations IEEE; one division per eight",
            "bound by the division: 5 cycles per eight", Needs::avx2, Match::equal,
            [&g] { gate(g, "avx2"); }},
           {"avx512 table", "the same source", "no faster where eight lanes are the definition",
            Needs::avx512, Match::equal, [&g] { gate(g, "avx512"); }}}),
      ladder("logsumexp", "argmax and log-sum-exp over 49,152 logits", logits,
             {{"scalar table", "the definition: float32 exp, float64 sums in blocks of 4,096",
               "0.1 Gel/s", Needs::nothing, Match::equal, [&l] { logsumexp(l, "scalar"); }},
              {"libm", "expf of the C library, one float64 sum",
               "slow, and its order is the loop's: rejected", Needs::nothing, Match::close,
               [&l] { libm_logsumexp(l); }},
              {"avx2 table", "eight lanes, two float64 registers", "1 Gel/s", Needs::avx2,
               Match::equal, [&l] { logsumexp(l, "avx2"); }},
              {"avx512 table", "the same source", "1 Gel/s", Needs::avx512, Match::equal,
               [&l] { logsumexp(l, "avx512"); }}}),
  };
}

}  // namespace headrace::lab
