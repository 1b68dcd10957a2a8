// Sampling: one row of logits and a spec in, one token and its logprobs out. No state, no
// generator.
//
// Contract (architecture, numeric contract, "Sampling" and "Definitions")
// - Noise of (choice seed, output position, token id): Philox4x32-10 with key = seed and counter =
//   (id / 4, output position, 0, 0), word id % 4 = k; u = (k + 1/2) 2^-32, G = -log(-log u) in
//   float64 by log64. Score = float64(processed logit) / T + G; the highest wins, ties to the
//   lowest id. T < 1e-5: argmax of the processed logits.
// - Logprobs are of the raw logits.
#pragma once

#include <cstdint>
#include <vector>

#include "common/table.h"

namespace headrace {

struct SamplingSpec {
  double temperature = 1.0;
  int32_t top_k = 0;
  double top_p = 1.0;
  double min_p = 0.0;
  double repetition_penalty = 1.0;
  double presence_penalty = 0.0;
  double frequency_penalty = 0.0;
  std::vector<int32_t> bias_ids;
  std::vector<float> bias_values;
  uint64_t seed = 0;
  int32_t num_top = -1;
};

struct WantedRow {
  const SamplingSpec* spec;
  bool sample;
  int32_t target;
  int32_t output_pos;
  const int32_t* history;  // prompt + output ids, or nullptr
  int32_t history_len;
  int32_t prompt_len;
  const int32_t* banned;
  int32_t num_banned;
  const uint8_t* mask;  // bit i allows id i, or nullptr
};

struct RowResult {
  int32_t token;
  double logprob;
  bool failed;
  std::vector<int32_t> top_ids;
  std::vector<double> top_logprobs;
};

// Scratch of one thread; grows to the vocabulary once and is reused.
struct SamplingScratch {
  std::vector<float> logits;
  std::vector<int32_t> ids;
  std::vector<int32_t> counts;  // all zero between rows
  std::vector<float> gathered;
  std::vector<float> weights;
  std::vector<float> by_id;
};

// What KernelTable::argmax finds in a row: the lowest index of the highest value; -1 for a NaN.
struct Highest {
  int32_t index;
  float value;
};

// That of two consecutive parts of a row; indices are the row's.
inline Highest highest_of(Highest first, Highest second) {
  if (first.index < 0 || second.index < 0) return {-1, 0.0f};
  return second.value > first.value ? second : first;
}

// `logits` holds vocab floats (raw), the highest of which is `highest`, and is not changed.
// Thread-safe for distinct scratch.
RowResult sample_row(const KernelTable& table, const float* logits, int32_t vocab, Highest highest,
                     const WantedRow& row, SamplingScratch& scratch);

}  // namespace headrace
