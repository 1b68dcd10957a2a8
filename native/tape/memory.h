// Anonymous memory that is zero, 2 MiB-aligned, and resident only where it was touched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace headrace {

constexpr size_t kHugePageBytes = size_t{2} << 20;

class Pages {
 public:
  Pages() = default;
  // Maps `bytes` (0: maps nothing). `huge`: ask for huge pages, where the kernel takes advice.
  // std::bad_alloc when the address space or overcommit limit does not allow it.
  explicit Pages(size_t bytes, bool huge = false);
  ~Pages();
  Pages(Pages&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)),
        base_(std::exchange(other.base_, nullptr)),
        mapped_bytes_(std::exchange(other.mapped_bytes_, 0)) {}
  Pages& operator=(Pages&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(base_, other.base_);
    std::swap(mapped_bytes_, other.mapped_bytes_);
    return *this;
  }

  uint8_t* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  uint8_t* data_ = nullptr;
  size_t bytes_ = 0;
  void* base_ = nullptr;
  size_t mapped_bytes_ = 0;
};

}  // namespace headrace
