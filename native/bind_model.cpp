// Python's view of threads/, tape/ and sampling specs: ThreadPool, Weights, Tape, Model,
// SamplingSpec.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <deque>
#include <memory>
#include <stdexcept>

#include "bind_buffers.h"
#include "tape/model.h"

namespace nb = nanobind;

namespace headrace {
namespace {

DType to_dtype(int32_t value) {
  for (const int32_t known : {0, 1, 2, 3, 6, 7, 8, 12, 13, 14, 30}) {
    if (value == known) return static_cast<DType>(value);
  }
  throw std::invalid_argument("unknown tensor type " + std::to_string(value));
}

// ---- Weights ----

std::shared_ptr<Weights> make_weights(Pool& pool, const std::string& isa, size_t capacity_bytes) {
  const KernelTable* table = choose_table(isa.c_str());
  if (table == nullptr) throw std::invalid_argument("no kernel table " + isa);
  return std::make_shared<Weights>(*table, pool, capacity_bytes);
}

uint64_t add_matrix(Weights& weights, const std::string& name, int32_t stored, int32_t packed,
                    int32_t n, int32_t k, nb::handle data, bool float_activations) {
  const BufferView view(data);
  const nb::gil_scoped_release unlocked;
  return weights.add_matrix(name, to_dtype(stored), to_dtype(packed), n, k, view.data(),
                            view.bytes(), float_activations);
}

uint64_t add_vector(Weights& weights, const std::string& name, int32_t stored, int32_t count,
                    nb::handle data) {
  const BufferView view(data);
  const nb::gil_scoped_release unlocked;
  return weights.add_vector(name, to_dtype(stored), count, view.data(), view.bytes());
}

// ---- Tape ----

using BufferArgs = std::vector<std::tuple<std::string, int32_t, bool>>;
using RopeArgs = std::vector<std::pair<std::vector<double>, bool>>;

void construct_tape(Tape* self, std::shared_ptr<Weights> weights, const BufferArgs& buffers,
                    const RopeArgs& ropes, std::vector<int32_t> group_windows,
                    const std::vector<std::pair<int32_t, int32_t>>& layers,
                    int32_t layers_per_block, int32_t num_kv_heads, int32_t head_dim,
                    int32_t kv_type, int32_t vocab) {
  std::vector<BufferSpec> specs;
  for (const auto& [name, width, wanted] : buffers) specs.push_back({name, width, wanted});
  std::vector<RopeTable> tables;
  for (const auto& [inv_freq, interleaved] : ropes) tables.push_back({inv_freq, interleaved});
  KVShape kv{std::move(group_windows), {}, layers_per_block, num_kv_heads, head_dim,
             to_kv_type(kv_type)};
  for (const auto& [group, slot] : layers) kv.layers.push_back({group, slot});
  new (self) Tape(std::move(weights), std::move(specs), std::move(tables), std::move(kv), vocab);
}

// ---- SamplingSpec ----

double finite(double value, const char* name) {
  if (!std::isfinite(value)) throw std::invalid_argument(std::string(name) + " must be finite");
  return value;
}

void construct_spec(SamplingSpec* self, double temperature, int32_t top_k, double top_p,
                    double min_p, double repetition_penalty, double presence_penalty,
                    double frequency_penalty,
                    const std::vector<std::pair<int32_t, float>>& logit_bias, uint64_t seed,
                    int32_t num_top) {
  SamplingSpec spec;
  spec.temperature = finite(temperature, "temperature");
  spec.top_k = top_k;
  spec.top_p = finite(top_p, "top_p");
  spec.min_p = finite(min_p, "min_p");
  spec.repetition_penalty = finite(repetition_penalty, "repetition_penalty");
  spec.presence_penalty = finite(presence_penalty, "presence_penalty");
  spec.frequency_penalty = finite(frequency_penalty, "frequency_penalty");
  if (spec.temperature < 0.0) throw std::invalid_argument("temperature must not be negative");
  if (spec.repetition_penalty <= 0.0) {
    throw std::invalid_argument("repetition_penalty must be positive");
  }
  for (const auto& [id, value] : logit_bias) {
    spec.bias_ids.push_back(id);
    spec.bias_values.push_back(static_cast<float>(finite(value, "logit_bias")));
  }
  spec.seed = seed;
  spec.num_top = num_top;
  new (self) SamplingSpec(std::move(spec));
}

// ---- Model.step ----

int32_t to_int(nb::handle value) {
  int32_t result = 0;
  if (!nb::try_cast(value, result)) throw nb::type_error("a plan's numbers are 32-bit integers");
  return result;
}

// A plan and the Python memory that its pointers lead to; lives while the GIL is held at both ends.
struct PythonPlan {
  StepPlan plan;
  std::vector<BufferView> views;
  std::deque<std::vector<int32_t>> banned;

