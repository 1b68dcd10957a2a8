// Attention over a paged cache: prefill, decode, windows, caps, and states that are merged.
#include <algorithm>

#include "attention/attend.h"
#include "attention/plan.h"
#include "common/f16.h"
#include "digest/digest.h"

namespace headrace::digest {
namespace {

struct Shape {
  int32_t num_heads;
  int32_t num_kv_heads;
  int32_t head_dim;
  int32_t window;
  float softcap;
};

// (positions before, rows) of each sequence of a step.
struct Sequence {
  int32_t before;
  int32_t rows;
};

struct Step {
  Shape shape;
  KVType type;
  std::vector<int32_t> positions;
  std::vector<int32_t> seq_starts = {0};
  std::vector<int32_t> tables;
  std::vector<int32_t> table_starts;
  std::vector<float> q;
  std::vector<uint8_t> kv;
  int64_t block_bytes;

  Step(const Shape& s, KVType t, const std::vector<Sequence>& sequences, Random& random)
      : shape(s), type(t) {
    block_bytes = s.num_kv_heads * kv_head_bytes(t, s.head_dim);
    int32_t num_blocks = 0;
    for (const Sequence& each : sequences) {
      table_starts.push_back(static_cast<int32_t>(tables.size()));
      const int32_t len = each.before + each.rows;
      for (int32_t i = 0; i < each.rows; ++i) positions.push_back(each.before + i);
      for (int32_t b = 0; b * kBlockLen < len; ++b) tables.push_back(num_blocks++);
      seq_starts.push_back(seq_starts.back() + each.rows);
    }
    std::reverse(tables.begin(), tables.end());  // blocks lie in any order
    q = floats(random, positions.size() * s.num_heads * s.head_dim);
    kv.resize(num_blocks * block_bytes);
    for (size_t i = 0; i < sequences.size(); ++i) {
      fill(sequences[i].before + sequences[i].rows, tables.data() + table_starts[i], random);
    }
  }

  // K and V of `len` positions. The slots behind the last hold what was there before: NaN here.
  void fill(int32_t len, const int32_t* table, Random& random) {
    for (int32_t b = 0; b * kBlockLen < len; ++b) {
      uint8_t* at = kv.data() + table[b] * block_bytes;
      const int32_t used = len - b * kBlockLen;
      for (int32_t h = 0; h < shape.num_kv_heads; ++h, at += kv_head_bytes(type, shape.head_dim)) {
        if (type == KVType::f16) {
          fill_halves(reinterpret_cast<uint16_t*>(at), used, random);
        } else {
          fill_bytes(at, used, random);
        }
      }
    }
  }

  void fill_halves(uint16_t* keys, int32_t used, Random& random) const {
    constexpr uint16_t kNan = 0x7e00;
    uint16_t* values = keys + int64_t{shape.head_dim} * kBlockLen;
    for (int32_t slot = 0; slot < kBlockLen; ++slot) {
      for (int32_t d = 0; d < shape.head_dim; ++d) {
        keys[d * kBlockLen + slot] = slot < used ? f32_to_f16(random.normal()) : kNan;
        values[slot * shape.head_dim + d] = slot < used ? f32_to_f16(random.normal()) : kNan;
      }
    }
  }

  void fill_bytes(uint8_t* keys, int32_t used, Random& random) const {
    const int64_t part = kv_part_bytes(type, shape.head_dim);
    for (int64_t i = 0; i < 2 * part; ++i) keys[i] = static_cast<uint8_t>(random.below(255) - 127);
    auto* scales = reinterpret_cast<float*>(keys + 2 * part);
    for (int32_t i = 0; i < 2 * kBlockLen; ++i) {
      const float scale = (random.below(100) + 1) * 0x1p-13f;
      scales[i] = i % kBlockLen < used ? scale : __builtin_nanf("");
    }
  }

  std::vector<float> run(const KernelTable& table, int32_t num_threads) const {
    const AttnRows rows = {positions.data(),
                           seq_starts.data(),
                           tables.data(),
                           table_starts.data(),
                           static_cast<int32_t>(table_starts.size()),
                           shape.window};
    AttnPlan plan;
    plan_attention(rows, shape.num_heads, shape.num_kv_heads, num_threads, plan);
    const int64_t width = int64_t{shape.num_heads} * shape.head_dim;
    std::vector<float> out(positions.size() * width, 7.0f);
    std::vector<float> partials(plan.num_partials * partial_floats(shape.head_dim));
    std::vector<float> scratch(
        attend_scratch_floats(shape.num_heads, shape.num_kv_heads, shape.head_dim));
    AttnParams params = {};
    params.q = q.data();
    params.ldq = width;
    params.out = out.data();
    params.ldo = width;
    params.kv = kv.data();
    params.block_bytes = block_bytes;
    params.kv_type = type;
    params.num_heads = shape.num_heads;
    params.num_kv_heads = shape.num_kv_heads;
    params.head_dim = shape.head_dim;
    params.window = shape.window;
    params.scale = 0.125f;
    params.softcap = shape.softcap;
    params.positions = positions.data();
    params.partials = partials.data();
    params.shared_rows = plan.shared_rows.data();
    for (const AttnItem& item : plan.items) table.attend_item(params, item, scratch.data());
    for (const AttnMerge& merge : plan.merges) table.merge_splits(params, merge);
    return out;
  }
};

}  // namespace

void digest_attention(const KernelTable& table) {
  const std::vector<Shape> shapes = {
      {1, 1, 16, 0, 0.0f},  {3, 1, 64, 0, 0.0f},   {9, 3, 64, 0, 0.0f},  {4, 4, 72, 0, 50.0f},
      {8, 1, 24, 0, 30.0f}, {4, 2, 128, 40, 0.0f}, {2, 1, 256, 1, 0.0f}, {5, 5, 40, 300, 20.0f},
  };
  const std::vector<std::vector<Sequence>> steps = {
      {{0, 1}}, {{0, 40}, {259, 1}}, {{250, 9}, {15, 1}, {600, 3}}, {{530, 1}, {511, 2}}};
  for (const KVType type : {KVType::f16, KVType::i8}) {
    Random random(21);
    Digest whole;
    Digest merged;
    for (const Shape& shape : shapes) {
      for (const std::vector<Sequence>& sequences : steps) {
        const Step step(shape, type, sequences, random);
        whole.floats(step.run(table, 1));
        merged.floats(step.run(table, 5));
      }
    }
    const std::string name = type == KVType::f16 ? "f16" : "i8";
    print("attend_item " + name, whole);
    print("merge_splits " + name, merged);
  }
}

}  // namespace headrace::digest
