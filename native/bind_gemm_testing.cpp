// headrace._native.testing: the GEMM part of every kernel table on plain bytes, for proofs.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "bind_testing.h"
#include "common/table.h"
#include "threads/fp_env.h"

namespace nb = nanobind;

namespace headrace {
namespace {

DType checked_dtype(int32_t dtype) {
  for (const int32_t known : {0, 1, 2, 3, 6, 7, 8, 12, 13, 14, 30}) {
    if (dtype == known) return static_cast<DType>(dtype);
  }
  throw std::invalid_argument("unknown dtype");
}

// Memory at the alignment that weights and activations have in a worker.
struct Freer {
  void operator()(uint8_t* p) const { std::free(p); }
};
using Buffer = std::unique_ptr<uint8_t[], Freer>;

Buffer aligned_buffer(size_t size) {
  auto* p = static_cast<uint8_t*>(std::aligned_alloc(64, (size / 64 + 1) * 64));
  if (p == nullptr) throw std::bad_alloc();
  return Buffer(p);
}

Buffer aligned_copy(const nb::bytes& data) {
  Buffer copy = aligned_buffer(data.size());
  std::memcpy(copy.get(), data.c_str(), data.size());
  return copy;
}

nb::bytes to_bytes(const void* data, size_t size) {
  return nb::bytes(static_cast<const char*>(data), size);
}

struct Shape {
  DType dtype;
  int32_t n;
  int32_t k;
  size_t tile_bytes;

