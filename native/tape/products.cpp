// Linear stages and the head: products of quantized rows with packed weights, then sampling.
#include "tape/model.h"
#include "tape/shape.h"

namespace headrace {
namespace {

// Runs the tiles [begin, end) of a fused group, numbered through its parts.
template <typename Run>
void for_parts(const LinearStage& stage, int32_t begin, int32_t end, const Run& run) {
  int32_t first = 0;
  for (const LinearPart& part : stage.parts) {
    const int32_t tiles = part.weight->num_tiles();
    const int32_t from = std::max(begin - first, 0);
    const int32_t to = std::min(end - first, tiles);
    if (from < to) run(part, from, to);
    first += tiles;
  }
}

}  // namespace

void Model::run(Pool::Lease& lease, const LinearStage& stage, const StepPlan& plan) {
  const int32_t rows = num_rows(stage.wanted, plan);
  if (rows == 0) return;
  const auto& out = buffer(stage.out);
  int32_t tiles = 0;
  size_t weight_bytes = 0;
  size_t row_bytes = 0;
  for (const LinearPart& part : stage.parts) {
    tiles += part.weight->num_tiles();
    weight_bytes += static_cast<size_t>(part.weight->num_tiles()) * part.weight->tile_bytes;
    row_bytes = std::max(row_bytes, act_row_bytes(part.kind, stage.k));
  }
  const ProductShape shape =
      ProductShape::make(rows, tiles, stage.k, weight_bytes / static_cast<size_t>(tiles), row_bytes,
                         lease.num_threads());
  lease.parallel_for(shape.num_chunks(), [&](int, uint32_t chunk) {
    const int32_t row = shape.first_row(chunk);
    const auto run = [&](const LinearPart& part, int32_t from, int32_t to) {
      const size_t act_bytes = act_row_bytes(part.kind, stage.k);
      table_.gemm(*part.weight, from, to, act(part.kind) + static_cast<size_t>(row) * act_bytes,
                  std::min(shape.block_rows, rows - row),
                  {out.row(row) + part.column, out.width, part.bias, false});
    };
    for_parts(stage, shape.begin(chunk), shape.end(chunk), run);
  });
}

void Model::run(Pool::Lease& lease, const HeadStage& stage, const StepPlan& plan) {
  const int32_t wanted = num_rows(true, plan);
  const PackedMatrix& w = *stage.weight;
  const ActKind kind = w.act;
  const size_t row_bytes = act_row_bytes(kind, w.k);
  const int32_t tiles = w.num_tiles();
  for (int32_t first = 0; first < wanted; first += kLogitRows) {
    const int32_t rows = std::min(kLogitRows, wanted - first);
    const ProductShape shape =
        ProductShape::make(rows, tiles, w.k, w.tile_bytes, row_bytes, lease.num_threads());
    lease.parallel_for(shape.num_chunks(), [&](int, uint32_t chunk) {
      const int32_t row = shape.first_row(chunk);
      table_.gemm(w, shape.begin(chunk), shape.end(chunk),
                  act(kind) + static_cast<size_t>(first + row) * row_bytes,
                  std::min(shape.block_rows, rows - row),
                  {logits_.as<float>() + row * logits_stride_, logits_stride_, nullptr, false});
    });
    sample(lease, stage, plan, first, rows);
  }
}

void Model::sample(Pool::Lease& lease, const HeadStage& stage, const StepPlan& plan, int32_t first,
                   int32_t rows) {
  lease.parallel_for(static_cast<uint32_t>(rows), [&](int thread, uint32_t row) {
    float* logits = logits_.as<float>() + row * logits_stride_;
    if (stage.softcap > 0.0f) table_.softcap(logits, tape_.vocab(), stage.softcap);
    const size_t index = static_cast<size_t>(first) + row;
    results_[index] = sample_row(table_, logits, tape_.vocab(), plan.wanted[index].spec,
                                 sampling_scratch_[static_cast<size_t>(thread)]);
  });
}

}  // namespace headrace
