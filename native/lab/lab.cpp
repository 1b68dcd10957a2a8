// headrace-lab [--markdown] [NAME...]: checks and times the ladders whose names contain NAME.
#include "lab/lab.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "common/table.h"
#include "threads/fp_env.h"

namespace headrace::lab {
namespace {

constexpr double kRunSeconds = 0.1;
constexpr int kRepeats = 5;
// Another order of roundings over at most a few thousand float32 additions.
constexpr double kClose = 2e-4;
// Other codes for activations or weights.
constexpr double kCoarse = 5e-2;

constexpr const char* kVerdicts[] = {"equal bits", "close", "coarse"};  // by Match

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

bool is_supported(Needs needs) {
  if (needs == Needs::avx2) return choose_table("avx2") != nullptr;
  if (needs == Needs::avx512) return choose_table("avx512") != nullptr;
  return true;
}

// Largest difference over the largest value.
double difference(const std::vector<float>& a, const std::vector<float>& b) {
  double most = 0.0, scale = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    most = std::max(most, std::abs(double{a[i]} - double{b[i]}));
    scale = std::max(scale, std::abs(double{b[i]}));
  }
  return scale > 0.0 ? most / scale : most;
}

// "" if the rung may stand.
std::string fault(const Ladder& ladder, const Rung& rung, const std::vector<float>& expected) {
  ladder.clear();
  rung.run();
  const std::vector<float> got = ladder.result();
  if (got.size() != expected.size()) return "another size";
  const bool same = std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)) == 0;
  if (rung.match == Match::equal) return same ? "" : "other bits";
  if (same) return "";
  const double far = difference(got, expected);
  const double bound = rung.match == Match::close ? kClose : kCoarse;
  return far <= bound ? "" : "off by " + std::to_string(far);
}

// Units per second: the best of a few runs that are long enough to time.
double rate(const Ladder& ladder, const Rung& rung) {
  int64_t count = 1;
  for (;;) {
    const auto start = Clock::now();
    for (int64_t i = 0; i < count; ++i) rung.run();
    if (seconds_since(start) > kRunSeconds) break;
    count *= 2;
  }
  double best = 1e30;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    const auto start = Clock::now();
    for (int64_t i = 0; i < count; ++i) rung.run();
    best = std::min(best, seconds_since(start) / static_cast<double>(count));
  }
  return ladder.work / best;
}

void print(bool markdown, const Ladder& ladder, size_t i, double units, const char* verdict) {
  const Rung& rung = ladder.rungs[i];
  if (markdown) {
    std::printf("| %zu | %s | %s | %s | %.2f %s | %s |\n", i, rung.name, rung.idea, rung.prediction,
                units, ladder.unit, verdict);
  } else {
    std::printf("  %zu  %-26s %9.2f %-6s %s\n     idea: %s\n     predicted: %s\n", i, rung.name,
                units, ladder.unit, verdict, rung.idea, rung.prediction);
  }
  std::fflush(stdout);
}

bool climb(const Ladder& ladder, bool markdown) {
  std::printf(markdown ? "\n<!-- lab: %s -->\n%s\n\n" : "\n%s: %s\n", ladder.name.c_str(),
              ladder.problem.c_str());
  if (markdown) {
    std::printf("| rung | name | idea | predicted | measured | result |\n");
    std::printf("| --- | --- | --- | --- | --- | --- |\n");
  }
  ladder.clear();
  ladder.rungs.front().run();
  const std::vector<float> expected = ladder.result();
  bool right = true;
  for (size_t i = 0; i < ladder.rungs.size(); ++i) {
    const Rung& rung = ladder.rungs[i];
    if (!is_supported(rung.needs)) {
      print(markdown, ladder, i, 0.0, "this processor cannot run it");
      continue;
    }
    const std::string wrong = fault(ladder, rung, expected);
    right = right && wrong.empty();
    const char* verdict = wrong.empty() ? kVerdicts[static_cast<int>(rung.match)] : wrong.c_str();
    print(markdown, ladder, i, rate(ladder, rung), verdict);
  }
  if (markdown) std::printf("<!-- /lab -->\n");
  return right;
}

bool is_wanted(const std::string& name, const std::vector<std::string>& wanted) {
  return wanted.empty() || std::any_of(wanted.begin(), wanted.end(), [&](const std::string& part) {
           return name.find(part) != std::string::npos;
         });
}

}  // namespace
}  // namespace headrace::lab

int main(int argc, char** argv) {
  using namespace headrace::lab;
  std::vector<std::string> wanted(argv + 1, argv + argc);
  const bool markdown = !wanted.empty() && wanted.front() == "--markdown";
  if (markdown) wanted.erase(wanted.begin());
  const headrace::FpEnv env;
  bool right = true;
  int count = 0;
  for (const auto& ladders :
       {gemm4_ladders, gemm8_ladders, attention_ladders, softmax_ladders, barrier_ladders}) {
    for (const Ladder& ladder : ladders()) {
      if (!is_wanted(ladder.name, wanted)) continue;
      right = climb(ladder, markdown) && right;
      ++count;
    }
  }
  if (count == 0) {
    std::fprintf(stderr, "No ladder has such a name.\n");
    return 2;
  }
  return right ? 0 : 1;
}
