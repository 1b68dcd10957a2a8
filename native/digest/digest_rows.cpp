// Elementwise kernels, reductions of logits, and whole draws.
#include "common/f16.h"
#include "digest/digest.h"
#include "sampling/sampling.h"

namespace headrace::digest {
namespace {

constexpr int32_t kDims[] = {1, 2, 7, 8, 9, 16, 31, 64, 100, 577};

struct Rows {
  int32_t rows;
  int32_t dim;
  int64_t ld;
};

// Runs f(rows, random) -> floats over many sizes.
template <typename F>
void over_rows(const char* name, F f) {
  Random random(11);
  Digest digest;
  int32_t rows = 1;
  for (const int32_t dim : kDims) {
    digest.floats(f(Rows{rows, dim, dim + dim % 3}, random));
    rows = rows % 9 + 1;
  }
  print(name, digest);
}

using Gate = void (*)(const float*, int64_t, int32_t, int32_t, float*, int64_t);

void digest_gate(const char* name, Gate gate) {
  over_rows(name, [gate](Rows at, Random& random) {
    const int64_t ldx = 2 * at.dim + 1;
    const auto x = floats(random, ldx * at.rows, 6.0f, true);
    std::vector<float> out(at.ld * at.rows, 3.0f);
    gate(x.data(), ldx, at.rows, at.dim, out.data(), at.ld);
    return out;
  });
}

void digest_norms(const KernelTable& table) {
  over_rows("rmsnorm", [&](Rows at, Random& random) {
    std::vector<float> x = floats(random, at.ld * at.rows);
    if (at.rows % 3 == 0) x = floats(random, at.ld * at.rows, 1e-3f, true);
    const auto w = floats(random, at.dim);
    table.rmsnorm(x.data(), at.ld, w.data(), 1e-6f, at.rows, at.dim, x.data(), at.ld);
    return x;
  });
}

void digest_rope(const KernelTable& table) {
  Random random(12);
  Digest angles;
  Digest turned;
  for (const int32_t pairs : {1, 3, 8, 13, 32, 64}) {
    const int32_t rows = 5;
    const int32_t positions[rows] = {0, 1, 77, 8191, 1000000};
    std::vector<double> inv_freq(pairs);
    double frequency = 1.0;
    for (double& each : inv_freq) {
      each = frequency;
      frequency *= 0.84375;
    }
    std::vector<float> cos_sin(2 * pairs * rows);
    table.rope_angles(positions, rows, inv_freq.data(), pairs, cos_sin.data());
    angles.floats(cos_sin);
    for (const bool interleaved : {false, true}) {
      const int32_t head_dim = 2 * pairs + pairs % 2 * 6;
      const int64_t ldx = 3 * head_dim + 5;
      std::vector<float> x = floats(random, ldx * rows, 1.0f, pairs == 13);
      table.rope(x.data(), ldx, rows, 3, head_dim, cos_sin.data(), pairs, interleaved);
      turned.floats(x);
    }
  }
  print("rope_angles", angles);
  print("rope", turned);
}

void digest_block(const std::vector<uint8_t>& block, KVType type, int32_t heads, int32_t head_dim,
                  Digest& digest) {
  const uint8_t* at = block.data();
  for (int32_t h = 0; h < heads; ++h, at += kv_head_bytes(type, head_dim)) {
    const int64_t codes = 2 * kv_part_bytes(type, head_dim);
    for (int64_t i = 0; i < codes; i += type == KVType::f16 ? 2 : 1) {
      if (type == KVType::f16) {
        uint16_t half;
        std::memcpy(&half, at + i, sizeof(half));
        digest.half(half);
      } else {
        digest.word(at[i]);
      }
    }
    for (int64_t i = codes; i < kv_head_bytes(type, head_dim); i += 4) {
      float scale;
      std::memcpy(&scale, at + i, sizeof(scale));
      digest.value(scale);
    }
  }
}

void digest_kv_store(const KernelTable& table, KVType type, const char* name) {
  Random random(13);
  Digest digest;
  for (const int32_t head_dim : {8, 16, 64, 128}) {
    constexpr int32_t kHeads = 3;
    std::vector<uint8_t> block(kHeads * kv_head_bytes(type, head_dim), 0x3c);
    for (int32_t slot = 0; slot < kBlockLen; slot += 1 + slot % 3) {
      const bool special = slot % 2 == 0 && slot != 4;
      const auto k = floats(random, kHeads * head_dim, slot == 2 ? 1e-6f : 100.0f, special);
      const auto v = floats(random, kHeads * head_dim, slot == 4 ? 1e-31f : 1.0f, special);
      table.kv_store(type, k.data(), v.data(), kHeads, head_dim, block.data(), slot);
    }
    digest_block(block, type, kHeads, head_dim, digest);
  }
  print(std::string("kv_store ") + name, digest);
}

}  // namespace

void digest_elementwise(const KernelTable& table) {
  digest_norms(table);
  digest_rope(table);
  digest_kv_store(table, KVType::f16, "f16");
  digest_kv_store(table, KVType::i8, "i8");
  digest_gate("silu_gate", table.silu_gate);
  digest_gate("gelu_gate", table.gelu_gate);
  over_rows("add", [&](Rows at, Random& random) {
    std::vector<float> x = floats(random, at.ld * at.rows, 1.0f, true);
    const auto y = floats(random, at.ld * at.rows, 1.0f, true);
    table.add(x.data(), at.ld, y.data(), at.ld, at.rows, at.dim);
    return x;
  });
  over_rows("scale", [&](Rows at, Random& random) {
    std::vector<float> x = floats(random, at.ld * at.rows, 1.0f, true);
    table.scale(x.data(), at.ld * at.rows, 0.1f);
    return x;
  });
  over_rows("softcap", [&](Rows at, Random& random) {
    std::vector<float> x = floats(random, at.ld * at.rows, 20.0f, true);
    table.softcap(x.data(), at.ld * at.rows, 30.0f);
    return x;
  });
}

namespace {

void digest_reductions(const KernelTable& table) {
  Random random(14);
  Digest highest;
  Digest sums;
  Digest weights;
  for (const int32_t n : {1, 2, 7, 8, 9, 100, 4096, 4097, 10001}) {
    for (int32_t kind = 0; kind < 4; ++kind) {
      std::vector<float> x = floats(random, n, 8.0f);
      if (kind == 1) x[random.below(n)] = __builtin_nanf("");
      if (kind == 2) x.assign(n, random.chance(2) ? -__builtin_inff() : -0.0f);
      if (kind == 3) {
        for (float& each : x) each = static_cast<float>(random.below(3));  // ties
      }
      float max = -1.0f;
      const int32_t index = table.argmax(x.data(), n, &max);
      highest.word(static_cast<uint32_t>(index));
      highest.value(max);
      if (index < 0) continue;
      sums.value(table.logsumexp(x.data(), n, max));
      for (const double temperature : {0.01, 0.7, 1.0, 3.3}) {
        std::vector<float> out(n + 1, 5.0f);
        table.softmax_weights(x.data(), n, max, temperature, out.data());
        weights.floats(out);
      }
    }
  }
  print("argmax", highest);
  print("logsumexp", sums);
  print("softmax_weights", weights);
}

// Drawing is not an entry, but must not depend on the processor either.
void digest_draws(const KernelTable& table) {
  Random random(15);
  Digest digest;
  SamplingScratch scratch;
  for (int32_t i = 0; i < 60; ++i) {
    const int32_t vocab = 1 + random.below(3000);
    const auto logits = floats(random, vocab, 4.0f);
    std::vector<int32_t> history(20);
    for (int32_t& each : history) each = random.below(vocab);
    SamplingSpec spec;
    spec.temperature = 0.5 + 0.25 * random.below(5);
    spec.top_k = i % 2 ? random.below(60) : 0;
    spec.top_p = i % 3 ? 0.9 : 1.0;
    spec.min_p = i % 5 ? 0.0 : 0.02;
    spec.repetition_penalty = i % 4 ? 1.0 : 1.2;
    spec.presence_penalty = i % 7 ? 0.0 : 0.4;
    spec.frequency_penalty = i % 6 ? 0.0 : 0.3;
    spec.seed = random.bits();
    spec.num_top = i % 8 ? -1 : 5;
    const WantedRow row = {&spec, true, 0, i, history.data(), 20, 8, nullptr, 0, nullptr};
    Highest highest = {-1, 0.0f};
    highest.index = table.argmax(logits.data(), vocab, &highest.value);
    const RowResult result = sample_row(table, logits.data(), vocab, highest, row, scratch);
    digest.word(static_cast<uint32_t>(result.token));
    digest.value(result.logprob);
    for (const double each : result.top_logprobs) digest.value(each);
  }
  print("sample_row", digest);
}

}  // namespace

void digest_sampling(const KernelTable& table) {
  digest_reductions(table);
  digest_draws(table);
}

}  // namespace headrace::digest
