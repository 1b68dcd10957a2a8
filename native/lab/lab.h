// The kernel lab: for every kernel a ladder of numbered rungs, from the plainest program that is
// right to the one that ships, each with the idea it adds and what was predicted of it. Rungs that
// did not pay stay, so that nobody has to try them twice.
//
// A ladder is checked, then timed, on one thread. Rung 0 is the definition. A rung is `equal` when
// its result must have the bits of rung 0, `close` when it computes the same in another order of
// roundings, `coarse` when it computes something else that a user would take for the same. Neither
// of the latter could ship (docs/architecture.md, the numeric contract).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <vector>

namespace headrace::lab {

enum class Match { equal, close, coarse };
enum class Needs { nothing, avx2, avx512 };

struct Rung {
  const char* name;
  const char* idea;
  const char* prediction;
  Needs needs;
  Match match;
  std::function<void()> run;  // computes the ladder's result once
};

struct Ladder {
  std::string name;
  std::string problem;  // shape and data, one line
  double work;          // units of one run
  const char* unit;     // of work per second: "Gop/s", "GB/s"
  // The result that the last run left, as floats; cleared by `clear` before every check.
  std::function<std::vector<float>()> result;
  std::function<void()> clear;
  std::vector<Rung> rungs;
  // Whatever the rungs point to.
  std::shared_ptr<void> data;
};

std::vector<Ladder> gemm4_ladders();
std::vector<Ladder> gemm8_ladders();
std::vector<Ladder> attention_ladders();
std::vector<Ladder> softmax_ladders();
std::vector<Ladder> barrier_ladders();

// Memory as the kernels expect it.
template <typename T>
class Aligned {
 public:
  explicit Aligned(size_t count)
      : count_(count),
        data_(static_cast<T*>(::operator new(count * sizeof(T) + 64, std::align_val_t{64}))) {
    for (size_t i = 0; i < count; ++i) data_[i] = T{};
  }
  ~Aligned() { ::operator delete(data_, std::align_val_t{64}); }
  Aligned(const Aligned&) = delete;
  Aligned& operator=(const Aligned&) = delete;

  T* data() { return data_; }
  T& operator[](size_t i) { return data_[i]; }
  size_t size() const { return count_; }
  std::vector<float> floats() const { return std::vector<float>(data_, data_ + count_); }

 private:
  size_t count_;
  T* data_;
};

}  // namespace headrace::lab
