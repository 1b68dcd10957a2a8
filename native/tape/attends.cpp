// Attention stages: items and merges planned once per step, run once per layer.
#include <algorithm>

#include "gemm/layout.h"
#include "tape/model.h"
#include "tape/shape.h"

namespace headrace {
namespace {

// Merged floats below which the caller merges alone.
constexpr int64_t kInlineMergeFloats = 16 * 1024;

}  // namespace

void Model::plan_attends(const StepPlan& plan) {
  const KVShape& kv = tape_.kv();
  int64_t partials = 0;
  for (size_t i = 0; i < attends_.size(); ++i) {
    const AttendCut& cut = tape_.attend_cuts()[i];
    const auto group = static_cast<size_t>(cut.group);
    const AttnRows rows{plan.positions.data(),     plan.seq_starts.data(),
                        plan.tables[group].data(), plan.table_starts[group].data(),
                        plan.num_seqs(),           kv.group_windows[group]};
    plan_attention(rows, cut.num_heads, kv.num_kv_heads, pool_->num_running(), attends_[i]);
    partials = std::max(partials, attends_[i].num_partials);
  }
  const size_t bytes = static_cast<size_t>(partials * partial_floats(kv.head_dim)) * sizeof(float);
  if (bytes > partials_.bytes()) partials_ = Pages(std::max(bytes, 2 * partials_.bytes()));
}

void Model::run(Pool::Lease& lease, const AttendStage& stage, const StepPlan& plan) {
  const KVShape& kv = tape_.kv();
  const auto& src = buffer(stage.src);
  const auto& out = buffer(stage.out);
  const AttnPlan& attend = attends_[static_cast<size_t>(stage.cut)];
  const AttnParams params{src.row(0),
                          src.width,
                          out.row(0),
                          out.width,
                          region(kv.layers[static_cast<size_t>(stage.layer)].slot),
                          kv.region_block_bytes(),
                          kv.type,
                          stage.num_heads,
                          kv.num_kv_heads,
                          kv.head_dim,
                          stage.window,
                          stage.scale,
                          stage.softcap,
                          plan.positions.data(),
                          partials_.as<float>(),
                          attend.shared_rows.data()};
  const auto num_items = static_cast<int64_t>(attend.items.size());
  const int64_t item_chunks = std::min(num_items, std::max(ceil_div(num_items, kItemsPerChunk),
                                                           kItemsPerChunk * lease.num_threads()));
  lease.parallel_for(static_cast<uint32_t>(item_chunks), [&](int thread, uint32_t chunk) {
    float* scratch = attend_scratch_.as<float>() + thread * attend_scratch_stride_;
    const int64_t end = (chunk + 1) * num_items / item_chunks;
    for (int64_t i = chunk * num_items / item_chunks; i < end; ++i) {
      const AttnItem& item = attend.items[static_cast<size_t>(i)];
      table_.attend_item(params, item, scratch);
      if (item.partial < 0) quantize_heads(stage, item.row_begin, item.num_rows, item.kv_head);
    }
  });
  if (attend.merges.empty()) return;
  // Merges of the query heads of one row and KV head stand together.
  const int32_t group = stage.num_heads / kv.num_kv_heads;
  const auto num_merges = static_cast<int64_t>(attend.merges.size()) / group;
  const int64_t floats = num_merges * group * attend.merges.front().num_splits * kv.head_dim;
  const int64_t num_chunks =
      floats < kInlineMergeFloats
          ? 1
          : std::min(num_merges, int64_t{kChunksPerThread} * lease.num_threads());
  lease.parallel_for(static_cast<uint32_t>(num_chunks), [&](int, uint32_t chunk) {
    const int64_t end = (chunk + 1) * num_merges / num_chunks;
    for (int64_t m = chunk * num_merges / num_chunks; m < end; ++m) {
      const AttnMerge* merges = &attend.merges[static_cast<size_t>(m * group)];
      for (int32_t i = 0; i < group; ++i) table_.merge_splits(params, merges[i]);
      quantize_heads(stage, merges->row, 1, merges->head / group);
    }
  });
}

// Quantizes the finished query heads of one KV head for the product that reads them.
void Model::quantize_heads(const AttendStage& stage, int32_t row, int32_t rows,
                           int32_t kv_head) const {
  const auto& out = buffer(stage.out);
  const auto width = static_cast<int32_t>(out.width);
  const int32_t columns = width / tape_.kv().num_kv_heads;
  const int32_t first = kv_head * columns;
  for (const ActKind kind : stage.kinds) {
    const size_t row_bytes = act_row_bytes(kind, width);
    uint8_t* dst = act({kind, false}) + static_cast<size_t>(row) * row_bytes;
    table_.quantize_rows(kind, out.row(row) + first, out.width, rows, columns,
                         dst + act_used_bytes(kind, first), row_bytes);
  }
}

}  // namespace headrace
