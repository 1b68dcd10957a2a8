// The neon table.
#include "common/table_entries.h"

namespace headrace {

const KernelTable& neon_table() {
  static constexpr KernelTable kTable = HEADRACE_TABLE_ENTRIES(neon);
  return kTable;
}

}  // namespace headrace
