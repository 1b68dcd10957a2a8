// A step plan as the native core sees it (backends/base.py StepPlan), and the check that makes
// every index in it safe to follow.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "sampling/sampling.h"
#include "tape/memory.h"
#include "tape/tape.h"

namespace headrace {

struct WantedEntry {
  int32_t row;
  WantedRow spec;  // pointers into arrays that outlive the step
  int64_t mask_bytes;
};

struct StepPlan {
  std::vector<int32_t> tokens;
  std::vector<int32_t> positions;
  std::vector<int32_t> seq_starts;
  std::vector<std::vector<int32_t>> tables;
  std::vector<std::vector<int32_t>> table_starts;
  std::vector<std::pair<int32_t, int32_t>> copies;
  std::vector<WantedEntry> wanted;

  int32_t num_rows() const { return static_cast<int32_t>(tokens.size()); }
  int32_t num_seqs() const { return static_cast<int32_t>(seq_starts.size()) - 1; }
};

// Checks plans against a model. Keeps scratch, so one step at a time.
class PlanChecker {
 public:
  // Every row may be wanted once for itself, and the sequences of a step fork into no more choices
  // than a step has rows (backends/base.py StepPlan).
  static constexpr int32_t kWantedPerRow = 2;

  PlanChecker(const KVShape& kv, int32_t vocab, int32_t num_blocks, int32_t max_step_rows);

  // Throws std::invalid_argument naming the entry at fault. Afterwards: rows, positions, sequences
  // and tables are consistent; every block that a row can read or write is in the arena; no block
  // is written by two sequences; ids, targets, histories, masks and biases fit the vocabulary; and
  // tokens that name a previous sample have been replaced by it.
  void check(StepPlan& plan, const std::vector<int32_t>& previous_samples);

 private:
  void check_rows(StepPlan& plan, const std::vector<int32_t>& previous_samples) const;
  void check_sequences(const StepPlan& plan) const;
  void check_tables(const StepPlan& plan, int32_t group);
  void check_copies(const StepPlan& plan) const;
  void check_wanted(const StepPlan& plan) const;
  void check_entry(const WantedEntry& entry) const;

  const KVShape& kv_;
  int32_t vocab_;
  int32_t num_blocks_;
  int32_t max_step_rows_;
  // Per block, the number of the last check whose plan writes it: nothing is cleared per step.
  Pages written_;
  uint64_t check_number_ = 0;
};

}  // namespace headrace
