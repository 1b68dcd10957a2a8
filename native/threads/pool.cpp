#include "threads/pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>
#include <utility>

#include "threads/machine.h"

namespace headrace {
namespace {

// Long enough to bridge the serial work between two phases, short enough to cost an idle machine
// nothing.
constexpr std::chrono::microseconds kSpin{50};

void pause_cpu() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Spins until `ready()`, the budget is spent or `must_rest()`; returns ready().
template <typename Ready, typename Rest>
bool spin_until(const Ready& ready, const Rest& must_rest) {
  const auto start = std::chrono::steady_clock::now();
  do {
    for (int i = 0; i < 64; ++i) {
      if (ready()) return true;
      pause_cpu();
    }
  } while (!must_rest() && std::chrono::steady_clock::now() - start < kSpin);
  return ready();
}

void futex_wait(std::atomic<uint32_t>& word, uint32_t expected) {
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}

void futex_wake(std::atomic<uint32_t>& word, int count) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

void futex_wake_all(std::atomic<uint32_t>& word) { futex_wake(word, INT32_MAX); }

uint32_t chunks_left(uint64_t claim) { return static_cast<uint32_t>(claim); }

// Best effort: a cpuset may have shrunk since.
void pin_to(int cpu) {
  const size_t count = static_cast<size_t>(cpu) + 1;
  cpu_set_t* set = CPU_ALLOC(count);
  if (set == nullptr) return;
  const size_t bytes = CPU_ALLOC_SIZE(count);
  CPU_ZERO_S(bytes, set);
  CPU_SET_S(static_cast<size_t>(cpu), bytes, set);
  sched_setaffinity(0, bytes, set);
  CPU_FREE(set);
}

// Moves the calling thread to `cpu` once and leaves its affinity mask as it was.
void move_to(int cpu) {
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof(mask), &mask) != 0) return;
  pin_to(cpu);
  sched_setaffinity(0, sizeof(mask), &mask);
}

}  // namespace

