// The entries of a KernelTable by instruction set, in the order of its members.
#pragma once

#include "attention/attend.h"
#include "common/table.h"
#include "elementwise/elementwise.h"
#include "gemm/gemm.h"
#include "sampling/reduce.h"

#define HEADRACE_TABLE_ENTRIES(isa)                                         \
  {#isa,          isa::pack_tiles, isa::unpack_row,     isa::quantize_rows, \
   isa::gemm,     isa::rmsnorm,    isa::rope_angles,    isa::rope,          \
   isa::kv_store, isa::silu_gate,  isa::gelu_gate,      isa::add,           \
   isa::scale,    isa::softcap,    isa::attend_item,    isa::merge_splits,  \
   isa::argmax,   isa::logsumexp,  isa::softmax_weights}
