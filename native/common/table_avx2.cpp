// The avx2 table.
#include "common/table_entries.h"

namespace headrace {

const KernelTable& avx2_table() {
  static constexpr KernelTable kTable = HEADRACE_TABLE_ENTRIES(avx2);
  return kTable;
}

}  // namespace headrace
