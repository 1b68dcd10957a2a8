// Linear stages and the head: products of quantized rows with packed weights, then sampling.
#include "gemm/layout.h"
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
    row_bytes = std::max(row_bytes, act_row_bytes(part.act.kind, stage.k));
  }
  const ProductShape shape =
      ProductShape::make(rows, tiles, stage.k, weight_bytes / static_cast<size_t>(tiles), row_bytes,
                         lease.num_threads());
  lease.parallel_for(shape.num_chunks(), [&](int, uint32_t chunk) {
    const int32_t row = shape.first_row(chunk);
    const auto run = [&](const LinearPart& part, int32_t from, int32_t to) {
      const size_t act_bytes = act_row_bytes(part.act.kind, stage.k);
      table_.gemm(*part.weight, from, to, act(part.act) + static_cast<size_t>(row) * act_bytes,
                  std::min(shape.block_rows, rows - row),
                  {out.row(row) + part.column, out.width, part.bias, stage.accumulate});
    };
    for_parts(stage, shape.begin(chunk), shape.end(chunk), run);
  });
}

// A chunk takes as many tiles of gate and of up at a time as its thread's scratch holds.
void Model::run(Pool::Lease& lease, const GatedStage& stage, const StepPlan& plan) {
  const int32_t rows = plan.num_rows();
  const PackedMatrix& gate = *stage.gate.weight;
  const size_t tile_bytes = gate.tile_bytes + stage.up.weight->tile_bytes;
  const size_t row_bytes = std::max(act_row_bytes(stage.gate.act.kind, stage.k),
                                    act_row_bytes(stage.up.act.kind, stage.k));
  const ProductShape shape = ProductShape::make(rows, gate.num_tiles(), 2 * stage.k, tile_bytes,
                                                row_bytes, lease.num_threads(), kGroupTiles);
  lease.parallel_for(shape.num_chunks(), [&](int thread, uint32_t chunk) {
    float* scratch = gated_scratch_.as<float>() + int64_t{thread} * kGatedFloats;
    const int32_t end_row = std::min(rows, shape.first_row(chunk) + shape.block_rows);
    const int32_t end_tile = shape.end(chunk);
    const int32_t most_rows = std::min(kGatedRows, shape.block_rows);
    const int32_t most_tiles = gated_tiles(std::min(most_rows, rows));
    for (int32_t tile = shape.begin(chunk); tile < end_tile; tile += most_tiles) {
      const int32_t tiles = std::min(most_tiles, end_tile - tile);
      for (int32_t row = shape.first_row(chunk); row < end_row; row += most_rows) {
        gate_block(stage, {tile, tiles, row, std::min(most_rows, end_row - row)}, scratch);
      }
    }
  });
}

void Model::gate_block(const GatedStage& stage, const Block& block, float* scratch) const {
  const int32_t first = block.tile * kTileN;
  const int32_t dim = std::min(block.tiles * kTileN, stage.gate.weight->n - first);
  const int64_t ld = int64_t{2} * dim;
  for (const LinearPart* part : {&stage.gate, &stage.up}) {
    PackedMatrix w = *part->weight;
    w.data += static_cast<size_t>(block.tile) * w.tile_bytes;
    w.n = dim;
    const size_t act_bytes = act_row_bytes(part->act.kind, stage.k);
    table_.gemm(w, 0, w.num_tiles(), act(part->act) + static_cast<size_t>(block.row) * act_bytes,
                block.rows,
                {part == &stage.gate ? scratch : scratch + dim, ld,
                 part->bias == nullptr ? nullptr : part->bias + first, false});
  }
  gate_kernel(stage.activation)(scratch, ld, block.rows, dim, scratch, ld);
  const int32_t width = stage.gate.weight->n;
  for (const ActKind kind : stage.kinds) {
    const size_t row_bytes = act_row_bytes(kind, width);
    uint8_t* dst = act({kind, true}) + static_cast<size_t>(block.row) * row_bytes;
    table_.quantize_rows(kind, scratch, ld, block.rows, dim, dst + act_used_bytes(kind, first),
                         row_bytes);
  }
}

void Model::run(Pool::Lease& lease, const HeadStage& stage, const StepPlan& plan) {
  const int32_t wanted = num_rows(true, plan);
  const PackedMatrix& w = *stage.weight;
  const size_t row_bytes = act_row_bytes(w.act, w.k);
  const int32_t tiles = w.num_tiles();
  for (int32_t first = 0; first < wanted; first += kLogitRows) {
    const int32_t rows = std::min(kLogitRows, wanted - first);
    const ProductShape shape =
        ProductShape::make(rows, tiles, w.k, w.tile_bytes, row_bytes, lease.num_threads());
    highest_.resize(static_cast<size_t>(shape.num_ranges) * kLogitRows);
    lease.parallel_for(shape.num_chunks(), [&](int, uint32_t chunk) {
      const int32_t row = shape.first_row(chunk);
      table_.gemm(w, shape.begin(chunk), shape.end(chunk),
                  act(stage.act) + static_cast<size_t>(first + row) * row_bytes,
                  std::min(shape.block_rows, rows - row),
                  {logits_.as<float>() + row * logits_stride_, logits_stride_, nullptr, false});
      finish_logits(stage, shape, chunk, rows);
    });
    sample(lease, plan, first, rows, shape.num_ranges);
  }
}

// Caps the logits of a chunk and finds the highest of each row, while they are near.
void Model::finish_logits(const HeadStage& stage, const ProductShape& shape, uint32_t chunk,
                          int32_t rows) {
  const int32_t begin = shape.begin(chunk) * kTileN;
  const int32_t count = std::min(shape.end(chunk) * kTileN, tape_.vocab()) - begin;
  const int32_t end_row = std::min(rows, shape.first_row(chunk) + shape.block_rows);
  Highest* found =
      highest_.data() + static_cast<int32_t>(chunk) % shape.num_ranges * int64_t{kLogitRows};
  for (int32_t row = shape.first_row(chunk); row < end_row; ++row) {
    float* logits = logits_.as<float>() + row * logits_stride_ + begin;
    if (stage.softcap > 0.0f) table_.softcap(logits, count, stage.softcap);
    Highest& highest = found[row];
    highest.index = table_.argmax(logits, count, &highest.value);
    if (highest.index >= 0) highest.index += begin;
  }
}

void Model::sample(Pool::Lease& lease, const StepPlan& plan, int32_t first, int32_t rows,
                   int32_t num_ranges) {
  lease.parallel_for(static_cast<uint32_t>(rows), [&](int thread, uint32_t row) {
    Highest highest = highest_[row];
    for (int32_t range = 1; range < num_ranges; ++range) {
      highest = highest_of(highest, highest_[static_cast<size_t>(range) * kLogitRows + row]);
    }
    const float* logits = logits_.as<float>() + row * logits_stride_;
    const size_t index = static_cast<size_t>(first) + row;
    results_[index] = sample_row(table_, logits, tape_.vocab(), highest, plan.wanted[index].spec,
                                 sampling_scratch_[static_cast<size_t>(thread)]);
  });
}

}  // namespace headrace
