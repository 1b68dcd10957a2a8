// The loop over activation rows; included once per instruction set, after its quantize(x, group).
namespace headrace::HEADRACE_ISA_NS {
namespace {

template <class Group>
void quantize_row(const float* x, int32_t k, uint8_t* dst) {
  for (int32_t i = 0; i < k; i += kGroupLen, dst += sizeof(Group)) {
    quantize(x + i, *reinterpret_cast<Group*>(dst));
  }
}

}  // namespace

void quantize_rows(ActKind kind, const float* x, int64_t ldx, int32_t rows, int32_t k, uint8_t* dst,
                   size_t dst_stride) {
  for (int32_t r = 0; r < rows; ++r, x += ldx, dst += dst_stride) {
    if (kind == ActKind::a8) quantize_row<A8Group>(x, k, dst);
    if (kind == ActKind::a16) quantize_row<A16Group>(x, k, dst);
    if (kind == ActKind::f32) std::memcpy(dst, x, act_used_bytes(kind, k));
  }
}

}  // namespace headrace::HEADRACE_ISA_NS
