// A loaded model: weights, KV arena, buffers, and the execution of a step on the pool.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "attention/plan.h"
#include "tape/memory.h"
#include "tape/plan.h"
#include "tape/shape.h"
#include "tape/tape.h"
#include "threads/pool.h"

namespace headrace {

// A buffer's rows after a step: [rows, width].
struct BufferRows {
  int32_t width;
  std::vector<float> values;
};

struct StepOutput {
  std::vector<RowResult> rows;  // one per wanted row; all failed if the program has no head
  std::vector<BufferRows> buffers;
  double native_s;
};

class Model {
 public:
  // std::invalid_argument for sizes out of range, std::bad_alloc when memory cannot be mapped.
  Model(std::shared_ptr<Pool> pool, Tape tape, int32_t num_blocks, int32_t max_step_rows);

  // Checks and runs a plan, then copies the named buffers. std::invalid_argument for a bad plan or
  // name, before anything is changed. Thread-safe; steps take turns.
  StepOutput step(StepPlan& plan, const std::vector<std::string>& buffers);

  int32_t num_blocks() const { return num_blocks_; }
  int32_t max_step_rows() const { return max_step_rows_; }
  size_t kv_bytes() const { return arena_.bytes(); }

 private:
  friend class RowRunner;

  struct Buffer {
    Pages memory;
    int64_t width;
    bool wanted;
    float* row(int64_t r) const { return memory.as<float>() + r * width; }
  };

  uint8_t* region(int32_t slot) const;
  uint8_t* act(ActPlace place) const { return act_[place.index()].data(); }
  const Buffer& buffer(int32_t index) const { return buffers_[static_cast<size_t>(index)]; }

  decltype(KernelTable::silu_gate) gate_kernel(Activation activation) const {
    return activation == Activation::silu ? table_.silu_gate : table_.gelu_gate;
  }

  void prepare(const StepPlan& plan);
  void plan_attends(const StepPlan& plan);
  void quantize_heads(const AttendStage& stage, int32_t row, int32_t rows, int32_t kv_head) const;
  void copy_blocks(Pool::Lease& lease, const StepPlan& plan);
  void run(Pool::Lease& lease, const RowStage& stage, const StepPlan& plan);
  void run(Pool::Lease& lease, const LinearStage& stage, const StepPlan& plan);
  void run(Pool::Lease& lease, const GatedStage& stage, const StepPlan& plan);
  void run(Pool::Lease& lease, const AttendStage& stage, const StepPlan& plan);
  void run(Pool::Lease& lease, const HeadStage& stage, const StepPlan& plan);
  struct Block {
    int32_t tile, tiles, row, rows;
  };
  void gate_block(const GatedStage& stage, const Block& block, float* scratch) const;
  void finish_logits(const HeadStage& stage, const ProductShape& shape, uint32_t chunk,
                     int32_t rows);
  void sample(Pool::Lease& lease, const StepPlan& plan, int32_t first, int32_t rows,
              int32_t num_ranges);
  int32_t num_rows(bool wanted, const StepPlan& plan) const {
    return wanted ? static_cast<int32_t>(plan.wanted.size()) : plan.num_rows();
  }
  BufferRows copy_buffer(int32_t index, const StepPlan& plan) const;

  std::shared_ptr<Pool> pool_;
  const Tape tape_;
  const KernelTable& table_;
  const int32_t num_blocks_;
  const int32_t max_step_rows_;
  PlanChecker checker_;

  Pages arena_;  // [slot][block][kv_head][K | V], see KVType
  std::vector<Buffer> buffers_;
  Pages act_[2 * kActKinds];   // by ActPlace: [largest number of rows][act_bytes]
  std::vector<Pages> angles_;  // by rope table: [max_step_rows][2 * pairs]
  Pages logits_;               // [kLogitRows][logits_stride_]
  int64_t logits_stride_;
  std::vector<Highest> highest_;  // [range of tiles][row] of the logits
  Pages gated_scratch_;           // [threads][kGatedFloats]
  Pages attend_scratch_;          // [threads][attend_scratch_stride_]
  int64_t attend_scratch_stride_ = 0;
  Pages partials_;
  std::vector<SamplingScratch> sampling_scratch_;  // by thread

  // Of the step in progress.
  std::vector<std::vector<int32_t>> row_blocks_;  // by group: the block that each row writes
  std::vector<AttnPlan> attends_;                 // by Tape::attend_cuts
  std::vector<RowResult> results_;
  std::vector<int32_t> samples_;  // of the previous step, by wanted row; -1: none drawn
};

}  // namespace headrace
