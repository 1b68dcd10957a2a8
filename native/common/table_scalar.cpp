// The scalar table.
#include "common/table_entries.h"

namespace headrace {

const KernelTable& scalar_table() {
  static constexpr KernelTable kTable = HEADRACE_TABLE_ENTRIES(scalar);
  return kTable;
}

}  // namespace headrace
