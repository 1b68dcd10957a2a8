// Weights of one model: matrices packed for the kernels, small vectors as floats, checksums of the
// bytes they came from.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/table.h"
#include "tape/memory.h"
#include "threads/pool.h"

namespace headrace {

// Bytes that a matrix takes in Weights; std::invalid_argument if k does not fit the type's blocks.
size_t packed_bytes(DType dtype, int32_t n, int32_t k);

class Weights {
 public:
  // `capacity_bytes`: the sum of packed_bytes of all matrices to come. Matrices lie in it in the
  // order they are added.
  Weights(const KernelTable& table, Pool& pool, size_t capacity_bytes);

  const KernelTable& table() const { return table_; }

  // Packs a matrix of n rows of k weights stored as `stored` (row-major), turned into `packed`
  // first if that differs (see requantize.h). Its products take activations as `packed` asks, or
  // as they are with `float_activations`. Returns the checksum of the source.
  // std::invalid_argument: wrong size, a second tensor of that name, or no room.
  uint64_t add_matrix(const std::string& name, DType stored, DType packed, int32_t n, int32_t k,
                      const uint8_t* src, size_t src_bytes, bool float_activations);
  // Keeps `count` values stored as f32, f16 or bf16 as floats.
  uint64_t add_vector(const std::string& name, DType stored, int32_t count, const uint8_t* src,
                      size_t src_bytes);

  // std::invalid_argument names a tensor that is lacking.
  const PackedMatrix& matrix(const std::string& name) const;
  const std::vector<float>& vector(const std::string& name) const;

 private:
  void require_new(const std::string& name) const;

  const KernelTable& table_;
  Pool& pool_;
  Pages memory_;
  size_t used_bytes_ = 0;
  // Node-based: references stay valid.
  std::unordered_map<std::string, PackedMatrix> matrices_;
  std::unordered_map<std::string, std::vector<float>> vectors_;
};

}  // namespace headrace
