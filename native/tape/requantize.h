// Packing of float sources into fewer bits at load: one fixed arithmetic, plain float32.
#pragma once

#include <cstdint>

#include "common/types.h"

namespace headrace {

// True if rows stored as `from` (f32, f16, bf16) can be turned into `to`: bf16 (round to nearest
// even), q8_0 (scale max|x| / 127), or q4_1 (scale (max - min) / 15, minimum min); scales are
// rounded to float16 before the codes are chosen, so that the codes fit what is stored.
bool can_requantize(DType from, DType to);

// Turns `rows` stored rows of k values into stored rows of `to`; k is a multiple of its block.
// `floats` is scratch of k floats.
void requantize_rows(DType from, DType to, const uint8_t* src, int32_t rows, int32_t k,
                     float* floats, uint8_t* dst);

// Widens `count` values stored as f32, f16 or bf16 (exact).
void widen(DType from, const uint8_t* src, int64_t count, float* dst);

}  // namespace headrace
