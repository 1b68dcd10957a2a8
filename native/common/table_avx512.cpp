// The avx512 table.
#include "common/table_entries.h"

namespace headrace {

const KernelTable& avx512_table() {
  static constexpr KernelTable kTable = HEADRACE_TABLE_ENTRIES(avx512);
  return kTable;
}

}  // namespace headrace
