// Packing, quantization and products of every type of weights.
#include <algorithm>

#include "common/f16.h"
#include "digest/digest.h"
#include "gemm/layout.h"

namespace headrace::digest {
namespace {

struct Type {
  DType dtype;
  const char* name;
  std::vector<int32_t> half_columns;  // float16 fields of a stored block
};

const std::vector<Type>& types() {
  static const std::vector<Type> kTypes = {
      {DType::f32, "f32", {}},       {DType::f16, "f16", {0}},      {DType::bf16, "bf16", {}},
      {DType::q4_0, "q4_0", {0}},    {DType::q4_1, "q4_1", {0, 2}}, {DType::q5_0, "q5_0", {0}},
      {DType::q5_1, "q5_1", {0, 2}}, {DType::q8_0, "q8_0", {0}},    {DType::q4_k, "q4_k", {0, 2}},
      {DType::q5_k, "q5_k", {0, 2}}, {DType::q6_k, "q6_k", {208}},
  };
  return kTypes;
}

enum class Values { ordinary, extreme };

uint16_t random_half(Random& random, Values values) {
  if (values == Values::extreme && random.chance(3)) {
    constexpr uint16_t kSpecial[] = {0x0000, 0x8000, 0x0001, 0x83ff, 0x0400,
                                     0x7bff, 0xfbff, 0x7c00, 0x7e01};
    return kSpecial[random.below(9)];
  }
  return f32_to_f16(random.normal() * 0.1f);
}

// Stored rows with any codes. Extreme ones have scales at the ends of float16, and codes all ones
// or zeros.
std::vector<uint8_t> stored_rows(Random& random, const Type& type, int32_t n, int32_t k,
                                 Values values) {
  const auto block = static_cast<size_t>(block_bytes(type.dtype));
  const size_t num_blocks = static_cast<size_t>(n) * (k / block_weights(type.dtype));
  std::vector<uint8_t> rows(num_blocks * block);
  for (size_t b = 0; b < num_blocks; ++b) {
    uint8_t* at = rows.data() + b * block;
    if (type.dtype == DType::f32) {
      const float x = random.normal();
      std::memcpy(at, &x, sizeof(x));
      continue;
    }
    if (type.dtype == DType::bf16) {
      const uint32_t bits = bits_from_float(random.normal()) >> 16;
      std::memcpy(at, &bits, 2);
      continue;
    }
    const bool same = values == Values::extreme && random.chance(3);
    const uint8_t fill = random.chance(2) ? 0xff : 0;
    for (size_t i = 0; i < block; ++i) at[i] = same ? fill : static_cast<uint8_t>(random.bits());
    for (const int32_t column : type.half_columns) {
      const uint16_t half = random_half(random, values);
      std::memcpy(at + column, &half, sizeof(half));
    }
  }
  return rows;
}

// Rows of activations in groups of very different sizes; extreme ones also hold a group that is
// zero, tiny, huge or not finite, and groups whose codes are all at the limit.
std::vector<float> activations(Random& random, int32_t rows, int32_t k, Values values) {
  std::vector<float> x = floats(random, static_cast<size_t>(rows) * k);
  for (size_t i = 0; i < x.size(); i += kGroupLen) {
    const size_t end = std::min(x.size(), i + kGroupLen);
    float factor = __builtin_bit_cast(float, (127u - 12 + random.below(24)) << 23);
    const int32_t kind = values == Values::extreme ? random.below(16) : 16;
    if (kind == 0) factor = 0.0f;
    if (kind == 1) factor = 0x1p-101f;
    if (kind == 2) factor = 0x1p124f;
    for (size_t j = i; j < end; ++j) {
      x[j] *= factor;
      if (kind == 3) x[j] = factor;
      if (kind == 4) x[j] = random.chance(2) ? factor : -factor;
    }
    if (kind == 5) x[i + random.below(static_cast<int32_t>(end - i))] = __builtin_inff();
    if (kind == 6) x[i + random.below(static_cast<int32_t>(end - i))] = __builtin_nanf("");
  }
  return x;
}

// Scales and sums are floats inside the bytes of a group: their NaN is always the same one.
std::vector<uint8_t> quantize(const KernelTable& table, ActKind kind, const std::vector<float>& x,
                              int32_t rows, int32_t k) {
  const size_t stride = act_row_bytes(kind, k);
  std::vector<uint8_t> act(stride * rows, 0xAA);
  table.quantize_rows(kind, x.data(), k, rows, k, act.data(), stride);
  return act;
}

void digest_groups(const std::vector<uint8_t>& act, ActKind kind, int32_t rows, int32_t k,
                   Digest& digest) {
  const size_t stride = act_row_bytes(kind, k);
  for (int32_t r = 0; r < rows; ++r) {
    const uint8_t* at = act.data() + stride * r;
    for (int32_t g = 0; g < k / kGroupLen; ++g) {
      const size_t size = kind == ActKind::a8 ? sizeof(A8Group) : sizeof(A16Group);
      for (size_t i = 0; i < size; i += 4) {
        // The codes come first; a word that holds a float counts as one.
        uint32_t bits;
        std::memcpy(&bits, at + size * g + i, sizeof(bits));
        const size_t codes = kind == ActKind::a8 ? kGroupLen : 2 * kGroupLen;
        if (i >= codes && i < codes + 8) {
          digest.value(float_from_bits(bits));
        } else {
          digest.word(bits);
        }
      }
    }
    for (size_t i = act_used_bytes(kind, k); i < stride; ++i) digest.word(at[i]);
  }
}

void digest_quantization(const KernelTable& table) {
  for (const ActKind kind : {ActKind::a8, ActKind::a16}) {
    Random random(7);
    Digest digest;
    for (const int32_t k : {32, 96, 256, 1024}) {
      for (const Values values : {Values::ordinary, Values::extreme}) {
        const auto x = activations(random, 9, k, values);
        digest_groups(quantize(table, kind, x, 9, k), kind, 9, k, digest);
      }
      // Ties: halves of a code exactly.
      std::vector<float> x(k);
      for (int32_t i = 0; i < k; ++i) x[i] = (random.below(509) - 254) * 0.5f;
      for (int32_t i = 0; i < k; i += kGroupLen) x[i] = kind == ActKind::a8 ? 127.0f : 32767.0f;
      digest_groups(quantize(table, kind, x, 1, k), kind, 1, k, digest);
    }
    print(kind == ActKind::a8 ? "quantize_rows a8" : "quantize_rows a16", digest);
  }
}

struct Shape {
  int32_t n;
  int32_t blocks;
  int32_t rows;
};

// One matrix with its activations through packing, unpacking and products.
struct Case {
  const KernelTable& table;
  const Type& type;
  Shape shape;
  int32_t k;
  std::vector<uint8_t> packed;
  PackedMatrix packed_matrix;