  Shape(int32_t type, int32_t outputs, int32_t inputs)
      : dtype(checked_dtype(type)), n(outputs), k(inputs) {
    require(n > 0 && k > 0, "n and k must be positive");
    tile_bytes = packed_tile_bytes(dtype, k);
    require(tile_bytes > 0, "k must be a multiple of the dtype's block");
  }
  int32_t num_tiles() const { return (n + kTileN - 1) / kTileN; }
  size_t packed_bytes() const { return tile_bytes * num_tiles(); }
  size_t stored_bytes() const {
    return static_cast<size_t>(n) * (k / block_weights(dtype)) * block_bytes(dtype);
  }
};

// Bytes of tiles outside the range are 0xff.
Buffer pack_source(const KernelTable& table, const Shape& shape, const nb::bytes& src,
                   int32_t tile_begin, int32_t tile_end) {
  require(src.size() == shape.stored_bytes(), "src has another size than n rows of the dtype");
  require(0 <= tile_begin && tile_begin <= tile_end && tile_end <= shape.num_tiles(),
          "the tiles are outside the matrix");
  Buffer packed = aligned_buffer(shape.packed_bytes());
  std::memset(packed.get(), 0xff, shape.packed_bytes());
  table.pack_tiles(shape.dtype, static_cast<const uint8_t*>(src.data()), shape.n, shape.k,
                   packed.get(), tile_begin, tile_end);
  return packed;
}

nb::bytes pack(const std::string& isa, int32_t dtype, const nb::bytes& src, int32_t n, int32_t k,
               int32_t tile_begin, int32_t tile_end) {
  const FpEnv env;
  const Shape shape(dtype, n, k);
  const Buffer packed = pack_source(table_named(isa), shape, src, tile_begin, tile_end);
  return to_bytes(packed.get(), shape.packed_bytes());
}

nb::bytes unpack(const std::string& isa, int32_t dtype, const nb::bytes& packed, int32_t n,
                 int32_t k, int32_t row) {
  const FpEnv env;
  const Shape shape(dtype, n, k);
  require(packed.size() == shape.packed_bytes(), "packed has another size than the shape");
  require(row >= 0 && row < n, "row is outside the matrix");
  const Buffer data = aligned_copy(packed);
  std::vector<float> out(k);
  const PackedMatrix w{shape.dtype, act_kind(shape.dtype), n, k, shape.tile_bytes, data.get()};
  table_named(isa).unpack_row(w, row, out.data());
  return to_bytes(out.data(), out.size() * sizeof(float));
}

Buffer quantize_source(const KernelTable& table, ActKind kind, const nb::bytes& x, int32_t rows,
                       int32_t k) {
  require(rows > 0 && k > 0, "rows and k must be positive");
  require(kind == ActKind::f32 || k % 32 == 0, "k must be a multiple of 32");
  require(x.size() == static_cast<size_t>(rows) * k * sizeof(float), "x has another size");
  Buffer act = aligned_buffer(act_row_bytes(kind, k) * rows);
  const Buffer floats = aligned_copy(x);
  const size_t row_bytes = act_row_bytes(kind, k);
  std::memset(act.get(), 0, row_bytes * rows);
  table.quantize_rows(kind, reinterpret_cast<const float*>(floats.get()), k, rows, k, act.get(),
                      row_bytes);
  return act;
}

nb::bytes quantize(const std::string& isa, int32_t kind, const nb::bytes& x, int32_t rows,
                   int32_t k) {
  const FpEnv env;
  require(kind >= 0 && kind <= 2, "unknown kind of activations");
  const auto act_kind = static_cast<ActKind>(kind);
  const Buffer act = quantize_source(table_named(isa), act_kind, x, rows, k);
  return to_bytes(act.get(), act_row_bytes(act_kind, k) * rows);
}

// With a residual the product is added to it. Outputs outside the tiles are returned as they were:
// the residual's, or the float with all bits set, a NaN.
nb::bytes gemm(const std::string& isa, int32_t dtype, const nb::bytes& src, int32_t n, int32_t k,
               const nb::bytes& x, int32_t rows, const std::optional<nb::bytes>& bias,
               int32_t tile_begin, int32_t tile_end, bool float_activations,
               const std::optional<nb::bytes>& residual) {
  const FpEnv env;
  const Shape shape(dtype, n, k);
  const ActKind kind = float_activations ? ActKind::f32 : act_kind(shape.dtype);
  const KernelTable& table = table_named(isa);
  require(!bias || bias->size() == n * sizeof(float), "bias has another size than n floats");
  const Buffer packed = pack_source(table, shape, src, tile_begin, tile_end);
  const Buffer act = quantize_source(table, kind, x, rows, k);
  const Buffer offsets = bias ? aligned_copy(*bias) : Buffer();
  const size_t out_bytes = static_cast<size_t>(rows) * n * sizeof(float);
  require(!residual || residual->size() == out_bytes, "residual has another size than the output");
  const Buffer out = residual ? aligned_copy(*residual) : aligned_buffer(out_bytes);
  if (!residual) std::memset(out.get(), 0xff, out_bytes);
  const PackedMatrix w{shape.dtype, kind, n, k, shape.tile_bytes, packed.get()};
  const ProductOut to{reinterpret_cast<float*>(out.get()), n,
                      reinterpret_cast<const float*>(offsets.get()), residual.has_value()};
  table.gemm(w, tile_begin, tile_end, act.get(), rows, to);
  return to_bytes(out.get(), out_bytes);
}

}  // namespace

// Adds the functions to the submodule `testing`.
void bind_gemm_testing(nb::module_& testing) {
  testing.def("pack", pack, nb::arg("isa"), nb::arg("dtype"), nb::arg("src"), nb::arg("n"),
              nb::arg("k"), nb::arg("tile_begin"), nb::arg("tile_end"));
  testing.def("unpack", unpack, nb::arg("isa"), nb::arg("dtype"), nb::arg("packed"), nb::arg("n"),
              nb::arg("k"), nb::arg("row"));
  testing.def("quantize", quantize, nb::arg("isa"), nb::arg("kind"), nb::arg("x"), nb::arg("rows"),
              nb::arg("k"));
  testing.def("gemm", gemm, nb::arg("isa"), nb::arg("dtype"), nb::arg("src"), nb::arg("n"),
              nb::arg("k"), nb::arg("x"), nb::arg("rows"), nb::arg("bias").none(),
              nb::arg("tile_begin"), nb::arg("tile_end"), nb::arg("float_activations") = false,
              nb::arg("residual").none() = nb::none());
}

}  // namespace headrace
