// headrace._native.testing: elementwise kernels, reductions and scalar math on plain bytes, for
// proofs. Memory has a guard behind it, so that a kernel that writes past its end is caught.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bind_testing.h"
#include "common/math.h"
#include "common/table.h"
#include "tape/tape.h"
#include "threads/fp_env.h"

namespace nb = nanobind;

namespace headrace {
namespace {

// Values copied from bytes, or `count` values of all bits set, and a guard of all bits set.
template <typename T>
class Guarded {
 public:
  explicit Guarded(size_t count) : values_(count + kGuard) {
    std::memset(values_.data(), 0xff, values_.size() * sizeof(T));
  }
  explicit Guarded(const nb::bytes& data) : Guarded(data.size() / sizeof(T)) {
    require(data.size() % sizeof(T) == 0, "the bytes are not whole values");
    std::memcpy(values_.data(), data.data(), data.size());
  }

  T* data() { return values_.data(); }
  const T* data() const { return values_.data(); }
  size_t size() const { return values_.size() - kGuard; }
  nb::bytes bytes() const {
    const auto* guard = reinterpret_cast<const uint8_t*>(values_.data() + size());
    for (size_t i = 0; i < kGuard * sizeof(T); ++i) {
      if (guard[i] != 0xff) throw std::runtime_error("a kernel wrote past its end");
    }
    return nb::bytes(reinterpret_cast<const char*>(values_.data()), size() * sizeof(T));
  }

