#include "threads/compute_lease.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>

namespace headrace {
namespace {

constexpr uint64_t kMagic = 0x3165736165'6c7268;  // "hrlease1"
// Since Linux 5.14; the headers of older systems lack it.
constexpr int kLockPi2 = 13;
// More disturbances than this in one acquisition are bytes that others keep changing.
constexpr int kMaxAttempts = 64;

uint32_t thread_id() { return static_cast<uint32_t>(syscall(SYS_gettid)); }

int futex(std::atomic<uint32_t>& word, int operation, const timespec* timeout) {
  const long status = syscall(SYS_futex, &word, operation, 0, timeout, nullptr, 0);
  return status == 0 ? 0 : errno;
}

// The time after `wait` on a clock. PI futexes take absolute times.
timespec time_after(clockid_t clock, std::chrono::seconds wait) {
  timespec time{};
  clock_gettime(clock, &time);
  time.tv_sec += wait.count();
  return time;
}

// Sleeps until the lock is had (0), kStall is over (ETIMEDOUT), or something else is the matter.
int lock_pi(std::atomic<uint32_t>& word) {
  const timespec monotonic = time_after(CLOCK_MONOTONIC, ComputeLease::kStall);
  const int status = futex(word, kLockPi2, &monotonic);
  if (status != ENOSYS) return status;
  const timespec realtime = time_after(CLOCK_REALTIME, ComputeLease::kStall);
  return futex(word, FUTEX_LOCK_PI, &realtime);
}

[[noreturn]] void fail(const char* what) {
  throw std::runtime_error(std::string(what) + ": " + std::strerror(errno));
}

}  // namespace

int ComputeLease::make() {
  const int fd = memfd_create("headrace-lease", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) fail("memory for the compute lease");
  try {
    format(fd);
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
      fail("sealing the compute lease");
    }
  } catch (...) {
    close(fd);
    throw;
  }
  return fd;
}

void ComputeLease::format(int fd) {
  uint8_t page[kBytes] = {};
  std::memcpy(page, &kMagic, sizeof(kMagic));
  if (ftruncate(fd, kBytes) != 0) fail("the compute lease's size");
  if (pwrite(fd, page, kBytes, 0) != static_cast<ssize_t>(kBytes)) fail("the compute lease's page");
}

ComputeLease::ComputeLease(int fd) {
  struct stat info{};
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size != kBytes) {
    throw std::invalid_argument("the descriptor is no compute lease: a file of " +
                                std::to_string(kBytes) + " bytes is needed");
  }
  void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) {
    throw std::invalid_argument(std::string("the compute lease cannot be mapped: ") +
                                std::strerror(errno));
  }
  page_ = static_cast<Page*>(memory);
  if (page_->magic.load(std::memory_order_relaxed) != kMagic) {
    munmap(memory, kBytes);
    throw std::invalid_argument("the descriptor is no compute lease: its page begins otherwise");
  }
}

ComputeLease::~ComputeLease() {
  release();
  munmap(page_, kBytes);
}

void ComputeLease::acquire() {
  if (held_ != nullptr) throw std::logic_error("the compute lease is already held");
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    const uint32_t epoch = page_->epoch.load(std::memory_order_acquire);
    const Outcome outcome = take(turn(epoch), epoch);
    if (outcome == Outcome::moved) continue;
    if (outcome == Outcome::refused) break;
    held_ = &turn(epoch);
    beat();
    return;
  }
  num_refused_.fetch_add(1, std::memory_order_relaxed);
}

void ComputeLease::release() {
  if (held_ == nullptr) return;
  drop(*held_);
  held_ = nullptr;
}

bool ComputeLease::is_taken() const {
  const uint32_t epoch = page_->epoch.load(std::memory_order_relaxed);
  return turn(epoch).word.load(std::memory_order_relaxed) != 0;
}

ComputeLease::Counts ComputeLease::counts() const {
  return {
      static_cast<double>(waited_ns_.load(std::memory_order_relaxed)) * 1e-9,
      num_waits_.load(std::memory_order_relaxed), num_recovered_.load(std::memory_order_relaxed),
      num_given_up_.load(std::memory_order_relaxed), num_refused_.load(std::memory_order_relaxed)};
}

ComputeLease::Outcome ComputeLease::take(Turn& turn, uint32_t epoch) {
  uint32_t free = 0;
  if (!turn.word.compare_exchange_strong(free, thread_id(), std::memory_order_acquire)) {
    const uint32_t beats = turn.beats.load(std::memory_order_relaxed);
    refused_ = false;
    const auto start = std::chrono::steady_clock::now();
    const bool is_locked = lock(turn);
    waited_ns_.fetch_add((std::chrono::steady_clock::now() - start).count(),
                         std::memory_order_relaxed);
    num_waits_.fetch_add(1, std::memory_order_relaxed);
    if (refused_) return Outcome::refused;
    if (!is_locked) {
      if (turn.beats.load(std::memory_order_relaxed) == beats &&
          page_->epoch.compare_exchange_strong(epoch, epoch + 1, std::memory_order_acq_rel)) {
        num_given_up_.fetch_add(1, std::memory_order_relaxed);
      }
      return Outcome::moved;
    }
  }
  // While this thread slept the others may have given up its predecessor, and with it this word.
  if (page_->epoch.load(std::memory_order_acquire) == epoch) return Outcome::held;
  drop(turn);
  return Outcome::moved;
}

bool ComputeLease::lock(Turn& turn) {
  const uint32_t mine = thread_id();
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    uint32_t seen = turn.word.load(std::memory_order_relaxed);
    const int status = lock_pi(turn.word);
    if (status == 0) {
      if ((turn.word.load(std::memory_order_acquire) & FUTEX_OWNER_DIED) != 0) {
        turn.word.fetch_and(~uint32_t{FUTEX_OWNER_DIED}, std::memory_order_relaxed);
        num_recovered_.fetch_add(1, std::memory_order_relaxed);
      }
      return true;
    }
    if (status == ETIMEDOUT) return false;
    if (status == EAGAIN || status == EINTR) continue;
    // An owner that died while nobody waited (ESRCH), or bytes that name no thread that could hold
    // a lease (EPERM), or this one, which does not hold it (EDEADLK).
    if (status == ESRCH || status == EPERM || status == EDEADLK) {
      if (turn.word.compare_exchange_strong(seen, mine, std::memory_order_acquire)) {
        num_recovered_.fetch_add(1, std::memory_order_relaxed);
        return true;
      }
      continue;
    }
    refused_ = true;  // no such call here, or bytes that contradict the kernel's own record
    return false;
  }
  refused_ = true;
  return false;
}

void ComputeLease::drop(Turn& turn) {
  uint32_t mine = thread_id();
  if (turn.word.compare_exchange_strong(mine, 0, std::memory_order_release)) return;
  // Somebody waits: the kernel hands over. If it refuses, others have written to the word, and
  // whoever waits gives it up in time.
  futex(turn.word, FUTEX_UNLOCK_PI, nullptr);
}

}  // namespace headrace
