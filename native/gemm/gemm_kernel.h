// The product of any stored type; included once per instruction set, after its formats and its
// run_product<Product>(job, tiles, rows).
namespace headrace::HEADRACE_ISA_NS {

void gemm(const PackedMatrix& w, int32_t tile_begin, int32_t tile_end, const uint8_t* act,
          int32_t rows, const ProductOut& to) {
  if (w.act != act_kind(w.dtype)) return float_gemm(w, tile_begin, tile_end, act, rows, to);
  const Job job = {w, act, act_row_bytes(w.act, w.k), to};
  const Range tiles = {tile_begin, tile_end};
  switch (w.dtype) {
    case DType::f32:
      return run_product<FloatProduct<float>>(job, tiles, rows);
    case DType::f16:
      return run_product<FloatProduct<Half>>(job, tiles, rows);
    case DType::bf16:
      return run_product<FloatProduct<Bfloat>>(job, tiles, rows);
    case DType::q4_0:
      return run_product<A8Product<Flat<4, false>>>(job, tiles, rows);
    case DType::q4_1:
      return run_product<A8Product<Flat<4, true>>>(job, tiles, rows);
    case DType::q5_0:
      return run_product<A8Product<Flat<5, false>>>(job, tiles, rows);
    case DType::q5_1:
      return run_product<A8Product<Flat<5, true>>>(job, tiles, rows);
    case DType::q8_0:
      return run_product<Q8_0Product>(job, tiles, rows);
    case DType::q4_k:
      return run_product<A8Product<Super45<4>>>(job, tiles, rows);
    case DType::q5_k:
      return run_product<A8Product<Super45<5>>>(job, tiles, rows);
    case DType::q6_k:
      return run_product<A8Product<Q6_K>>(job, tiles, rows);
  }
}

}  // namespace headrace::HEADRACE_ISA_NS
