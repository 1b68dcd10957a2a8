// Softmax weights of one row, written once for every instruction set.
#pragma once

#include "common/v8.h"
#include "common/v8_math.h"
#include "sampling/weights.h"

namespace headrace::HEADRACE_ISA_NS {

// out[i] = exp(float32(float64(x[i]) / temperature - float64(max) / temperature)).
void softmax_weights(const float* x, int32_t n, float max, double temperature, float* out) {
  const double highest = static_cast<double>(max) / temperature;
  for (int32_t i = 0; i < n; i += 8) {
    const int32_t count = n - i < 8 ? n - i : 8;
    float scaled[8] = {};
    for (int32_t j = 0; j < count; ++j) {
      scaled[j] = static_cast<float>(static_cast<double>(x[i + j]) / temperature - highest);
    }
    store_part(out + i, exp(load(scaled)), count);
  }
}

}  // namespace headrace::HEADRACE_ISA_NS
