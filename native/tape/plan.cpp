#include "tape/plan.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace headrace {
namespace {

// Rope angles and split counts are exact far beyond this.
constexpr int32_t kMaxPosition = 1 << 28;

[[noreturn]] void fail(const char* what, int64_t index, const char* message) {
  throw std::invalid_argument(std::string("plan: ") + what + " " + std::to_string(index) + " " +
                              message);
}

void require(bool condition, const char* what, int64_t index, const char* message) {
  if (!condition) fail(what, index, message);
}

}  // namespace

PlanChecker::PlanChecker(const KVShape& kv, int32_t vocab, int32_t num_blocks,
                         int32_t max_step_rows)
    : kv_(kv),
      vocab_(vocab),
      num_blocks_(num_blocks),
      max_step_rows_(max_step_rows),
      written_(static_cast<size_t>(num_blocks) * sizeof(uint64_t)) {}

void PlanChecker::check(StepPlan& plan, const std::vector<int32_t>& previous_samples) {
  check_rows(plan, previous_samples);
  check_sequences(plan);
  ++check_number_;
  for (int32_t group = 0; group < kv_.num_groups(); ++group) check_tables(plan, group);
  check_copies(plan);
  check_wanted(plan);
}

void PlanChecker::check_rows(StepPlan& plan, const std::vector<int32_t>& previous_samples) const {
  require(plan.tokens.size() <= static_cast<size_t>(max_step_rows_), "row", max_step_rows_,
          "is beyond the largest step");
  require(plan.positions.size() == plan.tokens.size(), "row",
          static_cast<int64_t>(plan.positions.size()), "has no token or no position");
  for (size_t row = 0; row < plan.tokens.size(); ++row) {
    int32_t& token = plan.tokens[row];
    if (token < 0) {
      const auto index = static_cast<size_t>(-1 - int64_t{token});
      require(index < previous_samples.size() && previous_samples[index] >= 0, "row",
              static_cast<int64_t>(row), "names a sample that the previous step did not draw");
      token = previous_samples[index];
    }
    require(token < vocab_, "row", static_cast<int64_t>(row), "has a token beyond the vocabulary");
  }
}

void PlanChecker::check_sequences(const StepPlan& plan) const {
  const auto& starts = plan.seq_starts;
  require(!starts.empty() && starts.front() == 0 && starts.back() == plan.num_rows(), "sequence",
          plan.num_seqs(), "does not end at the last row");
  for (int32_t seq = 0; seq < plan.num_seqs(); ++seq) {
    const int32_t begin = starts[static_cast<size_t>(seq)];
    const int32_t end = starts[static_cast<size_t>(seq) + 1];
    require(begin >= 0 && begin < end && end <= plan.num_rows(), "sequence", seq, "has no rows");
    for (int32_t row = begin; row < end; ++row) {
      const int32_t position = plan.positions[static_cast<size_t>(row)];
      require(position >= 0 && position < kMaxPosition, "row", row, "has a position out of range");
      require(row == begin || position == plan.positions[static_cast<size_t>(row) - 1] + 1, "row",
              row, "does not follow the position of the row before");
    }
  }
}

void PlanChecker::check_tables(const StepPlan& plan, int32_t group) {
  const auto g = static_cast<size_t>(group);
  require(plan.tables.size() == static_cast<size_t>(kv_.num_groups()) &&
              plan.table_starts.size() == plan.tables.size(),
          "group", group, "has no block tables");
  const auto& table = plan.tables[g];
  const auto& starts = plan.table_starts[g];
  require(starts.size() >= static_cast<size_t>(plan.num_seqs()), "group", group,
          "lacks the block table of a sequence");
  const int32_t window = kv_.group_windows[g];
  for (int32_t seq = 0; seq < plan.num_seqs(); ++seq) {
    const int32_t start = starts[static_cast<size_t>(seq)];
    const int32_t first_row = plan.seq_starts[static_cast<size_t>(seq)];
    const int32_t last_row = plan.seq_starts[static_cast<size_t>(seq) + 1] - 1;
    const int32_t first = plan.positions[static_cast<size_t>(first_row)];
    const int32_t last_block = plan.positions[static_cast<size_t>(last_row)] / kBlockLen;
    require(start >= 0 && int64_t{start} + last_block < static_cast<int64_t>(table.size()),
            "sequence", seq, "has a block table that is too short");
    const int32_t lo = window == 0 ? 0 : std::max(0, first - window + 1);
    for (int32_t i = lo / kBlockLen; i <= last_block; ++i) {
      const int32_t block = table[static_cast<size_t>(start) + static_cast<size_t>(i)];
      require(block >= 0 && block < num_blocks_, "sequence", seq, "reads a block outside the pool");
      if (i < first / kBlockLen) continue;
      uint64_t& written = written_.as<uint64_t>()[block];
      require(written != check_number_, "sequence", seq, "writes a block that is written twice");
      written = check_number_;
    }
  }
}

void PlanChecker::check_copies(const StepPlan& plan) const {
  for (size_t i = 0; i < plan.copies.size(); ++i) {
    const auto [from, to] = plan.copies[i];
    require(from >= 0 && from < num_blocks_ && to >= 0 && to < num_blocks_ && from != to, "copy",
            static_cast<int64_t>(i), "names a block outside the pool, or one twice");
  }
}

void PlanChecker::check_wanted(const StepPlan& plan) const {
  const int64_t most = int64_t{kWantedPerRow} * max_step_rows_;
  require(static_cast<int64_t>(plan.wanted.size()) <= most, "wanted row", most,
          "is beyond the largest step");
  int32_t previous = 0;
  for (size_t i = 0; i < plan.wanted.size(); ++i) {
    const WantedEntry& entry = plan.wanted[i];
    require(entry.row >= previous && entry.row < plan.num_rows(), "wanted row",
            static_cast<int64_t>(i), "is not in increasing order of the step's rows");
    previous = entry.row;
    try {
      check_entry(entry);
    } catch (const std::invalid_argument& error) {
      fail("wanted row", static_cast<int64_t>(i), error.what());
    }
  }
}

void PlanChecker::check_entry(const WantedEntry& entry) const {
  const WantedRow& row = entry.spec;
  const auto in_vocab = [this](int32_t id) { return id >= 0 && id < vocab_; };
  const auto fail_if = [](bool condition, const char* message) {
    if (condition) throw std::invalid_argument(message);
  };
  fail_if(row.target >= vocab_, "has a target beyond the vocabulary");
  fail_if(!row.sample && row.target < 0, "asks for neither a sample nor a target");
  fail_if(row.output_pos < 0, "has a negative output position");
  fail_if(row.history_len > 0 && (row.prompt_len < 0 || row.prompt_len > row.history_len),
          "has a prompt longer than its history");
  fail_if(!std::all_of(row.history, row.history + row.history_len, in_vocab),
          "has a history id beyond the vocabulary");
  fail_if(!std::all_of(row.banned, row.banned + row.num_banned, in_vocab),
          "bans an id beyond the vocabulary");
  const auto& bias_ids = row.spec->bias_ids;
  fail_if(!std::all_of(bias_ids.begin(), bias_ids.end(), in_vocab),
          "has a bias on an id beyond the vocabulary");
  fail_if(row.mask != nullptr && entry.mask_bytes < (int64_t{vocab_} + 7) / 8,
          "has a mask that is shorter than the vocabulary");
}

}  // namespace headrace