  // (row, spec, sample, target, output_pos, history, prompt_len, banned, mask), see WantedRow.
  void add_wanted(const nb::tuple& fields) {
    if (nb::len(fields) != 9) throw nb::type_error("a wanted row has nine fields");
    WantedEntry entry{};
    entry.row = to_int(fields[0]);
    if (!nb::isinstance<SamplingSpec>(fields[1])) throw nb::type_error("a SamplingSpec is needed");
    WantedRow& row = entry.spec;
    row.spec = nb::inst_ptr<SamplingSpec>(fields[1]);
    row.sample = fields[2].is(nb::bool_(true));
    row.target = to_int(fields[3]);
    row.output_pos = to_int(fields[4]);
    if (!fields[5].is_none()) {
      views.emplace_back(fields[5]);
      row.history = views.back().ints();
      row.history_len = static_cast<int32_t>(views.back().num_ints());
    }
    row.prompt_len = to_int(fields[6]);
    if (!nb::isinstance<nb::tuple>(fields[7])) throw nb::type_error("banned ids are a tuple");
    const nb::tuple ids = nb::borrow<nb::tuple>(fields[7]);
    if (nb::len(ids) > 0) {
      auto& list = banned.emplace_back();
      for (const nb::handle id : ids) list.push_back(to_int(id));
      row.banned = list.data();
      row.num_banned = static_cast<int32_t>(list.size());
    }
    if (!fields[8].is_none()) {
      if (!nb::isinstance<nb::bytes>(fields[8])) throw nb::type_error("a mask is bytes");
      const nb::bytes mask = nb::borrow<nb::bytes>(fields[8]);
      row.mask = static_cast<const uint8_t*>(mask.data());
      entry.mask_bytes = static_cast<int64_t>(mask.size());
    }
    plan.wanted.push_back(entry);
  }
};

nb::tuple to_python(const RowResult& row) {
  nb::list top;
  for (size_t i = 0; i < row.top_ids.size(); ++i) {
    top.append(nb::make_tuple(row.top_ids[i], row.top_logprobs[i]));
  }
  return nb::make_tuple(row.token, row.logprob, top, row.failed);
}

nb::tuple step(Model& model, nb::handle tokens, nb::handle positions, nb::handle seq_starts,
               const nb::list& tables, const nb::list& table_starts, const nb::list& copies,
               const nb::list& wanted, const std::vector<std::string>& buffers) {
  PythonPlan python;
  StepPlan& plan = python.plan;
  plan.tokens = copy_ints(tokens);
  plan.positions = copy_ints(positions);
  plan.seq_starts = copy_ints(seq_starts);
  for (const nb::handle table : tables) plan.tables.push_back(copy_ints(table));
  for (const nb::handle starts : table_starts) plan.table_starts.push_back(copy_ints(starts));
  for (const nb::handle copy : copies) {
    if (!nb::isinstance<nb::tuple>(copy) || nb::len(copy) != 2) {
      throw nb::type_error("a copy is a pair of blocks");
    }
    const nb::tuple pair = nb::borrow<nb::tuple>(copy);
    plan.copies.emplace_back(to_int(pair[0]), to_int(pair[1]));
  }
  for (const nb::handle row : wanted) {
    if (!nb::isinstance<nb::tuple>(row)) throw nb::type_error("a wanted row is a tuple");
    python.add_wanted(nb::borrow<nb::tuple>(row));
  }
  StepOutput output;
  {
    const nb::gil_scoped_release unlocked;
    output = model.step(plan, buffers);
  }
  nb::list rows;
  for (const RowResult& row : output.rows) rows.append(to_python(row));
  nb::list values;
  for (const BufferRows& buffer : output.buffers) {
    values.append(nb::make_tuple(
        buffer.width, nb::bytes(buffer.values.data(), buffer.values.size() * sizeof(float))));
  }
  return nb::make_tuple(rows, values, output.native_s);
}

void bind_tape(nb::module_& m) {
  nb::class_<Tape>(m, "Tape", "A Program lowered; every function raises ValueError for a misfit.")
      .def("__init__", &construct_tape, nb::kw_only(), nb::arg("weights"), nb::arg("buffers"),
           nb::arg("ropes"), nb::arg("group_windows"), nb::arg("layers"),
           nb::arg("layers_per_block"), nb::arg("num_kv_heads"), nb::arg("head_dim"),
           nb::arg("kv_type"), nb::arg("vocab"))
      .def("embed", &Tape::embed, nb::arg("out"), nb::arg("weight"), nb::arg("scale"))
      .def("norm", &Tape::norm, nb::arg("out"), nb::arg("src"), nb::arg("weight"), nb::arg("eps"))
      .def("linear", &Tape::linear, nb::arg("out"), nb::arg("src"), nb::arg("weights"),
           nb::arg("biases"), nb::arg("accumulate"))
      .def("gated_linear", &Tape::gated_linear, nb::arg("out"), nb::arg("src"), nb::arg("weights"),
           nb::arg("biases"), nb::arg("activation"))
      .def("head_norm", &Tape::head_norm, nb::arg("buf"), nb::arg("column"), nb::arg("num_heads"),
           nb::arg("head_dim"), nb::arg("weight"), nb::arg("eps"))
      .def("rope_write", &Tape::rope_write, nb::arg("buf"), nb::arg("rope"), nb::arg("layer"),
           nb::arg("num_heads"))
      .def("attend", &Tape::attend, nb::arg("out"), nb::arg("src"), nb::arg("layer"),
           nb::arg("num_heads"), nb::arg("scale"), nb::arg("window"), nb::arg("softcap"))
      .def("gate", &Tape::gate, nb::arg("out"), nb::arg("src"), nb::arg("activation"))
      .def("add", &Tape::add, nb::arg("out"), nb::arg("src"))
      .def("select_wanted", &Tape::select_wanted, nb::arg("out"), nb::arg("src"))
      .def("head", &Tape::head, nb::arg("src"), nb::arg("weight"), nb::arg("softcap"));
}

}  // namespace

void bind_model(nb::module_& m) {
  nb::class_<Pool>(m, "ThreadPool", "Threads that share the work of a step; the caller is one.")
      .def(nb::init<int, std::shared_ptr<ComputeLease>>(), nb::arg("num_threads"),
           nb::arg("lease").none() = nb::none())
      .def_prop_ro("num_threads", &Pool::num_threads)
      .def_prop_ro("num_running", &Pool::num_running);
  m.def(
      "packed_bytes",
      [](int32_t dtype, int32_t n, int32_t k) { return packed_bytes(to_dtype(dtype), n, k); },
      nb::arg("dtype"), nb::arg("n"), nb::arg("k"), "Bytes of a packed matrix; ValueError.");
  nb::class_<Weights>(m, "Weights", "Packed matrices and float vectors by name.")
      .def(nb::new_(&make_weights), nb::arg("pool"), nb::kw_only(), nb::arg("isa"),
           nb::arg("capacity_bytes"), nb::keep_alive<1, 2>())
      .def("add_matrix", &add_matrix, nb::arg("name"), nb::arg("stored"), nb::arg("packed"),
           nb::arg("n"), nb::arg("k"), nb::arg("data"), nb::kw_only(),
           nb::arg("float_activations") = false, "Packs; returns the source's checksum.")
      .def("add_vector", &add_vector, nb::arg("name"), nb::arg("stored"), nb::arg("count"),
           nb::arg("data"), "Keeps floats; returns the source's checksum.");
  nb::class_<SamplingSpec>(m, "SamplingSpec", "backends/base.py SamplingSpec, checked once.")
      .def("__init__", &construct_spec, nb::kw_only(), nb::arg("temperature") = 1.0,
           nb::arg("top_k") = 0, nb::arg("top_p") = 1.0, nb::arg("min_p") = 0.0,
           nb::arg("repetition_penalty") = 1.0, nb::arg("presence_penalty") = 0.0,
           nb::arg("frequency_penalty") = 0.0,
           nb::arg("logit_bias") = std::vector<std::pair<int32_t, float>>(), nb::arg("seed") = 0,
           nb::arg("num_top") = -1);
  bind_tape(m);
  nb::class_<Model>(m, "Model", "Weights, KV arena and buffers of one model.")
      .def(
          "__init__",
          [](Model* self, std::shared_ptr<Pool> pool, const Tape& tape, int32_t num_blocks,
             int32_t max_step_rows) {
            new (self) Model(std::move(pool), tape, num_blocks, max_step_rows);
          },
          nb::arg("pool"), nb::arg("tape"), nb::kw_only(), nb::arg("num_blocks"),
          nb::arg("max_step_rows"))
      .def("step", &step, nb::arg("tokens"), nb::arg("positions"), nb::arg("seq_starts"),
           nb::arg("tables"), nb::arg("table_starts"), nb::arg("copies"), nb::arg("wanted"),
           nb::arg("buffers"),
           "Runs a plan; ([(token, logprob, top, failed)], [(width, float bytes)], seconds).")
      .def_prop_ro("kv_bytes", &Model::kv_bytes);
}

}  // namespace headrace
