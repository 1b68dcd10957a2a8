#include "tape/weights.h"

#include <algorithm>
#include <stdexcept>

#include "tape/checksum.h"
#include "tape/requantize.h"
#include "threads/fp_env.h"

namespace headrace {
namespace {

constexpr size_t kAlign = 64;
// Tiles are packed in chunks of about this many source bytes.
constexpr size_t kPackChunkBytes = size_t{256} << 10;

size_t ceil_div(size_t a, size_t b) { return (a + b - 1) / b; }

size_t stored_row_bytes(DType dtype, int32_t k) {
  return static_cast<size_t>(k / block_weights(dtype)) * static_cast<size_t>(block_bytes(dtype));
}

void require_shape(const std::string& name, DType dtype, int32_t n, int32_t k) {
  if (n <= 0 || k <= 0 || k % block_weights(dtype) != 0) {
    throw std::invalid_argument(name + ": shape (" + std::to_string(n) + ", " + std::to_string(k) +
                                ") does not fit blocks of " + std::to_string(block_weights(dtype)) +
                                " weights");
  }
}

uint64_t checksum(Pool& pool, const uint8_t* src, size_t bytes) {
  std::vector<uint64_t> pieces(ceil_div(bytes, kChecksumPiece));
  Pool::Lease lease(pool);
  lease.parallel_for(static_cast<uint32_t>(pieces.size()), [&](int, uint32_t i) {
    const size_t begin = i * kChecksumPiece;
    pieces[i] = xxh64(src + begin, std::min(kChecksumPiece, bytes - begin), 0);
  });
  return combine_checksums(pieces, bytes);
}

// One tile whose rows are turned into another type on the way.
void pack_requantized_tile(const KernelTable& table, DType stored, const PackedMatrix& w,
                           const uint8_t* src, int32_t tile, uint8_t* dst) {
  const int32_t row = tile * kTileN;
  const int32_t rows = std::min(kTileN, w.n - row);
  std::vector<float> floats(static_cast<size_t>(w.k));
  std::vector<uint8_t> codes(static_cast<size_t>(rows) * stored_row_bytes(w.dtype, w.k));
  const size_t src_row_bytes = stored_row_bytes(stored, w.k);
  requantize_rows(stored, w.dtype, src + static_cast<size_t>(row) * src_row_bytes, rows, w.k,
                  floats.data(), codes.data());
  table.pack_tiles(w.dtype, codes.data(), rows, w.k, dst, 0, 1);
}

}  // namespace

size_t packed_bytes(DType dtype, int32_t n, int32_t k) {
  require_shape("matrix", dtype, n, k);
  const size_t tiles = ceil_div(static_cast<size_t>(n), kTileN);
  return ceil_div(tiles * packed_tile_bytes(dtype, k), kAlign) * kAlign;
}

Weights::Weights(const KernelTable& table, Pool& pool, size_t capacity_bytes)
    : table_(table), pool_(pool), memory_(capacity_bytes, true) {}

void Weights::require_new(const std::string& name) const {
  if (matrices_.count(name) + vectors_.count(name) > 0) {
    throw std::invalid_argument(name + " was added twice");
  }
}

uint64_t Weights::add_matrix(const std::string& name, DType stored, DType packed, int32_t n,
                             int32_t k, const uint8_t* src, size_t src_bytes,
                             bool float_activations) {
  require_new(name);
  require_shape(name, stored, n, k);
  require_shape(name, packed, n, k);
  if (stored != packed && !can_requantize(stored, packed)) {
    throw std::invalid_argument(name + ": only float weights can be packed into fewer bits");
  }
  if (src_bytes != static_cast<size_t>(n) * stored_row_bytes(stored, k)) {
    throw std::invalid_argument(name + ": " + std::to_string(src_bytes) +
                                " bytes do not match the shape");
  }
  const size_t bytes = packed_bytes(packed, n, k);
  if (bytes > memory_.bytes() - used_bytes_) {
    throw std::invalid_argument(name + " does not fit the capacity announced for all matrices");
  }
  uint8_t* dst = memory_.data() + used_bytes_;
  const ActKind act = float_activations ? ActKind::f32 : act_kind(packed);
  const PackedMatrix w{packed, act, n, k, packed_tile_bytes(packed, k), dst};
  const int32_t tiles = w.num_tiles();
  const int32_t per_chunk = static_cast<int32_t>(std::clamp<size_t>(
      kPackChunkBytes / (kTileN * stored_row_bytes(stored, k)), 1, size_t{1} << 20));
  {
    Pool::Lease lease(pool_);
    lease.parallel_for(static_cast<uint32_t>(ceil_div(tiles, per_chunk)), [&](int, uint32_t chunk) {
      const int32_t begin = static_cast<int32_t>(chunk) * per_chunk;
      const int32_t end = std::min(tiles, begin + per_chunk);
      if (stored == packed) {
        table_.pack_tiles(packed, src, n, k, dst, begin, end);
        return;
      }
      for (int32_t tile = begin; tile < end; ++tile) {
        uint8_t* at = dst + static_cast<size_t>(tile) * w.tile_bytes;
        pack_requantized_tile(table_, stored, w, src, tile, at);
      }
    });
  }
  used_bytes_ += bytes;
  matrices_.emplace(name, w);
  return checksum(pool_, src, src_bytes);
}

uint64_t Weights::add_vector(const std::string& name, DType stored, int32_t count,
                             const uint8_t* src, size_t src_bytes) {
  require_new(name);
  if (stored != DType::f32 && stored != DType::f16 && stored != DType::bf16) {
    throw std::invalid_argument(name + " must be stored as F32, F16 or BF16");
  }
  if (count <= 0 ||
      src_bytes != static_cast<size_t>(count) * static_cast<size_t>(block_bytes(stored))) {
    throw std::invalid_argument(name + ": " + std::to_string(src_bytes) +
                                " bytes do not match its length");
  }
  const FpEnv env;
  std::vector<float> values(static_cast<size_t>(count));
  widen(stored, src, count, values.data());
  vectors_.emplace(name, std::move(values));
  return checksum(pool_, src, src_bytes);
}

const PackedMatrix& Weights::matrix(const std::string& name) const {
  const auto found = matrices_.find(name);
  if (found == matrices_.end()) throw std::invalid_argument("the model has no matrix " + name);
  return found->second;
}

const std::vector<float>& Weights::vector(const std::string& name) const {
  const auto found = vectors_.find(name);
  if (found == vectors_.end()) throw std::invalid_argument("the model has no vector " + name);
  return found->second;
}

}  // namespace headrace
