#include "roof/roof.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <thread>

#include "common/table.h"

namespace headrace {
namespace {

constexpr int64_t kReadUnit = 4096;
// Of an arithmetic probe: shorter than a time slice, so that some run is not interrupted.
constexpr double kRunSeconds = 0.003;
constexpr int32_t kRunsPerRepeat = 8;

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Waits until `ready()`: long enough for a busy machine, not for a pool without its workers.
template <typename Ready>
void wait_for(const Ready& ready, std::chrono::microseconds nap) {
  const double deadline_s = now_s() + 600.0;
  while (!ready()) {
    if (nap.count() == 0) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(nap);
    }
    if (now_s() > deadline_s) throw std::runtime_error("the threads of the pool do not run");
  }
}

struct Span {
  double amount = 0.0;
  double start_s = 0.0;
  double end_s = 0.0;
};

template <typename Work>
Span timed(const Work& work, int thread) {
  Span span;
  span.start_s = now_s();
  span.amount = work(thread);
  span.end_s = now_s();
  return span;
}

// A chunk for each thread, which each of them holds until all have one: so none takes two.
template <typename Body>
void on_every_thread(Pool& pool, const Body& body) {
  const int count = pool.num_threads();
  std::atomic<int> arrived{0};
  Pool::Lease lease(pool, count);
  lease.parallel_for(static_cast<uint32_t>(count), [&](int thread, uint32_t) {
    arrived.fetch_add(1);
    wait_for([&] { return arrived.load() == count; }, std::chrono::microseconds(0));
    body(thread);
  });
}

}  // namespace

const RoofTable* roof_named(const char* isa) {
  if (isa == nullptr || choose_table(isa) == nullptr) return nullptr;
#if defined(__x86_64__)
  if (std::strcmp(isa, "avx512") == 0) return &avx512_roof();
  if (std::strcmp(isa, "avx2") == 0) return &avx2_roof();
#elif defined(__aarch64__)
  if (std::strcmp(isa, "neon") == 0) return &neon_roof();
#endif
  return &scalar_roof();
}

RoofProbe::RoofProbe(Pool& pool, const RoofTable& table, int64_t max_bytes)
    : pool_(pool), table_(table) {
  if (max_bytes < 0) throw std::invalid_argument("a working set has at least 0 bytes");
  const int64_t count = pool.num_threads();
  const int64_t part = (max_bytes / count + kReadUnit - 1) / kReadUnit * kReadUnit;
  for (int64_t thread = 0; thread < count; ++thread) {
    parts_.emplace_back(static_cast<size_t>(part), true);
    scratch_.emplace_back(kRoofWeightBytes + kRoofActBytes + 64);
  }
  // By the thread that will read it, so that each has its share near. Not zero: a page that was
  // only read is everybody's one page of zeros.
  on_every_thread(pool_, [&](int thread) {
    std::memset(parts_[thread].data(), 0x5a, parts_[thread].bytes());
    std::memset(scratch_[thread].data(), 0x33, scratch_[thread].bytes());
  });
}

template <typename Work>
RoofRates RoofProbe::measure(int32_t repeat, const Work& work) {
  const int count = pool_.num_threads();
  RoofRates rates;
  rates.alone.assign(count, 0.0);
  rates.cpus.assign(count, -1);
  std::atomic<int> turn{0};
  on_every_thread(pool_, [&](int thread) {
    wait_for([&] { return turn.load() == thread; }, std::chrono::microseconds(500));
    for (int32_t i = 0; i < repeat; ++i) {
      const Span span = timed(work, thread);
      const double rate = span.amount / std::max(span.end_s - span.start_s, 1e-9);
      rates.alone[thread] = std::max(rates.alone[thread], rate);
    }
    rates.cpus[thread] = sched_getcpu();
    turn.store(thread + 1);
  });
  for (int32_t i = 0; i < repeat; ++i) {
    std::vector<Span> spans(count);
    on_every_thread(pool_, [&](int thread) { spans[thread] = timed(work, thread); });
    double amount = 0.0, start_s = spans[0].start_s, end_s = spans[0].end_s;
    for (const Span& span : spans) {
      amount += span.amount;
      start_s = std::min(start_s, span.start_s);
      end_s = std::max(end_s, span.end_s);
    }
    rates.together = std::max(rates.together, amount / std::max(end_s - start_s, 1e-9));
  }
  return rates;
}

RoofRates RoofProbe::read(int64_t bytes, int32_t repeat) {
  const int64_t part = bytes / pool_.num_threads() / kReadUnit * kReadUnit;
  if (repeat < 1 || part < 1 || part > static_cast<int64_t>(parts_[0].bytes())) {
    throw std::invalid_argument("a working set needs a page for each thread and room");
  }
  // Small sets are read several times in a run, for the clock's sake.
  const int64_t passes = std::max<int64_t>(1, (int64_t{64} << 20) / bytes);
  std::vector<uint64_t> sums(pool_.num_threads());
  return measure(repeat, [&](int thread) {
    for (int64_t pass = 0; pass < passes; ++pass) {
      sums[thread] ^= table_.read(parts_[thread].data(), part);
    }
    return static_cast<double>(part * passes);
  });
}

RoofRates RoofProbe::compute(RoofOp op, int32_t repeat) {
  if (repeat < 1 || repeat > 10000) throw std::invalid_argument("repeat is 1 to 10000");
  const auto run = [&](int thread, int64_t passes) {
    uint8_t* scratch = scratch_[thread].data();
    void* sink = scratch + kRoofWeightBytes + kRoofActBytes;
    const auto* acts = reinterpret_cast<const int8_t*>(scratch + kRoofWeightBytes);
    switch (op) {
      case RoofOp::kFma:
        return table_.fma(passes, sink);
      case RoofOp::kInt8:
        return table_.int8(passes, sink);
      case RoofOp::kInt4Row:
        return table_.int4(passes, 1, scratch, acts, sink);
      case RoofOp::kInt4Rows:
        return table_.int4(passes, 4, scratch, acts, sink);
    }
    return 0.0;
  };
  int64_t passes = 16;
  for (double took_s = 0.0; took_s < kRunSeconds && passes < int64_t{1} << 50; passes *= 2) {
    const double start_s = now_s();
    run(0, passes);
    took_s = now_s() - start_s;
  }
  return measure(repeat * kRunsPerRepeat, [&](int thread) { return run(thread, passes); });
}

}  // namespace headrace
