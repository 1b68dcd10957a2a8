#include "tape/memory.h"

#include <sys/mman.h>

#include <limits>
#include <new>

namespace headrace {

Pages::Pages(size_t bytes, bool huge) : bytes_(bytes) {
  if (bytes == 0) return;
  if (bytes > std::numeric_limits<size_t>::max() / 2) throw std::bad_alloc();
  mapped_bytes_ = bytes + kHugePageBytes;
  base_ = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base_ == MAP_FAILED) {
    base_ = nullptr;
    throw std::bad_alloc();
  }
  const auto address = reinterpret_cast<uintptr_t>(base_);
  const uintptr_t aligned = (address + kHugePageBytes - 1) & ~(uintptr_t{kHugePageBytes} - 1);
  data_ = static_cast<uint8_t*>(base_) + (aligned - address);
  // A partial huge page at the end would be resident whole: leave it in small pages.
  if (huge) madvise(data_, bytes & ~(kHugePageBytes - 1), MADV_HUGEPAGE);
}

Pages::~Pages() {
  if (base_ != nullptr) munmap(base_, mapped_bytes_);
}

}  // namespace headrace
