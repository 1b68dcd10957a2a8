// headrace_digest TABLE: one line per entry of a kernel table, its name and the digest of what it
// computes over fixed inputs. scripts/emulate builds and runs it for every table and compares.
#include "digest/digest.h"

#include "threads/fp_env.h"

namespace headrace::digest {
namespace {

const KernelTable* find_table(const char* name) {
#if defined(HEADRACE_EMULATED_AVX512)
  if (std::strcmp(name, "avx512") == 0) return &avx512_table();
#endif
  return choose_table(name);
}

int run(const char* name) {
  const KernelTable* table = find_table(name);
  if (table == nullptr) {
    std::fprintf(stderr, "headrace_digest: this processor has no table %s\n", name);
    return 3;
  }
  const FpEnv env;
  digest_gemm(*table);
  digest_elementwise(*table);
  digest_attention(*table);
  digest_sampling(*table);
  return 0;
}

}  // namespace
}  // namespace headrace::digest

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: headrace_digest TABLE\n");
    return 2;
  }
  return headrace::digest::run(argv[1]);
}
