// The entry of KernelTable that sampling itself provides, one per instruction set.
#pragma once

#include <cstdint>

namespace headrace::scalar {
void softmax_weights(const float* x, int32_t n, float max, double temperature, float* out);
}
#if defined(__x86_64__)
namespace headrace::avx2 {
void softmax_weights(const float* x, int32_t n, float max, double temperature, float* out);
}
#endif
