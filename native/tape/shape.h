// How work is cut into chunks: numbers that change speed, never a result.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace headrace {

// Rows of logits in memory at once, whatever the number of wanted rows.
constexpr int32_t kLogitRows = 32;

// Row operations on fewer floats than this run on the caller: a phase would cost more.
constexpr int64_t kInlineFloats = 24 * 1024;
// Floats that one chunk of row operations touches at least.
constexpr int64_t kRowChunkFloats = 16 * 1024;

// Quantized activations of one row block stay in half of a 512 KiB second-level cache.
constexpr size_t kRowBlockBytes = size_t{192} << 10;
// A chunk of a product: at least this many weight bytes (decode) and multiply-adds (prefill), so
// that claiming it costs nothing; at most a fraction of the whole, so that threads finish together.
constexpr size_t kMinChunkBytes = size_t{16} << 10;
constexpr int64_t kMinChunkMacs = int64_t{1} << 20;
constexpr int32_t kChunksPerThread = 4;

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Equal parts of `rows`: how many rows each chunk of row operations takes.
inline int32_t rows_per_chunk(int32_t rows, int64_t row_floats, int num_threads) {
  if (num_threads == 1 || rows * row_floats < kInlineFloats) return rows;
  const int64_t by_cost = ceil_div(kRowChunkFloats, std::max<int64_t>(1, row_floats));
  const int64_t by_count = ceil_div(rows, int64_t{kChunksPerThread} * num_threads);
  const int64_t half = ceil_div(rows, num_threads);
  return static_cast<int32_t>(std::clamp(std::max(by_cost, by_count), int64_t{1}, half));
}

// A product of `rows` rows with `tiles` tiles is cut into row blocks times tile ranges.
struct ProductShape {
  int32_t block_rows;
  int32_t num_blocks;
  int32_t chunk_tiles;
  int32_t num_chunks;  // per row block

  static ProductShape make(int32_t rows, int32_t tiles, int32_t k, size_t tile_bytes,
                           size_t act_row_bytes, int num_threads) {
    constexpr int32_t kRowStep = 8;  // a multiple of every kernel's register tile
    const auto fits = std::max<int64_t>(
        kRowStep, static_cast<int64_t>(kRowBlockBytes / std::max<size_t>(1, act_row_bytes)) /
                      kRowStep * kRowStep);
    const int64_t num_blocks = ceil_div(rows, fits);
    const int64_t block_rows = ceil_div(ceil_div(rows, num_blocks), kRowStep) * kRowStep;
    const int64_t tile_macs = std::min<int64_t>(rows, block_rows) * k * 8;
    const int64_t by_bytes = ceil_div(static_cast<int64_t>(kMinChunkBytes),
                                      static_cast<int64_t>(std::max<size_t>(1, tile_bytes)));
    const int64_t by_macs = ceil_div(kMinChunkMacs, tile_macs);
    const int64_t by_count =
        std::max<int64_t>(1, tiles * num_blocks / (int64_t{kChunksPerThread} * num_threads));
    const int64_t least = rows < kRowStep ? by_bytes : std::min(by_bytes, by_macs);
    // Large products: many small chunks, as small as is cheap; small ones: few.
    int64_t chunk = std::max(least, std::min<int64_t>(by_count, 8 * least));
    chunk = std::clamp<int64_t>(chunk, 1, ceil_div(tiles, num_threads));
    return {static_cast<int32_t>(block_rows), static_cast<int32_t>(num_blocks),
            static_cast<int32_t>(chunk), static_cast<int32_t>(ceil_div(tiles, chunk))};
  }
};

}  // namespace headrace
