// The ladder of the phase: how two threads agree that a piece of work begins and has ended.
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "lab/lab.h"
#include "threads/pool.h"

namespace headrace::lab {
namespace {

constexpr int kThreads = 2;
constexpr int kPhases = 64;  // per run
constexpr int kChunks = 8;   // per phase
constexpr size_t kCells = 64 * kChunks;

// Every phase adds one to every cell: small enough that agreement is what is timed.
struct Problem {
  Aligned<float> cells{kCells};

  void chunk(int c) {
    for (size_t i = 0; i < kCells / kChunks; ++i) {
      cells[static_cast<size_t>(c) * (kCells / kChunks) + i] += 1.0f;
    }
  }
  void half(int thread) {
    for (int c = thread; c < kChunks; c += kThreads) chunk(c);
  }
};

// One worker that a rung drives; the caller is the other thread.
template <typename Start, typename Finish>
void run_static(Problem& p, const Start& start, const Finish& finish) {
  for (int phase = 0; phase < kPhases; ++phase) {
    start();
    p.half(0);
    finish();
  }
}

class Blocking {
 public:
  explicit Blocking(Problem& p) : p_(p), worker_([this] { work(); }) {}
  ~Blocking() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    worker_.join();
  }
  void run() {
    run_static(
        p_,
        [this] {
          const std::lock_guard<std::mutex> lock(mutex_);
          busy_ = true;
          changed_.notify_all();
        },
        [this] {
          std::unique_lock<std::mutex> lock(mutex_);
          changed_.wait(lock, [this] { return !busy_; });
        });
  }

 private:
  void work() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return busy_ || stop_; });
      if (stop_) return;
      lock.unlock();
      p_.half(1);
      lock.lock();
      busy_ = false;
      changed_.notify_all();
    }
  }

  Problem& p_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool busy_ = false, stop_ = false;
  std::thread worker_;
};

class Spinning {
 public:
  explicit Spinning(Problem& p) : p_(p), worker_([this] { work(); }) {}
  ~Spinning() {
    stop_.store(true);
    begun_.fetch_add(1);
    worker_.join();
  }
  void run() {
    run_static(
        p_, [this] { begun_.fetch_add(1, std::memory_order_release); },
        [this] {
          while (ended_.load(std::memory_order_acquire) != begun_.load(std::memory_order_relaxed)) {
          }
        });
  }

 private:
  void work() {
    for (uint32_t seen = 0;; ++seen) {
      while (begun_.load(std::memory_order_acquire) == seen) {
      }
      if (stop_.load()) return;
      p_.half(1);
      ended_.store(seen + 1, std::memory_order_release);
    }
  }

  Problem& p_;
  alignas(64) std::atomic<uint32_t> begun_{0};
  alignas(64) std::atomic<uint32_t> ended_{0};
  alignas(64) std::atomic<bool> stop_{false};
  std::thread worker_;
};

void alone(Problem& p) {
  for (int phase = 0; phase < kPhases; ++phase) {
    for (int c = 0; c < kChunks; ++c) p.chunk(c);
  }
}

struct Threads {
  Problem problem;
  std::unique_ptr<Blocking> blocking = std::make_unique<Blocking>(problem);
  Pool pool{kThreads};
};

void spin(Problem& p) {
  // Its own life: a thread that spins for ever would disturb every other rung.
  static thread_local std::unique_ptr<Spinning> spinning;
  spinning = std::make_unique<Spinning>(p);
  for (int i = 0; i < 64; ++i) spinning->run();
  spinning.reset();
}

}  // namespace

std::vector<Ladder> barrier_ladders() {
  auto threads = std::make_shared<Threads>();
  Problem& p = threads->problem;
  Threads& t = *threads;
  constexpr int kRuns = 64;  // `spin` makes so many at once
  const auto repeat = [](auto once) {
    return [once] {
      for (int i = 0; i < kRuns; ++i) once();
    };
  };
  Ladder ladder{
      "barrier",
      "64 phases of 8 tiny chunks on two threads (no work to speak of: agreement is timed)",
      kRuns * kPhases * 1e-3,
      "k/s",
      [&p] { return p.cells.floats(); },
      [&p] {
        for (size_t i = 0; i < kCells; ++i) p.cells[i] = 0.0f;
      },
      {
          {"alone", "no agreement: one thread does it all", "the bound for tiny work",
           Needs::nothing, Match::equal, repeat([&p] { alone(p); })},
          {"mutex and condition", "the worker sleeps between phases",
           "two system calls and a wake-up per phase: 20 us", Needs::nothing, Match::equal,
           repeat([&t] { t.blocking->run(); })},
          {"pure spin", "never sleep (llama.cpp)",
           "0.3 us; a neighbour on the second core makes it thousands of times slower: rejected",
           Needs::nothing, Match::equal, [&p] { spin(p); }},
          {"the pool", "chunks claimed from one word; bounded spin, then a futex",
           "under 1 us, and a descheduled thread costs one chunk", Needs::nothing, Match::equal,
           repeat([&t, &p] {
             Pool::Lease lease(t.pool);
             for (int phase = 0; phase < kPhases; ++phase) {
               lease.parallel_for(kChunks, [&](int, uint32_t c) { p.chunk(static_cast<int>(c)); });
             }
           })},
      },
      threads};
  return {ladder};
}

}  // namespace headrace::lab
