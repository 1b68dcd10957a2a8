// The right to compute on a set of processors, shared by processes that would otherwise fight for
// them: whoever holds it runs a step, the others sleep. One page of shared memory behind a
// descriptor that the gateway hands to its workers.
//
// - The word is a priority-inheriting futex used for what the kernel adds to it: it knows the
// owner,
//   so the death of an owner (kill -9 in mid step) passes the lease on at once, without a robust
//   list and without pointers in shared memory; and it hands the lease to the thread that has
//   waited longest, so a worker that wants it again at once queues behind the others. Waiting
//   sleeps.
// - Nobody waits for a stopped owner for ever. An owner counts a beat with every chunk of its step;
//   one that lets kStall pass without a beat is given up: the others move to the next word of the
//   page, and when it runs again its step overlaps with another one, which costs time and nothing
//   else. A waiter looks every kStall, so it goes on after at most twice that.
// - Memory is not trusted. Whatever the page holds, `acquire` returns; the worst that bytes can do
// is
//   that steps overlap, or that a wait lasts until its owner is given up. A page is not trusted to
//   stay as long as it was either: `make` seals its size.
//
// Owned by a thread (the one that called acquire), and used by one thread at a time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace headrace {

class ComputeLease {
 public:
  static constexpr size_t kBytes = 4096;
  static constexpr std::chrono::seconds kStall{3};

  // A descriptor of new anonymous memory, formatted, of sealed size, closed on exec.
  // std::runtime_error when the system has none to give.
  static int make();
  // Makes the file behind `fd` a free lease. std::runtime_error.
  static void format(int fd);

  // Maps the page behind `fd`, which stays the caller's. std::invalid_argument if it is no lease.
  explicit ComputeLease(int fd);
  ~ComputeLease();
  ComputeLease(const ComputeLease&) = delete;
  ComputeLease& operator=(const ComputeLease&) = delete;

  void acquire();
  void release();

  // Progress of the owner, so that it is not taken for stopped. Costs a store.
  void beat() {
    if (held_ == nullptr) return;
    held_->beats.store(held_->beats.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
  // True while any thread holds it.
  bool is_taken() const;

  // Of this object, ever. Readable from any thread.
  struct Counts {
    double waited_s;         // asleep in acquire
    uint64_t num_waits;      // acquisitions that had to sleep
    uint64_t num_recovered;  // taken over from an owner that had died
    uint64_t num_given_up;   // owners left behind because they had stopped
    uint64_t num_refused;    // acquisitions that the kernel refused: steps without the lease
  };
  Counts counts() const;

 private:
  // One cache line. word: 0, or the owner's thread id and the kernel's flags.
  struct alignas(64) Turn {
    std::atomic<uint32_t> word;
    std::atomic<uint32_t> beats;
  };
  static constexpr uint32_t kTurns = 32;
  struct Page {
    std::atomic<uint64_t> magic;
    alignas(64) std::atomic<uint32_t> epoch;  // turns[epoch % kTurns] is the one in use
    Turn turns[kTurns];
  };
  static_assert(sizeof(Page) <= kBytes);

  enum class Outcome { held, moved, refused };
  Outcome take(Turn& turn, uint32_t epoch);
  bool lock(Turn& turn);  // false: this thread's time is over (kStall)
  void drop(Turn& turn);
  Turn& turn(uint32_t epoch) const { return page_->turns[epoch % kTurns]; }

  Page* page_;
  Turn* held_ = nullptr;
  bool refused_ = false;

  std::atomic<int64_t> waited_ns_{0};
  std::atomic<uint64_t> num_waits_{0};
  std::atomic<uint64_t> num_recovered_{0};
  std::atomic<uint64_t> num_given_up_{0};
  std::atomic<uint64_t> num_refused_{0};
};

}  // namespace headrace
