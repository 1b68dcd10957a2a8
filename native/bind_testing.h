// What the bindings for tests share: kernel tables by name, and checks that raise ValueError.
#pragma once

#include <stdexcept>
#include <string>

#include "common/table.h"

namespace headrace {

inline const KernelTable& table_named(const std::string& isa) {
  const KernelTable* table = choose_table(isa.c_str());
  if (table == nullptr) throw std::invalid_argument("no kernel table " + isa);
  return *table;
}

inline void require(bool condition, const char* message) {
  if (!condition) throw std::invalid_argument(message);
}

}  // namespace headrace
