// How work is cut into chunks: numbers that change speed, never a result.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "common/types.h"

namespace headrace {

// Rows of logits in memory at once, whatever the number of wanted rows.
constexpr int32_t kLogitRows = 32;

// Row operations on fewer floats than this run on the caller: a phase would cost more.
constexpr int64_t kInlineFloats = 24 * 1024;
// Floats that one chunk of row operations touches at least.
constexpr int64_t kRowChunkFloats = 16 * 1024;

// Quantized activations of one row block stay in half of a 512 KiB second-level cache.
constexpr size_t kRowBlockBytes = size_t{192} << 10;
// Few rows: a product is a stream of weights, and a thread loses about a microsecond of its
// bandwidth whenever it jumps, so its chunks are few and long; the longest is what a descheduled
// thread costs. Decode of SmolLM2 on two cores whose last-level cache holds the model, ms per step:
// chunks of 48 to 256 KiB 2.70, of 256 KiB to 1 MiB 2.45, one per thread 2.41. Rows up to which a
// product is such a stream, ms at 8 / 32 rows: 4 8.0 / 26.5, 16 6.9 / 26.6, 64 7.2 / 24.9.
constexpr int32_t kStreamRows = 64;
constexpr int64_t kMinStreamBytes = int64_t{256} << 10;
constexpr int64_t kMaxStreamBytes = int64_t{1} << 20;
constexpr int64_t kStreamChunksPerThread = 2;
// Many rows: arithmetic. At least so many multiply-adds in a chunk, that claiming it costs nothing.
constexpr int64_t kMinChunkMacs = int64_t{1} << 19;
constexpr int64_t kProductChunksPerThread = 16;
constexpr int32_t kChunksPerThread = 4;  // of anything else
// Items of attention in a chunk where there are many: the heads of a row lie side by side in the
// cache. 32 rows at 145 keys, ms of attention per step: alone 6.6, by six 5.7.
constexpr int64_t kItemsPerChunk = 6;
// Kernels take two tiles at a time.
constexpr int32_t kTileStep = 2;

// A gated product makes whole groups of quantized activations: so many tiles of gate and of up.
constexpr int32_t kGroupTiles = 32 / kTileN;
// Its gate and up values in memory at once, per thread: at most so many rows and floats.
constexpr int32_t kGatedRows = 256;
constexpr int32_t kGatedFloats = kGatedRows * 2 * kGroupTiles * kTileN;
inline int32_t gated_tiles(int32_t rows) {
  return kGatedFloats / (2 * kTileN * rows) / kGroupTiles * kGroupTiles;
}

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Equal parts of `rows`: how many rows each chunk of row operations takes.
inline int32_t rows_per_chunk(int32_t rows, int64_t row_floats, int num_threads) {
  if (num_threads == 1 || rows * row_floats < kInlineFloats) return rows;
  const int64_t by_cost = ceil_div(kRowChunkFloats, std::max<int64_t>(1, row_floats));
  const int64_t by_count = ceil_div(rows, int64_t{kChunksPerThread} * num_threads);
  const int64_t half = ceil_div(rows, num_threads);
  return static_cast<int32_t>(std::clamp(std::max(by_cost, by_count), int64_t{1}, half));
}

// A product of `rows` rows with `tiles` tiles is cut into row blocks times tile ranges of about
// equal length: chunk c takes the rows of block c / num_ranges and range c % num_ranges.
struct ProductShape {
  int32_t tiles;
  int32_t block_rows;
  int32_t num_blocks;
  int32_t num_ranges;
  int32_t step;

  uint32_t num_chunks() const {
    return static_cast<uint32_t>(num_blocks) * static_cast<uint32_t>(num_ranges);
  }
  int32_t first_row(uint32_t chunk) const {
    return static_cast<int32_t>(chunk) / num_ranges * block_rows;
  }
  // Ranges begin at multiples of `step` tiles.
  int32_t first_tile(int32_t range) const {
    const int64_t steps = ceil_div(tiles, step);
    return std::min(tiles, static_cast<int32_t>(steps * range / num_ranges * step));
  }
  int32_t begin(uint32_t chunk) const {
    return first_tile(static_cast<int32_t>(chunk) % num_ranges);
  }
  int32_t end(uint32_t chunk) const {
    return first_tile(static_cast<int32_t>(chunk) % num_ranges + 1);
  }

  // `tile_bytes` and `act_bytes` are those of the widest part; k is the length of a row.
  static ProductShape make(int32_t rows, int32_t tiles, int32_t k, size_t tile_bytes,
                           size_t act_bytes, int num_threads, int32_t step = kTileStep) {
    constexpr int64_t kRowStep = 8;  // a multiple of every kernel's register tile
    const int64_t fits = static_cast<int64_t>(kRowBlockBytes / act_bytes) / kRowStep * kRowStep;
    const int64_t least_blocks = ceil_div(rows, std::max(kRowStep, fits));
    const int64_t block_rows = ceil_div(ceil_div(rows, least_blocks), kRowStep) * kRowStep;
    const int64_t num_blocks = ceil_div(rows, block_rows);
    const int64_t threads = num_threads;
    int64_t per_thread = 0;
    if (rows <= kStreamRows) {
      const int64_t bytes = ceil_div(int64_t{tiles} * static_cast<int64_t>(tile_bytes), threads);
      per_thread = std::clamp(bytes / kMinStreamBytes, int64_t{1}, kStreamChunksPerThread);
      per_thread = std::max(per_thread, ceil_div(bytes, kMaxStreamBytes));
    } else {
      const int64_t macs = int64_t{rows} * tiles * kTileN * k / threads;
      per_thread = std::clamp(macs / kMinChunkMacs, int64_t{1}, kProductChunksPerThread);
    }
    const int64_t ranges =
        std::clamp<int64_t>(ceil_div(per_thread * threads, num_blocks), 1, ceil_div(tiles, step));
    return {tiles, static_cast<int32_t>(block_rows), static_cast<int32_t>(num_blocks),
            static_cast<int32_t>(ranges), step};
  }
};

}  // namespace headrace
