// Python buffers as native arrays, checked. Used by the bind*.cpp files only.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace headrace {

// A contiguous exported buffer; create and destroy while holding the GIL.
class BufferView {
 public:
  explicit BufferView(nanobind::handle object) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_CONTIG_RO | PyBUF_FORMAT) != 0) {
      throw nanobind::python_error();
    }
  }
  ~BufferView() { PyBuffer_Release(&view_); }
  BufferView(BufferView&& other) noexcept : view_(std::exchange(other.view_, Py_buffer{})) {}
  BufferView(const BufferView&) = delete;
  BufferView& operator=(const BufferView&) = delete;
  BufferView& operator=(BufferView&&) = delete;

  const uint8_t* data() const { return static_cast<const uint8_t*>(view_.buf); }
  size_t bytes() const { return static_cast<size_t>(view_.len); }

  // As 32-bit integers (array.array("i")); TypeError for anything else.
  const int32_t* ints() const {
    const char* format = view_.format == nullptr ? "B" : view_.format;
    const bool is_int = (format[0] == 'i' || format[0] == 'l') && format[1] == '\0';
    if (!is_int || view_.itemsize != sizeof(int32_t)) {
      throw nanobind::type_error("an array of 32-bit integers is needed");
    }
    return static_cast<const int32_t*>(view_.buf);
  }
  size_t num_ints() const { return bytes() / sizeof(int32_t); }

 private:
  Py_buffer view_{};
};

inline std::vector<int32_t> copy_ints(nanobind::handle object) {
  const BufferView view(object);
  const int32_t* values = view.ints();
  return {values, values + view.num_ints()};
}

}  // namespace headrace
