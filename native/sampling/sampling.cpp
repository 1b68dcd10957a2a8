// Sampling of one row: see sampling.h for the contract. Plain double arithmetic; the vector work
// (argmax, logsumexp, weights) goes through the kernel table.
#include "sampling/sampling.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "common/math.h"
#include "sampling/philox.h"

namespace headrace {
namespace {

constexpr double kGreedyBelow = 1e-5;
constexpr double kLn2 = 0.693147180559945309417232121458;
// Slack for the rounding of log64 in the bounds below; far above its error, far below any decision.
constexpr double kBoundSlack = 1e-6;
// No word of noise exceeds 33 ln 2 (see gumbel_bound).
constexpr double kMaxGumbel = 33.0 * kLn2 + kBoundSlack;
constexpr float kNegInf = -std::numeric_limits<float>::infinity();

// G = -log(-log u), u = (k + 1/2) 2^-32.
double gumbel(uint32_t k) {
  const double u = (static_cast<double>(k) + 0.5) * 0x1p-32;
  return -log64(-log64(u));
}

// G <= (clz(~k) + 1) ln 2: -log u >= 1 - u = (~k + 1/2) 2^-32 >= 2^(-1 - clz(~k)).
double gumbel_bound(uint32_t k) { return (std::countl_zero(~k) + 1) * kLn2 + kBoundSlack; }

void count_tokens(const int32_t* ids, int32_t n, std::vector<int32_t>& counts) {
  for (int32_t i = 0; i < n; ++i) ++counts[static_cast<size_t>(ids[i])];
}

void clear_counts(const int32_t* ids, int32_t n, std::vector<int32_t>& counts) {
  for (int32_t i = 0; i < n; ++i) counts[static_cast<size_t>(ids[i])] = 0;
}

// Repetition penalty over prompt and output, once per distinct id.
void apply_repetition(const WantedRow& row, SamplingScratch& s) {
  const float penalty = static_cast<float>(row.spec->repetition_penalty);
  for (int32_t i = 0; i < row.history_len; ++i) {
    const auto id = static_cast<size_t>(row.history[i]);
    if (s.counts[id] != 0) continue;
    s.counts[id] = 1;
    float& x = s.logits[id];
    x = x > 0.0f ? x / penalty : x * penalty;
  }
  clear_counts(row.history, row.history_len, s.counts);
}

// Frequency and presence penalties over the output only: x - frequency*count, then - presence.
void apply_output_penalties(const WantedRow& row, SamplingScratch& s) {
  const int32_t* output = row.history + row.prompt_len;
  const int32_t output_len = row.history_len - row.prompt_len;
  const float frequency = static_cast<float>(row.spec->frequency_penalty);
  const float presence = static_cast<float>(row.spec->presence_penalty);
  count_tokens(output, output_len, s.counts);
  for (int32_t i = 0; i < output_len; ++i) {
    const auto id = static_cast<size_t>(output[i]);
    if (s.counts[id] == 0) continue;
    const float weighted = frequency * static_cast<float>(s.counts[id]);
    s.counts[id] = 0;
    s.logits[id] = (s.logits[id] - weighted) - presence;
  }
}

// True when the row's logits must be changed before sampling.
bool has_processing(const WantedRow& row) {
  return row.history != nullptr || row.mask != nullptr || row.num_banned > 0 ||
         !row.spec->bias_ids.empty();
}

// Copies the logits to scratch and applies penalties, bias, banned ids and mask, in this order.
const float* process(const float* logits, int32_t vocab, const WantedRow& row, SamplingScratch& s) {
  s.logits.assign(logits, logits + vocab);
  s.counts.resize(static_cast<size_t>(vocab), 0);
  if (row.history != nullptr) {
    apply_repetition(row, s);
    apply_output_penalties(row, s);
  }
  for (size_t i = 0; i < row.spec->bias_ids.size(); ++i) {
    s.logits[static_cast<size_t>(row.spec->bias_ids[i])] += row.spec->bias_values[i];
  }
  for (int32_t i = 0; i < row.num_banned; ++i) {
    s.logits[static_cast<size_t>(row.banned[i])] = kNegInf;
  }
  if (row.mask != nullptr) {
    for (int32_t id = 0; id < vocab; ++id) {
      if (((row.mask[id >> 3] >> (id & 7)) & 1) == 0) s.logits[static_cast<size_t>(id)] = kNegInf;
    }
  }
  return s.logits.data();
}

// Gumbel-max over the whole vocabulary; exact pruning by the noise bound.
int32_t draw_all(const float* x, int32_t vocab, const WantedRow& row, int32_t greedy) {
  const double temperature = row.spec->temperature;
  const Philox noise(row.spec->seed, static_cast<uint32_t>(row.output_pos));
  double best = static_cast<double>(x[greedy]) / temperature + gumbel(noise.word(greedy));
  int32_t best_id = greedy;
  for (int32_t first = 0; first < vocab; first += 4) {
    const int32_t count = std::min(4, vocab - first);
    float highest = x[first];
    for (int32_t j = 1; j < count; ++j) highest = std::max(highest, x[first + j]);
    if (static_cast<double>(highest) / temperature + kMaxGumbel < best) continue;
    const auto words = noise.block(static_cast<uint32_t>(first) / 4);
    for (int32_t j = 0; j < count; ++j) {
      const double z = static_cast<double>(x[first + j]) / temperature;
      if (z + gumbel_bound(words[static_cast<size_t>(j)]) < best) continue;
      const double score = z + gumbel(words[static_cast<size_t>(j)]);
      if (score > best || (score == best && first + j < best_id)) {
        best = score;
        best_id = first + j;
      }
    }
  }
  return best_id;
}

int32_t draw_among(const float* x, const std::vector<int32_t>& ids, const WantedRow& row) {
  const Philox noise(row.spec->seed, static_cast<uint32_t>(row.output_pos));
  double best = -std::numeric_limits<double>::infinity();
  int32_t best_id = -1;
  for (const int32_t id : ids) {
    const double score =
        static_cast<double>(x[id]) / row.spec->temperature + gumbel(noise.word(id));
    if (best_id < 0 || score > best || (score == best && id < best_id)) {
      best = score;
      best_id = id;
    }
  }
  return best_id;
}

// ids = the top_k ids by (logit descending, id ascending), in that order; all finite ones if 0.
void select_top_k(const float* x, int32_t vocab, int32_t top_k, std::vector<int32_t>& ids) {
  ids.clear();
  for (int32_t id = 0; id < vocab; ++id) {
    if (x[id] != kNegInf) ids.push_back(id);
  }
  if (top_k <= 0 || static_cast<size_t>(top_k) >= ids.size()) return;
  const auto better = [x](int32_t a, int32_t b) { return x[a] > x[b] || (x[a] == x[b] && a < b); };
  std::nth_element(ids.begin(), ids.begin() + top_k, ids.end(), better);
  ids.resize(static_cast<size_t>(top_k));
  std::sort(ids.begin(), ids.end());
}

// Keeps the smallest prefix by (weight descending, id ascending) whose float64 sum reaches
// top_p * total; the crossing token stays. Sorting goes down by weight thresholds, so that usually
// few ids are sorted: ids at or above a threshold are a prefix of the whole order.
void keep_top_p(const std::vector<float>& weights, double top_p, std::vector<int32_t>& ids) {
  double total = 0.0;
  for (size_t i = 0; i < ids.size(); ++i) total += static_cast<double>(weights[i]);
  const double target = top_p * total;
  std::vector<std::pair<float, int32_t>> heavy;
  float threshold = 1e-3f;
  for (;;) {
    heavy.clear();
    for (size_t i = 0; i < ids.size(); ++i) {
      if (weights[i] >= threshold) heavy.emplace_back(-weights[i], ids[i]);
    }
    std::sort(heavy.begin(), heavy.end());
    double sum = 0.0;
    for (size_t i = 0; i < heavy.size(); ++i) {
      sum -= static_cast<double>(heavy[i].first);
      if (sum >= target) {
        heavy.resize(i + 1);
        break;
      }
    }
    if (sum >= target || heavy.size() == ids.size()) break;
    threshold = threshold > 1e-30f ? threshold * 1e-2f : 0.0f;
  }
  ids.clear();
  for (const auto& entry : heavy) ids.push_back(entry.second);
}

// Filters in order top-k, top-p, min-p; weights are relative to the highest, whose weight is 1.
void filter(const KernelTable& table, const float* x, int32_t vocab, float max,
            const SamplingSpec& spec, SamplingScratch& s) {
  select_top_k(x, vocab, spec.top_k, s.ids);
  if (spec.top_p >= 1.0 && spec.min_p <= 0.0) return;
  s.gathered.resize(s.ids.size());
  s.weights.resize(s.ids.size());
  for (size_t i = 0; i < s.ids.size(); ++i) s.gathered[i] = x[s.ids[i]];
  table.softmax_weights(s.gathered.data(), static_cast<int32_t>(s.ids.size()), max,
                        spec.temperature, s.weights.data());
  if (spec.min_p > 0.0) {
    // min-p is relative to the highest survivor, which is the highest of all: it commutes with
    // top-p only when applied after; so remember the weights by id.
    s.by_id.resize(static_cast<size_t>(vocab));
    for (size_t i = 0; i < s.ids.size(); ++i) {
      s.by_id[static_cast<size_t>(s.ids[i])] = s.weights[i];
    }
  }
  if (spec.top_p < 1.0) keep_top_p(s.weights, spec.top_p, s.ids);
  if (spec.min_p > 0.0) {
    std::erase_if(s.ids, [&](int32_t id) {
      return static_cast<double>(s.by_id[static_cast<size_t>(id)]) < spec.min_p;
    });
  }
}

int32_t draw(const KernelTable& table, const float* logits, int32_t vocab, Highest highest,
             const WantedRow& row, SamplingScratch& s) {
  const SamplingSpec& spec = *row.spec;
  const float* x = logits;
  if (has_processing(row)) {
    x = process(logits, vocab, row, s);
    highest.index = table.argmax(x, vocab, &highest.value);
  }
  if (highest.index < 0 || !std::isfinite(highest.value)) return -1;
  if (spec.temperature < kGreedyBelow) return highest.index;
  if (spec.top_k <= 0 && spec.top_p >= 1.0 && spec.min_p <= 0.0) {
    return draw_all(x, vocab, row, highest.index);
  }
  filter(table, x, vocab, highest.value, spec, s);
  return draw_among(x, s.ids, row);
}

// The `count` highest logits, ties to the lower id, by insertion into a sorted list.
void collect_top(const float* x, int32_t vocab, int32_t count, RowResult& result, double lse) {
  std::vector<int32_t>& ids = result.top_ids;
  for (int32_t id = 0; id < vocab; ++id) {
    if (static_cast<int32_t>(ids.size()) == count && !(x[id] > x[ids.back()])) continue;
    auto place = std::upper_bound(ids.begin(), ids.end(), id,
                                  [x](int32_t a, int32_t b) { return x[a] > x[b]; });
    ids.insert(place, id);
    if (static_cast<int32_t>(ids.size()) > count) ids.pop_back();
  }
  for (const int32_t id : ids) {
    result.top_logprobs.push_back(static_cast<double>(x[id]) - lse);
  }
}

}  // namespace

RowResult sample_row(const KernelTable& table, const float* logits, int32_t vocab, Highest highest,
                     const WantedRow& row, SamplingScratch& scratch) {
  RowResult result{row.target, std::numeric_limits<double>::quiet_NaN(), false, {}, {}};
  if (highest.index < 0 || !std::isfinite(highest.value)) {
    result.failed = true;
    return result;
  }
  if (row.sample) {
    result.token = draw(table, logits, vocab, highest, row, scratch);
    if (result.token < 0) {
      result.failed = true;
      return result;
    }
  }
  if (row.spec->num_top >= 0) {
    const double lse = table.logsumexp(logits, vocab, highest.value);
    result.logprob = static_cast<double>(logits[result.token]) - lse;
    if (row.spec->num_top > 0) {
      collect_top(logits, vocab, std::min(row.spec->num_top, vocab), result, lse);
    }
  }
  return result;
}

}  // namespace headrace
