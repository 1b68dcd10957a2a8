// headrace._native.testing: sampling of one row on a table by name, and its noise, for tests.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <stdexcept>

#include "sampling/philox.h"
#include "sampling/sampling.h"

namespace nb = nanobind;

namespace headrace {
namespace {

const KernelTable& table_named(const std::string& isa) {
  const KernelTable* table = choose_table(isa.c_str());
  if (table == nullptr) throw std::invalid_argument("no kernel table " + isa);
  return *table;
}

// (token, logprob, failed, [(id, logprob)]) of one row; `logits` are float32 bytes.
nb::object sample(const std::string& isa, nb::bytes logits, const SamplingSpec& spec, bool draws,
                  int32_t target, int32_t output_pos, const std::vector<int32_t>& history,
                  int32_t prompt_len, const std::vector<int32_t>& banned, nb::bytes mask) {
  std::vector<float> values(logits.size() / sizeof(float));
  std::memcpy(values.data(), logits.c_str(), values.size() * sizeof(float));
  WantedRow row{};
  row.spec = &spec;
  row.sample = draws;
  row.target = target;
  row.output_pos = output_pos;
  row.history = history.empty() ? nullptr : history.data();
  row.history_len = static_cast<int32_t>(history.size());
  row.prompt_len = prompt_len;
  row.banned = banned.data();
  row.num_banned = static_cast<int32_t>(banned.size());
  row.mask = mask.size() == 0 ? nullptr : static_cast<const uint8_t*>(mask.data());
  SamplingScratch scratch;
  const RowResult result = sample_row(table_named(isa), values.data(),
                                      static_cast<int32_t>(values.size()), row, scratch);
  std::vector<std::pair<int32_t, double>> top;
  for (size_t i = 0; i < result.top_ids.size(); ++i) {
    top.emplace_back(result.top_ids[i], result.top_logprobs[i]);
  }
  return nb::make_tuple(result.token, result.logprob, result.failed, nb::cast(top));
}

}  // namespace

void bind_sampling_testing(nb::module_& m) {
  m.def("sample", &sample, nb::arg("isa"), nb::arg("logits"), nb::arg("spec"), nb::arg("draws"),
        nb::arg("target"), nb::arg("output_pos"), nb::arg("history"), nb::arg("prompt_len"),
        nb::arg("banned"), nb::arg("mask"));
  m.def("philox", [](uint64_t seed, uint32_t output_pos, uint32_t index) {
    const auto words = Philox(seed, output_pos).block(index);
    return nb::make_tuple(words[0], words[1], words[2], words[3]);
  });
}

}  // namespace headrace
