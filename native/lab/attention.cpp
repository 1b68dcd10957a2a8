#include "lab/lab.h"
namespace headrace::lab {
std::vector<Ladder> attention_ladders() { return {}; }
}  // namespace headrace::lab