Pool::Pool(int num_threads, std::shared_ptr<ComputeLease> compute_lease)
    : num_threads_(num_threads), owner_pid_(getpid()), compute_lease_(std::move(compute_lease)) {
  if (num_threads < 1 || num_threads > kMaxThreads) {
    throw std::invalid_argument("threads must be between 1 and " + std::to_string(kMaxThreads) +
                                ", not " + std::to_string(num_threads));
  }
  cpus_ = allowed_cpus();
  const int num_cpus = static_cast<int>(cpus_.size());
  num_running_ = std::min(num_threads, num_cpus);
  const bool is_pinned = num_threads > 1 && num_threads <= num_cpus && num_threads > num_cpus / 2;
  if (!is_pinned) cpus_.clear();
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    for (int thread = 1; thread < num_threads; ++thread) {
      workers_.emplace_back([this, thread] { work(thread); });
    }
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    stop_workers();
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Pool::~Pool() { stop_workers(); }

void Pool::stop_workers() {
  stop_.store(true);
  wake_.fetch_add(1);
  futex_wake_all(wake_);
  const bool is_owner = getpid() == owner_pid_;
  for (auto& worker : workers_) {
    if (is_owner) {
      worker.join();
    } else {
      worker.detach();
    }
  }
  workers_.clear();
}

Pool::Lease::Lease(Pool& pool, int num_running) : pool_(pool), lock_(pool.lease_) {
  pool.wake_limit_ = std::clamp(num_running, 1, pool.num_threads_);
  if (pool.compute_lease_) pool.compute_lease_->acquire();
  pool.in_step_.store(true, std::memory_order_relaxed);
  // A caller that woke up on a worker's processor would share it until the kernel's balancer acts.
  if (!pool.cpus_.empty() && sched_getcpu() != pool.cpus_[0]) move_to(pool.cpus_[0]);
  pool.wake_workers();
}

Pool::Lease::~Lease() {
  pool_.in_step_.store(false, std::memory_order_relaxed);
  if (pool_.compute_lease_) pool_.compute_lease_->release();
}

bool Pool::must_rest() const {
  return compute_lease_ && !in_step_.load(std::memory_order_relaxed) && compute_lease_->is_taken();
}

void Pool::run_phase(uint32_t num_chunks, Call call, const void* context) {
  if (num_chunks == 0) return;
  if (compute_lease_) compute_lease_->beat();
  if (num_threads_ == 1 || num_chunks == 1) {
    for (uint32_t chunk = 0; chunk < num_chunks; ++chunk) run_one(call, context, 0, chunk);
  } else {
    call_.store(call, std::memory_order_relaxed);
    context_.store(context, std::memory_order_relaxed);
    num_chunks_.store(num_chunks, std::memory_order_relaxed);
    // The first chunk is the caller's: it need not compete for it.
    const uint64_t phase = (claim_.load(std::memory_order_relaxed) >> 32) + 1;
    claim_.store(phase << 32 | (num_chunks - 1), std::memory_order_seq_cst);
    wake_workers();
    run_one(call, context, 0, 0);
    expected_done_ += num_chunks - 1 - run_chunks(0);
    wait_done();
  }
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

// A worker counts itself in sleepers_ before it looks for work a last time, so one of the two sees
// the other. The kernel wakes who has slept longest.
void Pool::wake_workers() {
  const int sleepers = static_cast<int>(sleepers_.load(std::memory_order_seq_cst));
  const int wanted = sleepers - (num_threads_ - wake_limit_);
  if (wanted <= 0) return;
  wake_.fetch_add(1, std::memory_order_seq_cst);
  futex_wake(wake_, wanted);
}

uint32_t Pool::run_chunks(int thread) {
  uint32_t count = 0;
  uint64_t claim = claim_.load(std::memory_order_acquire);
  while (chunks_left(claim) > 0) {
    const Call call = call_.load(std::memory_order_relaxed);
    const void* context = context_.load(std::memory_order_relaxed);
    const uint32_t num_chunks = num_chunks_.load(std::memory_order_relaxed);
    if (!claim_.compare_exchange_weak(claim, claim - 1, std::memory_order_acq_rel,
                                      std::memory_order_acquire)) {
      continue;
    }
    if (thread == 0 && compute_lease_) compute_lease_->beat();
    // The phase cannot have ended between the load and the exchange: it still had this chunk.
    run_one(call, context, thread, num_chunks - chunks_left(claim));
    ++count;
    claim = claim_.load(std::memory_order_acquire);
  }
  return count;
}

void Pool::run_one(Call call, const void* context, int thread, uint32_t chunk) noexcept {
  try {
    call(context, thread, chunk);
  } catch (...) {
    const std::lock_guard<std::mutex> lock(error_mutex_);
    if (!error_) error_ = std::current_exception();
  }
}

void Pool::wait_done() {
  const auto is_done = [&] { return done_.load(std::memory_order_acquire) == expected_done_; };
  if (spin_until(is_done, [] { return false; })) return;
  caller_sleeps_.store(1, std::memory_order_seq_cst);
  for (;;) {
    const uint32_t done = done_.load(std::memory_order_seq_cst);
    if (done == expected_done_) break;
    futex_wait(done_, done);
  }
  caller_sleeps_.store(0, std::memory_order_seq_cst);
}

void Pool::work(int thread) {
  if (!cpus_.empty()) pin_to(cpus_[static_cast<size_t>(thread)]);
  pthread_setname_np(pthread_self(), "headrace-pool");
  write_fp_env(kMxcsr);
  while (wait_work()) {
    // A phase lasts until its chunks are reported, so all chunks of one call belong to one phase.
    const uint32_t count = run_chunks(thread);
    if (count == 0) continue;
    done_.fetch_add(count, std::memory_order_seq_cst);
    if (caller_sleeps_.load(std::memory_order_seq_cst) != 0) futex_wake_all(done_);
  }
}

bool Pool::wait_work() {
  const auto has_work = [&] {
    return chunks_left(claim_.load(std::memory_order_acquire)) > 0 ||
           stop_.load(std::memory_order_relaxed);
  };
  while (!spin_until(has_work, [&] { return must_rest(); })) {
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    const uint32_t seen = wake_.load(std::memory_order_seq_cst);
    if (!has_work()) futex_wait(wake_, seen);
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
  }
  return !stop_.load(std::memory_order_relaxed);
}

}  // namespace headrace
