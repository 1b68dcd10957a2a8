// The machine's own limits: how fast this processor reads memory and multiplies, apart from any
// model. The probes are loops that do nothing else, in tables of their own: one per instruction
// set, like the kernels', so that every table's share of what its instructions allow can be told.
#pragma once

#include <cstdint>
#include <vector>

#include "tape/memory.h"
#include "threads/pool.h"

namespace headrace {

// What the arithmetic probes read and write; small enough for the first-level cache.
constexpr int32_t kRoofWeightBytes = 16384;
constexpr int32_t kRoofActBytes = 4096;

struct RoofTable {
  const char* name;
  // Reads `bytes` (a multiple of 4096) at `p`, once, in increasing order; the result depends on
  // every one of them.
  uint64_t (*read)(const uint8_t* p, int64_t bytes);
  // The rest return the operations done in `passes`, two for each multiply-add, and leave what
  // they computed in `sink` (64 bytes).
  // Fused multiply-adds of float32, operands in registers.
  double (*fma)(int64_t passes, void* sink);
  // Products of bytes summed in int32, operands in registers.
  double (*int8)(int64_t passes, void* sink);
  // The same with weights of 4 bits, loaded from `weights` (kRoofWeightBytes, all of them each
  // pass) and unpacked for every use by `rows` (1 or 4) rows of `acts` (kRoofActBytes).
  double (*int4)(int64_t passes, int32_t rows, const uint8_t* weights, const int8_t* acts,
                 void* sink);
};

const RoofTable& scalar_roof();
#if defined(__x86_64__)
const RoofTable& avx2_roof();
const RoofTable& avx512_roof();
#elif defined(__aarch64__)
const RoofTable& neon_roof();
#endif
// The probes of a kernel table that this processor supports; those of the scalar table for one that
// has none of its own. nullptr for an unknown or unsupported name.
const RoofTable* roof_named(const char* isa);

enum class RoofOp { kFma, kInt8, kInt4Row, kInt4Rows };

// Bytes or operations per second; the best of several runs each.
struct RoofRates {
  std::vector<double> alone;  // by thread of the pool, the others asleep
  std::vector<int> cpus;      // where each of them ran
  double together = 0.0;      // all threads at once, from the first start to the last end
};

class RoofProbe {
 public:
  // Touches `max_bytes`, each thread its share. std::bad_alloc when they cannot be had.
  RoofProbe(Pool& pool, const RoofTable& table, int64_t max_bytes);
  RoofProbe(const RoofProbe&) = delete;
  RoofProbe& operator=(const RoofProbe&) = delete;

  // Reads a working set of `bytes` <= max_bytes again and again: what stays in a cache comes from
  // it. std::invalid_argument for a size that cannot be shared out.
  RoofRates read(int64_t bytes, int32_t repeat);
  RoofRates compute(RoofOp op, int32_t repeat);

 private:
  // work(thread) by every thread: alone in turn, then all at once; best rates of `repeat`.
  template <typename Work>
  RoofRates measure(int32_t repeat, const Work& work);

  Pool& pool_;
  const RoofTable& table_;
  std::vector<Pages> parts_;  // by thread
  std::vector<Pages> scratch_;
};

}  // namespace headrace
