// A fixed pool of threads that share the work of one step at a time.
//
// - The caller is thread 0; a pool of one thread has no workers. Workers block all signals and run
//   with the floating point environment of the numeric contract. They are pinned to processors of
//   the creator's affinity mask when the pool takes more than half of them; the kernel places a
//   smaller pool, because another one may want the rest.
// - A phase (`parallel_for`) is a number of chunks claimed one by one from an atomic word. It ends
//   when all chunks are done, not when all threads have arrived: a thread that is not scheduled
//   costs nothing, one that is descheduled inside a chunk costs that chunk. No result may depend on
//   which thread ran a chunk.
// - Waiting is a bounded spin, then a futex. Workers that wait for the next step do not spin while
//   another process holds the compute lease.
// - Of a pool with more threads than processors only as many run at a time as there are processors;
//   the others sleep, and which of them sleep changes.
// - With a compute lease, processes that share it take turns: a step holds it from end to end.
// - A pool belongs to the process that made it. In a forked child it has no workers: the caller
//   runs every chunk itself, and destruction does not wait.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "threads/compute_lease.h"
#include "threads/fp_env.h"

namespace headrace {

class Pool {
 public:
  // Threads including the caller, 1 to kMaxThreads; std::invalid_argument otherwise.
  explicit Pool(int num_threads, std::shared_ptr<ComputeLease> compute_lease = nullptr);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  static constexpr int kMaxThreads = 1024;

  // Bodies see thread numbers below this.
  int num_threads() const { return num_threads_; }
  // Threads that run at the same time: what work is cut for.
  int num_running() const { return num_running_; }

  // The right to run phases, held for a whole step: one caller at a time, and one process of those
  // that share the compute lease. Wakes the workers, sets the caller's floating point environment,
  // and moves it off the workers' processors if it runs on one.
  class Lease {
   public:
    explicit Lease(Pool& pool) : Lease(pool, pool.num_running_) {}
    // For bodies that wait for each other: so many threads run at a time, whatever the processors.
    Lease(Pool& pool, int num_running);
    ~Lease();
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;

    int num_threads() const { return pool_.wake_limit_; }

    // Calls body(thread, chunk) once for each chunk in [0, num_chunks), thread <
    // Pool::num_threads(); returns when all are done. Chunks are claimed in increasing order. If
    // bodies throw, all chunks still run and one of the exceptions is rethrown. Not reentrant.
    template <typename Body>
    void parallel_for(uint32_t num_chunks, const Body& body) {
      const auto call = [](const void* context, int thread, uint32_t chunk) {
        (*static_cast<const Body*>(context))(thread, chunk);
      };
      pool_.run_phase(num_chunks, call, &body);
    }

   private:
    Pool& pool_;
    std::lock_guard<std::mutex> lock_;
    FpEnv fp_env_;
  };

 private:
  using Call = void (*)(const void* context, int thread, uint32_t chunk);

  void run_phase(uint32_t num_chunks, Call call, const void* context);
  uint32_t run_chunks(int thread);
  void run_one(Call call, const void* context, int thread, uint32_t chunk) noexcept;
  void wait_done();
  void wake_workers();
  void work(int thread);
  bool wait_work();
  void stop_workers();

  bool must_rest() const;

  const int num_threads_;
  int num_running_;
  const int owner_pid_;
  const std::shared_ptr<ComputeLease> compute_lease_;  // may be null
  std::vector<int> cpus_;  // thread i belongs on cpus_[i]; empty if threads are not pinned
  std::vector<std::thread> workers_;
  std::atomic<bool> stop_{false};

  // Groups of fields that different threads write stand on cache lines of their own.
  alignas(64) std::mutex lease_;
  int wake_limit_ = 1;          // threads that the present lease lets run at a time
  uint32_t expected_done_ = 0;  // what done_ will be when the phase is over
  std::mutex error_mutex_;
  std::exception_ptr error_;

  // Written by the caller to begin a phase and by whoever claims a chunk. claim_: high half the
  // number of the phase, low half the chunks not yet claimed. The fields beside it belong to the
  // phase of the word that a claim succeeds on: they change only when nothing is left of it.
  alignas(64) std::atomic<uint64_t> claim_{0};
  std::atomic<Call> call_{nullptr};
  std::atomic<const void*> context_{nullptr};
  std::atomic<uint32_t> num_chunks_{0};
  std::atomic<bool> in_step_{false};

  // Written by workers: chunks they have finished, ever. A futex while caller_sleeps_.
  alignas(64) std::atomic<uint32_t> done_{0};

  // Written by who goes to sleep. wake_ is the workers' futex.
  alignas(64) std::atomic<uint32_t> wake_{0};
  std::atomic<uint32_t> sleepers_{0};
  std::atomic<uint32_t> caller_sleeps_{0};
};

}  // namespace headrace