  Case(const KernelTable& t, const Type& ty, Shape s, Random& random, Values values)
      : table(t), type(ty), shape(s) {
    const int32_t block = block_weights(ty.dtype);
    k = s.blocks * (block == 1 ? 11 : block);
    const auto stored = stored_rows(random, ty, s.n, k, values);
    const size_t tile_bytes = packed_tile_bytes(ty.dtype, k);
    const int32_t tiles = (s.n + kTileN - 1) / kTileN;
    packed.resize(tile_bytes * tiles);
    const int32_t middle = tiles / 2;
    table.pack_tiles(ty.dtype, stored.data(), s.n, k, packed.data(), middle, tiles);
    table.pack_tiles(ty.dtype, stored.data(), s.n, k, packed.data(), 0, middle);
    packed_matrix = {ty.dtype, act_kind(ty.dtype), s.n, k, tile_bytes, packed.data()};
  }

  void unpack(Digest& digest) const {
    std::vector<float> row(k);
    for (int32_t o = 0; o < shape.n; ++o) {
      table.unpack_row(packed_matrix, o, row.data());
      digest.floats(row);
    }
  }

  // All of `out` counts, also what no product may touch.
  void product(ActKind kind, Random& random, Values values, Digest& digest) const {
    PackedMatrix w = packed_matrix;
    w.act = kind;
    const auto x = activations(random, shape.rows, k, values);
    const auto bias = floats(random, shape.n);
    const std::vector<uint8_t> act = quantize(table, w.act, x, shape.rows, k);
    const int64_t ldo = shape.n + 3;
    for (int32_t variant = 0; variant < 4; ++variant) {
      std::vector<float> out = floats(random, ldo * shape.rows);
      const ProductOut to = {out.data(), ldo, variant % 2 ? bias.data() : nullptr, variant >= 2};
      const int32_t begin = variant == 3 ? w.num_tiles() / 3 : 0;
      table.gemm(w, begin, w.num_tiles(), act.data(), shape.rows, to);
      digest.floats(out);
    }
  }
};

std::vector<Shape> shapes(const Type& type) {
  std::vector<Shape> all = {{1, 1, 1},  {8, 2, 2}, {13, 3, 3}, {24, 1, 4}, {45, 2, 5}, {17, 1, 6},
                            {37, 1, 7}, {7, 3, 8}, {29, 1, 9}, {43, 1, 1}, {59, 1, 33}};
  // More rows than are multiplied by all tiles at once.
  const int32_t block = block_weights(type.dtype);
  all.push_back({9, 8192 / (block == 1 ? 11 : block), 66});
  return all;
}

}  // namespace

void digest_gemm(const KernelTable& table) {
  digest_quantization(table);
  for (const Type& type : types()) {
    Digest packed;
    Digest unpacked;
    Digest product;
    Digest by_floats;
    Random random(static_cast<uint64_t>(type.dtype) + 100);
    for (const Shape& shape : shapes(type)) {
      for (const Values values : {Values::ordinary, Values::extreme}) {
        if (shape.rows > 33 && values == Values::extreme) continue;
        const Case each(table, type, shape, random, values);
        packed.bytes(each.packed);
        each.unpack(unpacked);
        each.product(act_kind(type.dtype), random, values, product);
        if (act_kind(type.dtype) != ActKind::f32) {
          each.product(ActKind::f32, random, values, by_floats);
        }
      }
    }
    print(std::string("pack_tiles ") + type.name, packed);
    print(std::string("unpack_row ") + type.name, unpacked);
    print(std::string("gemm ") + type.name, product);
    if (act_kind(type.dtype) != ActKind::f32) {
      print(std::string("gemm ") + type.name + " by f32", by_floats);
    }
  }
}

}  // namespace headrace::digest
