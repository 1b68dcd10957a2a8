// Row stages: each row passes the whole chain of operations without a barrier.
#include <cstring>

#include "tape/model.h"
#include "tape/shape.h"

namespace headrace {

// Runs row operations on rows [first_, first_ + rows_) of their domain.
class RowRunner {
 public:
  RowRunner(Model& model, const StepPlan& plan, int32_t first, int32_t rows)
      : model_(model), table_(model.table_), plan_(plan), first_(first), rows_(rows) {}

  void operator()(const EmbedOp& op) const {
    for (int32_t r = first_; r < first_ + rows_; ++r) {
      float* out = model_.buffer(op.out).row(r);
      table_.unpack_row(*op.weight, plan_.tokens[static_cast<size_t>(r)], out);
      if (op.scale != 1.0f) table_.scale(out, op.weight->k, op.scale);
    }
  }

  void operator()(const RopeAnglesOp& op) const {
    const RopeTable& rope = model_.tape_.ropes()[static_cast<size_t>(op.rope)];
    table_.rope_angles(plan_.positions.data() + first_, rows_, rope.inv_freq.data(), rope.pairs(),
                       angles(op.rope));
  }

  void operator()(const NormOp& op) const {
    const auto& out = model_.buffer(op.out);
    table_.rmsnorm(model_.buffer(op.src).row(first_), out.width, op.weight, op.eps, rows_,
                   static_cast<int32_t>(out.width), out.row(first_), out.width);
  }

  void operator()(const QuantizeOp& op) const {
    const auto& src = model_.buffer(op.src);
    const auto k = static_cast<int32_t>(src.width);
    const size_t row_bytes = act_row_bytes(op.kind, k);
    table_.quantize_rows(op.kind, src.row(first_), src.width, rows_, k,
                         model_.act({op.kind, false}) + static_cast<size_t>(first_) * row_bytes,
                         row_bytes);
  }

  void operator()(const HeadNormOp& op) const {
    for (int32_t r = first_; r < first_ + rows_; ++r) {
      float* heads = model_.buffer(op.buf).row(r) + op.column;
      table_.rmsnorm(heads, op.head_dim, op.weight, op.eps, op.num_heads, op.head_dim, heads,
                     op.head_dim);
    }
  }

  void operator()(const RopeWriteOp& op) const {
    const KVShape& kv = model_.tape_.kv();
    const RopeTable& rope = model_.tape_.ropes()[static_cast<size_t>(op.rope)];
    const KVPlace place = kv.layers[static_cast<size_t>(op.layer)];
    const auto& buf = model_.buffer(op.buf);
    table_.rope(buf.row(first_), buf.width, rows_, op.num_heads + kv.num_kv_heads, kv.head_dim,
                angles(op.rope), rope.pairs(), rope.interleaved);
    const int64_t k_column = int64_t{op.num_heads} * kv.head_dim;
    const int64_t v_column = k_column + int64_t{kv.num_kv_heads} * kv.head_dim;
    uint8_t* region = model_.region(place.slot);
    const auto& blocks = model_.row_blocks_[static_cast<size_t>(place.group)];
    for (int32_t r = first_; r < first_ + rows_; ++r) {
      const auto row = static_cast<size_t>(r);
      table_.kv_store(kv.type, buf.row(r) + k_column, buf.row(r) + v_column, kv.num_kv_heads,
                      kv.head_dim, region + blocks[row] * kv.region_block_bytes(),
                      plan_.positions[row] % kBlockLen);
    }
  }

  void operator()(const GateOp& op) const {
    const auto& src = model_.buffer(op.src);
    const auto& out = model_.buffer(op.out);
    model_.gate_kernel(op.activation)(src.row(first_), src.width, rows_,
                                      static_cast<int32_t>(out.width), out.row(first_), out.width);
  }

  void operator()(const AddOp& op) const {
    const auto& out = model_.buffer(op.out);
    table_.add(out.row(first_), out.width, model_.buffer(op.src).row(first_), out.width, rows_,
               static_cast<int32_t>(out.width));
  }

  void operator()(const SelectOp& op) const {
    const auto& out = model_.buffer(op.out);
    for (int32_t w = first_; w < first_ + rows_; ++w) {
      const int32_t row = plan_.wanted[static_cast<size_t>(w)].row;
      std::memcpy(out.row(w), model_.buffer(op.src).row(row),
                  static_cast<size_t>(out.width) * sizeof(float));
    }
  }

 private:
  float* angles(int32_t rope) const {
    const auto index = static_cast<size_t>(rope);
    const int32_t pairs = model_.tape_.ropes()[index].pairs();
    return model_.angles_[index].as<float>() + int64_t{first_} * 2 * pairs;
  }

  Model& model_;
  const KernelTable& table_;
  const StepPlan& plan_;
  const int32_t first_;
  const int32_t rows_;
};

void Model::run(Pool::Lease& lease, const RowStage& stage, const StepPlan& plan) {
  const int32_t rows = num_rows(stage.wanted, plan);
  if (rows == 0) return;
  const int32_t per_chunk = rows_per_chunk(rows, stage.row_cost, lease.num_threads());
  const auto num_chunks = static_cast<uint32_t>(ceil_div(rows, per_chunk));
  lease.parallel_for(num_chunks, [&](int, uint32_t chunk) {
    const int32_t first = static_cast<int32_t>(chunk) * per_chunk;
    const RowRunner runner(*this, plan, first, std::min(per_chunk, rows - first));
    for (const RowOp& op : stage.ops) std::visit(runner, op);
  });
}

}  // namespace headrace
