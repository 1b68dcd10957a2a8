// The floating point environment of the numeric contract: round to nearest, no flush to zero, no
// denormals-are-zero, all exceptions masked.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace headrace {

#if defined(__x86_64__)
constexpr uint32_t kMxcsr = 0x1F80;

inline uint32_t read_fp_env() { return _mm_getcsr(); }
inline void write_fp_env(uint32_t value) { _mm_setcsr(value); }
#elif defined(__aarch64__)
constexpr uint32_t kMxcsr = 0;

inline uint32_t read_fp_env() {
  uint64_t value;
  asm volatile("mrs %0, fpcr" : "=r"(value));
  return static_cast<uint32_t>(value);
}
inline void write_fp_env(uint32_t value) {
  const uint64_t wide = value;
  asm volatile("msr fpcr, %0" : : "r"(wide));
}
#endif

// Sets the environment for a scope and gives the caller's back.
class FpEnv {
 public:
  FpEnv() : saved_(read_fp_env()) { write_fp_env(kMxcsr); }
  ~FpEnv() { write_fp_env(saved_); }
  FpEnv(const FpEnv&) = delete;
  FpEnv& operator=(const FpEnv&) = delete;

 private:
  uint32_t saved_;
};

}  // namespace headrace
