// Memory of a model and the frame of a step; rows.cpp, attends.cpp and products.cpp run the stages.
#include "tape/model.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>

#include "tape/shape.h"

namespace headrace {
namespace {

constexpr int32_t kMaxStepRows = 1 << 16;

size_t checked_bytes(size_t count, size_t bytes) {
  size_t total = 0;
  if (__builtin_mul_overflow(count, bytes, &total)) throw std::bad_alloc();
  return total;
}

int32_t require_range(const char* what, int32_t value, int32_t low, int32_t high) {
  if (value < low || value > high) {
    throw std::invalid_argument(std::string(what) + " must be between " + std::to_string(low) +
                                " and " + std::to_string(high) + ", not " + std::to_string(value));
  }
  return value;
}

}  // namespace

Model::Model(std::shared_ptr<Pool> pool, Tape tape, int32_t num_blocks, int32_t max_step_rows)
    : pool_(std::move(pool)),
      tape_(std::move(tape)),
      table_(tape_.table()),
      num_blocks_(require_range("number of KV blocks", num_blocks, 1, 1 << 30)),
      max_step_rows_(require_range("largest step", max_step_rows, 1, kMaxStepRows)),
      checker_(tape_.kv(), tape_.vocab(), num_blocks, max_step_rows) {
  const KVShape& kv = tape_.kv();
  const auto rows = static_cast<size_t>(max_step_rows_);
  const size_t wanted_rows = PlanChecker::kWantedPerRow * rows;
  const auto threads = static_cast<size_t>(pool_->num_threads());
  const auto block_bytes = static_cast<size_t>(kv.region_block_bytes());
  arena_ = Pages(checked_bytes(checked_bytes(static_cast<size_t>(kv.layers_per_block), block_bytes),
                               static_cast<size_t>(num_blocks_)));
  for (const BufferSpec& spec : tape_.buffers()) {
    const size_t row_bytes = static_cast<size_t>(spec.width) * sizeof(float);
    const size_t num_rows = !spec.stored ? 0 : spec.wanted ? wanted_rows : rows;
    buffers_.push_back({Pages(num_rows * row_bytes), spec.width, spec.wanted});
  }
  for (const ActKind kind : {ActKind::a8, ActKind::a16, ActKind::f32}) {
    for (const ActPlace place : {ActPlace{kind, false}, ActPlace{kind, true}}) {
      act_[place.index()] = Pages((place.gated ? rows : wanted_rows) * tape_.act_bytes(place));
    }
  }
  gated_scratch_ = Pages(threads * kGatedFloats * sizeof(float));
  for (const RopeTable& rope : tape_.ropes()) {
    angles_.emplace_back(rows * static_cast<size_t>(2 * rope.pairs()) * sizeof(float));
  }
  logits_stride_ = (int64_t{tape_.vocab()} + 15) / 16 * 16;
  if (tape_.has_head()) {
    logits_ = Pages(kLogitRows * static_cast<size_t>(logits_stride_) * sizeof(float));
  }
  for (const AttendCut& cut : tape_.attend_cuts()) {
    attend_scratch_stride_ = std::max(
        attend_scratch_stride_, attend_scratch_floats(cut.num_heads, kv.num_kv_heads, kv.head_dim));
  }
  attends_.resize(tape_.attend_cuts().size());
  attend_scratch_stride_ = (attend_scratch_stride_ + 15) / 16 * 16;
  attend_scratch_ = Pages(threads * static_cast<size_t>(attend_scratch_stride_) * sizeof(float));
  sampling_scratch_.resize(threads);
  row_blocks_.resize(static_cast<size_t>(kv.num_groups()));
}

uint8_t* Model::region(int32_t slot) const {
  return arena_.data() + int64_t{slot} * num_blocks_ * tape_.kv().region_block_bytes();
}

StepOutput Model::step(StepPlan& plan, const std::vector<std::string>& buffers) {
  Pool::Lease lease(*pool_);
  const auto start = std::chrono::steady_clock::now();
  std::vector<int32_t> wanted_buffers;
  for (const std::string& name : buffers) wanted_buffers.push_back(tape_.stored_buffer(name));
  checker_.check(plan, samples_);
  copy_blocks(lease, plan);
  if (plan.num_rows() > 0) {
    prepare(plan);
    for (const Stage& stage : tape_.stages()) {
      std::visit([&](const auto& s) { run(lease, s, plan); }, stage);
    }
  }
  samples_.clear();
  for (size_t i = 0; i < plan.wanted.size(); ++i) {
    const bool drawn = plan.wanted[i].spec.sample && !results_[i].failed;
    samples_.push_back(drawn ? results_[i].token : -1);
  }
  StepOutput output{std::move(results_), {}, 0.0};
  results_.clear();
  for (const int32_t index : wanted_buffers) output.buffers.push_back(copy_buffer(index, plan));
  output.native_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return output;
}

// What every layer needs of the rows, once per step.
void Model::prepare(const StepPlan& plan) {
  results_.assign(plan.wanted.size(), RowResult{-1, 0.0, true, {}, {}});
  for (size_t group = 0; group < row_blocks_.size(); ++group) {
    auto& blocks = row_blocks_[group];
    blocks.resize(plan.tokens.size());
    for (int32_t seq = 0; seq < plan.num_seqs(); ++seq) {
      const int32_t* table =
          plan.tables[group].data() + plan.table_starts[group][static_cast<size_t>(seq)];
      const int32_t end = plan.seq_starts[static_cast<size_t>(seq) + 1];
      for (int32_t row = plan.seq_starts[static_cast<size_t>(seq)]; row < end; ++row) {
        const auto r = static_cast<size_t>(row);
        blocks[r] = table[plan.positions[r] / kBlockLen];
      }
    }
  }
  plan_attends(plan);
}

void Model::copy_blocks(Pool::Lease& lease, const StepPlan& plan) {
  if (plan.copies.empty()) return;
  const int64_t bytes = tape_.kv().region_block_bytes();
  lease.parallel_for(static_cast<uint32_t>(tape_.kv().layers_per_block), [&](int, uint32_t slot) {
    uint8_t* blocks = region(static_cast<int32_t>(slot));
    for (const auto& [from, to] : plan.copies) {
      std::memcpy(blocks + to * bytes, blocks + from * bytes, static_cast<size_t>(bytes));
    }
  });
}

BufferRows Model::copy_buffer(int32_t index, const StepPlan& plan) const {
  const Buffer& from = buffer(index);
  const int32_t rows = num_rows(from.wanted, plan);
  return {static_cast<int32_t>(from.width), std::vector<float>(from.row(0), from.row(rows))};
}

}  // namespace headrace