 private:
  static constexpr size_t kGuard = 16;
  std::vector<T> values_;
};
using Floats = Guarded<float>;

void require_rows(const Floats& x, int64_t ldx, int32_t rows, int32_t width) {
  require(rows > 0 && width > 0 && ldx >= width, "rows and width must be positive, ldx >= width");
  require(x.size() == static_cast<size_t>(rows * ldx), "x has another size than rows * ldx");
}

nb::bytes log64_all(const nb::bytes& x) {
  const FpEnv env;
  Guarded<double> values(x);
  for (size_t i = 0; i < values.size(); ++i) values.data()[i] = log64(values.data()[i]);
  return values.bytes();
}

nb::bytes rmsnorm(const std::string& isa, const nb::bytes& x, int64_t ldx, const nb::bytes& w,
                  float eps, int32_t rows, int32_t dim, bool in_place) {
  const FpEnv env;
  Floats source(x);
  const Floats weight(w);
  require_rows(source, ldx, rows, dim);
  require(weight.size() == static_cast<size_t>(dim), "w has another size than dim");
  Floats other(source.size());
  Floats& out = in_place ? source : other;
  table_named(isa).rmsnorm(source.data(), ldx, weight.data(), eps, rows, dim, out.data(), ldx);
  return out.bytes();
}

nb::bytes rope_angles(const std::string& isa, const nb::bytes& positions,
                      const nb::bytes& inv_freq) {
  const FpEnv env;
  const Guarded<int32_t> rows(positions);
  const Guarded<double> frequencies(inv_freq);
  Floats out(rows.size() * frequencies.size() * 2);
  table_named(isa).rope_angles(rows.data(), static_cast<int32_t>(rows.size()), frequencies.data(),
                               static_cast<int32_t>(frequencies.size()), out.data());
  return out.bytes();
}

nb::bytes rope(const std::string& isa, const nb::bytes& x, int64_t ldx, int32_t rows,
               int32_t num_heads, int32_t head_dim, const nb::bytes& cos_sin, bool interleaved) {
  const FpEnv env;
  Floats values(x);
  const Floats angles(cos_sin);
  require_rows(values, ldx, rows, num_heads * head_dim);
  require(angles.size() % (2 * static_cast<size_t>(rows)) == 0, "cos_sin has no whole rows");
  const auto pairs = static_cast<int32_t>(angles.size() / 2 / static_cast<size_t>(rows));
  require(2 * pairs <= head_dim, "more pairs than half the head");
  table_named(isa).rope(values.data(), ldx, rows, num_heads, head_dim, angles.data(), pairs,
                        interleaved);
  return values.bytes();
}

nb::bytes kv_store(const std::string& isa, const nb::bytes& k, const nb::bytes& v,
                   int32_t num_kv_heads, int32_t head_dim, const nb::bytes& block, int32_t slot,
                   int32_t kv_type) {
  const FpEnv env;
  const Floats keys(k);
  const Floats values(v);
  const KVType type = to_kv_type(kv_type);
  Guarded<uint8_t> memory(block);
  const auto width = static_cast<size_t>(num_kv_heads) * static_cast<size_t>(head_dim);
  require(keys.size() == width && values.size() == width, "k or v has another size than one row");
  require(memory.size() == static_cast<size_t>(num_kv_heads * kv_head_bytes(type, head_dim)),
          "block has another size");
  require(slot >= 0 && slot < kBlockLen && head_dim % 8 == 0, "slot or head_dim is wrong");
  table_named(isa).kv_store(type, keys.data(), values.data(), num_kv_heads, head_dim, memory.data(),
                            slot);
  return memory.bytes();
}

nb::bytes gate(const std::string& isa, const std::string& activation, const nb::bytes& x,
               int64_t ldx, int32_t rows, int32_t dim) {
  const FpEnv env;
  const Floats values(x);
  require_rows(values, ldx, rows, 2 * dim);
  require(activation == "silu" || activation == "gelu_tanh", "unknown activation");
  const KernelTable& table = table_named(isa);
  Floats out(static_cast<size_t>(rows) * static_cast<size_t>(dim));
  (activation == "silu" ? table.silu_gate : table.gelu_gate)(values.data(), ldx, rows, dim,
                                                             out.data(), dim);
  return out.bytes();
}

nb::bytes add(const std::string& isa, const nb::bytes& x, int64_t ldx, const nb::bytes& y,
              int64_t ldy, int32_t rows, int32_t dim) {
  const FpEnv env;
  Floats values(x);
  const Floats addend(y);
  require_rows(values, ldx, rows, dim);
  require_rows(addend, ldy, rows, dim);
  table_named(isa).add(values.data(), ldx, addend.data(), ldy, rows, dim);
  return values.bytes();
}

nb::bytes scale(const std::string& isa, const nb::bytes& x, float factor) {
  const FpEnv env;
  Floats values(x);
  table_named(isa).scale(values.data(), static_cast<int64_t>(values.size()), factor);
  return values.bytes();
}

nb::bytes softcap(const std::string& isa, const nb::bytes& x, float cap) {
  const FpEnv env;
  Floats values(x);
  table_named(isa).softcap(values.data(), static_cast<int64_t>(values.size()), cap);
  return values.bytes();
}

std::pair<int32_t, float> argmax(const std::string& isa, const nb::bytes& x) {
  const FpEnv env;
  const Floats values(x);
  require(values.size() > 0, "x is empty");
  float value = 0.0f;
  const int32_t index =
      table_named(isa).argmax(values.data(), static_cast<int32_t>(values.size()), &value);
  return {index, value};
}

double logsumexp(const std::string& isa, const nb::bytes& x, float max) {
  const FpEnv env;
  const Floats values(x);
  return table_named(isa).logsumexp(values.data(), static_cast<int32_t>(values.size()), max);
}

nb::bytes softmax_weights(const std::string& isa, const nb::bytes& x, float max,
                          double temperature) {
  const FpEnv env;
  const Floats values(x);
  Floats out(values.size());
  table_named(isa).softmax_weights(values.data(), static_cast<int32_t>(values.size()), max,
                                   temperature, out.data());
  return out.bytes();
}

}  // namespace

// Adds the functions to the submodule `testing`.
void bind_kernels_testing(nb::module_& testing) {
  testing.def("log64", log64_all, nb::arg("x"));
  testing.def("rmsnorm", rmsnorm, nb::arg("isa"), nb::arg("x"), nb::arg("ldx"), nb::arg("w"),
              nb::arg("eps"), nb::arg("rows"), nb::arg("dim"), nb::arg("in_place"));
  testing.def("rope_angles", rope_angles, nb::arg("isa"), nb::arg("positions"),
              nb::arg("inv_freq"));
  testing.def("rope", rope, nb::arg("isa"), nb::arg("x"), nb::arg("ldx"), nb::arg("rows"),
              nb::arg("num_heads"), nb::arg("head_dim"), nb::arg("cos_sin"),
              nb::arg("interleaved"));
  testing.def("kv_store", kv_store, nb::arg("isa"), nb::arg("k"), nb::arg("v"),
              nb::arg("num_kv_heads"), nb::arg("head_dim"), nb::arg("block"), nb::arg("slot"),
              nb::arg("kv_type"));
  testing.def("gate", gate, nb::arg("isa"), nb::arg("activation"), nb::arg("x"), nb::arg("ldx"),
              nb::arg("rows"), nb::arg("dim"));
  testing.def("add", add, nb::arg("isa"), nb::arg("x"), nb::arg("ldx"), nb::arg("y"),
              nb::arg("ldy"), nb::arg("rows"), nb::arg("dim"));
  testing.def("scale", scale, nb::arg("isa"), nb::arg("x"), nb::arg("factor"));
  testing.def("softcap", softcap, nb::arg("isa"), nb::arg("x"), nb::arg("cap"));
  testing.def("argmax", argmax, nb::arg("isa"), nb::arg("x"));
  testing.def("logsumexp", logsumexp, nb::arg("isa"), nb::arg("x"), nb::arg("max"));
  testing.def("softmax_weights", softmax_weights, nb::arg("isa"), nb::arg("x"), nb::arg("max"),
              nb::arg("temperature"));
}

}  // namespace headrace
