// Reductions of logits over V8, for the instruction set of HEADRACE_ISA_NS.
#include "common/math.h"
#include "common/v8.h"
#include "common/v8_math.h"
#include "sampling/reduce.h"

namespace headrace {
namespace HEADRACE_ISA_NS {
namespace {

constexpr int32_t kSumBlock = 4096;

inline V8 tempered_exp(V8 x, D8 temperature, D8 highest) {
  return exp(narrow(sub(div(widen(x), temperature), highest)));
}

}  // namespace

// Two passes: the highest value and whether all are ordered, then its first place.
int32_t argmax(const float* x, int32_t n, float* value) {
  V8 highest = splat(-kInfinity);
  M8 ordered = first_lanes(8);
  for (int32_t i = 0; i < n; i += 8) {
    const V8 lanes = load_some(x + i, n - i, -kInfinity);
    highest = max(highest, lanes);
    ordered = both(ordered, eq(lanes, lanes));
  }
  if (bits(ordered) != 0xFF) return -1;
  const V8 wanted = splat(reduce8_max(highest));
  for (int32_t i = 0; i < n; i += 8) {
    const int found = bits(eq(load_some(x + i, n - i, -kInfinity), wanted));
    if (found == 0) continue;
    const int32_t index = i + __builtin_ctz(static_cast<unsigned>(found));
    *value = x[index];
    return index;
  }
  return -1;
}

double logsumexp(const float* x, int32_t n, float max) {
  const V8 highest = splat(max);
  double total = 0.0;
  for (int32_t begin = 0; begin < n; begin += kSumBlock) {
    const int32_t end = n - begin > kSumBlock ? begin + kSumBlock : n;
    D8 sum = zero_d8();
    int32_t i = begin;
    for (; i + 8 <= end; i += 8) sum = add(sum, widen(exp(sub(load(x + i), highest))));
    if (i < end) {
      const V8 rest = exp(sub(load_part(x + i, end - i), highest));
      sum = add(sum, widen(keep(first_lanes(end - i), rest)));
    }
    total += reduce8(sum);
  }
  return log64(total) + static_cast<double>(max);
}

void softmax_weights(const float* x, int32_t n, float max, double temperature, float* out) {
  const D8 divisor = splat_d8(temperature);
  const D8 highest = splat_d8(static_cast<double>(max) / temperature);
  int32_t i = 0;
  for (; i + 8 <= n; i += 8) store(out + i, tempered_exp(load(x + i), divisor, highest));
  if (i < n) store_part(out + i, tempered_exp(load_part(x + i, n - i), divisor, highest), n - i);
}

}  // namespace HEADRACE_ISA_NS
}  // namespace headrace
