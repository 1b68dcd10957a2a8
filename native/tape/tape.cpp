#include "tape/tape.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "gemm/layout.h"

namespace headrace {
namespace {

constexpr int32_t kMaxWidth = 1 << 24;
constexpr int32_t kMaxHeads = 1024;
constexpr int32_t kMaxHeadDim = 1024;

[[noreturn]] void fail(const std::string& message) { throw std::invalid_argument(message); }

void require(bool condition, const std::string& message) {
  if (!condition) fail(message);
}

float finite(double value, const char* what) {
  const float rounded = static_cast<float>(value);
  require(std::isfinite(rounded), std::string(what) + " is not a finite number");
  return rounded;
}

Activation activation_of(const std::string& name) {
  const bool silu = name == "silu";
  require(silu || name == "gelu_tanh", "unknown activation " + name);
  return silu ? Activation::silu : Activation::gelu_tanh;
}

void check_kv(const KVShape& kv) {
  require(kv.num_kv_heads >= 1 && kv.num_kv_heads <= kMaxHeads, "number of KV heads out of range");
  require(kv.head_dim >= 8 && kv.head_dim <= kMaxHeadDim && kv.head_dim % 8 == 0,
          "head size must be a multiple of 8, at most " + std::to_string(kMaxHeadDim));
  require(kv.layers_per_block >= 1 && !kv.group_windows.empty(), "the KV layout has no group");
  for (const int32_t window : kv.group_windows) require(window >= 0, "negative attention window");
  for (const KVPlace& place : kv.layers) {
    require(place.group >= 0 && place.group < kv.num_groups() && place.slot >= 0 &&
                place.slot < kv.layers_per_block,
            "a layer lies outside the KV layout");
  }
}

}  // namespace

KVType to_kv_type(int32_t value) {
  require(value == 0 || value == 1, "unknown type of K and V " + std::to_string(value));
  return static_cast<KVType>(value);
}

Tape::Tape(std::shared_ptr<const Weights> weights, std::vector<BufferSpec> buffers,
           std::vector<RopeTable> ropes, KVShape kv, int32_t vocab)
    : weights_(std::move(weights)),
      buffers_(std::move(buffers)),
      ropes_(std::move(ropes)),
      kv_(std::move(kv)),
      vocab_(vocab) {
  require(weights_ != nullptr, "a tape needs weights");
  require(vocab_ >= 1, "the vocabulary is empty");
  check_kv(kv_);
  act_holds_.fill(-1);
  for (const BufferSpec& buffer : buffers_) {
    require(buffer.width >= 1 && buffer.width <= kMaxWidth,
            "buffer " + buffer.name + ": width out of range");
    const auto index = static_cast<int32_t>(index_.size());
    require(index_.emplace(buffer.name, index).second, "two buffers are named " + buffer.name);
  }
  for (size_t i = 0; i < ropes_.size(); ++i) {
    require(ropes_[i].pairs() >= 1 && 2 * ropes_[i].pairs() <= kv_.head_dim,
            "a rope table rotates more columns than a head has");
    for (const double f : ropes_[i].inv_freq) {
      require(std::isfinite(f) && std::fabs(f) <= 16.0, "a rope frequency is out of range");
    }
    push_row_op(false, 16 * ropes_[i].pairs(), RopeAnglesOp{static_cast<int32_t>(i)});
  }
}

int32_t Tape::buffer_index(const std::string& name) const {
  const auto found = index_.find(name);
  if (found == index_.end()) fail("the program has no buffer " + name);
  return found->second;
}

int32_t Tape::buffer_of(const std::string& name, bool wanted) const {
  const int32_t index = buffer_index(name);
  require(spec(index).wanted == wanted,
          "buffer " + name + (wanted ? " must have wanted rows" : " must have step rows"));
  return index;
}

// A buffer that an operation reads.
int32_t Tape::source_of(const std::string& name, bool wanted) const {
  const int32_t index = buffer_of(name, wanted);
  require(in_memory_.count(index) > 0, "buffer " + name + " is read but holds no rows");
  return index;
}

int32_t Tape::stored_buffer(const std::string& name) const {
  const int32_t index = buffer_index(name);
  require(in_memory_.count(index) > 0,
          "buffer " + name + " is not in memory after a step; lower with fused=False to keep it");
  return index;
}

const float* Tape::vector_of(const std::string& name, int32_t len) const {
  const auto& values = weights_->vector(name);
  require(values.size() == static_cast<size_t>(len),
          name + " has " + std::to_string(values.size()) + " values, not " + std::to_string(len));
  return values.data();
}

void Tape::push_row_op(bool wanted, int64_t row_cost, const RowOp& op) {
  require(!has_head_, "the head must be the last operation");
  auto* stage = stages_.empty() ? nullptr : std::get_if<RowStage>(&stages_.back());
  if (stage == nullptr || stage->wanted != wanted) {
    stages_.emplace_back(RowStage{wanted, {}, 0});
    stage = &std::get<RowStage>(stages_.back());
  }
  stage->ops.push_back(op);
  stage->row_cost += row_cost;
}

void Tape::written(int32_t buffer) {
  buffers_[static_cast<size_t>(buffer)].stored = true;
  in_memory_.insert(buffer);
  forget_quantized(buffer);
}

void Tape::forget_quantized(int32_t buffer) {
  for (int32_t& held : act_holds_) {
    if (held == buffer) held = -1;
  }
}

// Where rows of `src` are quantized as `kind`: by the stage that has just made them if it can, else
// by an operation of its own, unless they already are.
ActPlace Tape::quantize(int32_t src, ActKind kind) {
  const int32_t k = spec(src).width;
  const ActPlace place{kind, in_memory_.count(src) == 0};
  size_t& bytes = act_bytes_[place.index()];
  bytes = std::max(bytes, act_row_bytes(kind, k));
  if (act_holds_[place.index()] == src) return place;
  if (auto* kinds = kinds_made_with(src)) {
    kinds->push_back(kind);
  } else {
    require(!place.gated, "buffer " + spec(src).name + " is read but holds no rows");
    push_row_op(spec(src).wanted, 2 * k, QuantizeOp{src, kind});
  }
  act_holds_[place.index()] = src;
  return place;
}

// The kinds of the last stage if it can quantize what it writes to `src`, else nullptr. Items of an
// attention write the query heads of one KV head: these must be whole groups.
std::vector<ActKind>* Tape::kinds_made_with(int32_t src) {
  if (stages_.empty()) return nullptr;
  if (auto* gated = std::get_if<GatedStage>(&stages_.back())) {
    return gated->out == src ? &gated->kinds : nullptr;
  }
  auto* attend = std::get_if<AttendStage>(&stages_.back());
  if (attend == nullptr || attend->out != src) return nullptr;
  const int32_t columns = spec(src).width / kv_.num_kv_heads;
  return columns % kGroupLen == 0 ? &attend->kinds : nullptr;
}

void Tape::embed(const std::string& out, const std::string& weight, double scale) {
  const int32_t index = buffer_of(out, false);
  const PackedMatrix& w = weights_->matrix(weight);
  require(w.n >= vocab_, weight + " has fewer rows than the vocabulary");
  require(w.k == spec(index).width, weight + " does not fit buffer " + out);
  push_row_op(false, 4 * w.k, EmbedOp{index, &w, finite(scale, "embedding scale")});
  written(index);
}

void Tape::norm(const std::string& out, const std::string& src, const std::string& weight,
                double eps) {
  const int32_t to = buffer_index(out);
  const int32_t from = source_of(src, spec(to).wanted);
  const int32_t dim = spec(from).width;
  require(spec(to).width == dim, "norm of " + src + " does not fit buffer " + out);
  push_row_op(spec(to).wanted, 2 * dim,
              NormOp{to, from, vector_of(weight, dim), finite(eps, "norm epsilon")});
  written(to);
}

std::vector<LinearPart> Tape::parts_of(const std::string& out, const std::string& src,
                                       const std::vector<std::string>& weights,
                                       const std::vector<std::string>& biases) {
  const int32_t from = buffer_of(src, spec(buffer_index(out)).wanted);
  const int32_t k = spec(from).width;
  require(!has_head_, "the head must be the last operation");
  require(!weights.empty(), "a linear without weights writes " + out);
  require(biases.empty() || biases.size() == weights.size(),
          "biases of " + out + " are incomplete");
  std::vector<LinearPart> parts;
  int64_t column = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const PackedMatrix& w = weights_->matrix(weights[i]);
    require(w.k == k, weights[i] + " does not fit buffer " + src);
    require(column + w.n <= kMaxWidth, weights[i] + " does not fit buffer " + out);
    const float* bias = biases.empty() ? nullptr : vector_of(biases[i], w.n);
    parts.push_back({&w, bias, static_cast<int32_t>(column), quantize(from, w.act)});
    column += w.n;
  }
  return parts;
}

void Tape::linear(const std::string& out, const std::string& src,
                  const std::vector<std::string>& weights, const std::vector<std::string>& biases,
                  bool accumulate) {
  const int32_t to = buffer_index(out);
  require(out != src, "a linear cannot write the buffer it reads: " + out);
  if (accumulate) source_of(out, spec(to).wanted);
  LinearStage stage{spec(to).wanted, to, spec(buffer_index(src)).width,
                    parts_of(out, src, weights, biases), accumulate};
  const LinearPart& last = stage.parts.back();
  require(last.column + last.weight->n == spec(to).width, "the weights do not fill buffer " + out);
  written(to);
  stages_.emplace_back(std::move(stage));
}

void Tape::gated_linear(const std::string& out, const std::string& src,
                        const std::vector<std::string>& weights,
                        const std::vector<std::string>& biases, const std::string& activation) {
  const int32_t to = buffer_of(out, false);
  require(out != src, "a linear cannot write the buffer it reads: " + out);
  source_of(src, false);
  const std::vector<LinearPart> parts = parts_of(out, src, weights, biases);
  require(parts.size() == 2, "a gated linear has two weights");
  for (const LinearPart& part : parts) {
    require(part.weight->n == spec(to).width, "the weights do not fill buffer " + out);
  }
  forget_quantized(to);
  in_memory_.erase(to);
  stages_.emplace_back(GatedStage{
      to, spec(buffer_index(src)).width, parts[0], parts[1], activation_of(activation), {}});
}

void Tape::require_heads(int32_t num_heads, int32_t layer, int32_t width) const {
  require(num_heads >= 1 && num_heads <= kMaxHeads && num_heads % kv_.num_kv_heads == 0,
          "query heads must be a multiple of KV heads");
  require(layer >= 0 && layer < static_cast<int32_t>(kv_.layers.size()), "no such layer");
  require(width == (num_heads + 2 * kv_.num_kv_heads) * kv_.head_dim,
          "the buffer is not as wide as its q, k and v heads");
}

void Tape::head_norm(const std::string& buf, int32_t column, int32_t num_heads, int32_t head_dim,
                     const std::string& weight, double eps) {
  const int32_t index = source_of(buf, false);
  require(column >= 0 && num_heads >= 1 && head_dim >= 1 && num_heads <= kMaxHeads &&
              head_dim <= kMaxHeadDim && column <= spec(index).width &&
              num_heads * head_dim <= spec(index).width - column,
          "head norm lies outside buffer " + buf);
  push_row_op(false, int64_t{2} * num_heads * head_dim,
              HeadNormOp{index, column, num_heads, head_dim, vector_of(weight, head_dim),
                         finite(eps, "norm epsilon")});
  written(index);
}

void Tape::rope_write(const std::string& buf, int32_t rope, int32_t layer, int32_t num_heads) {
  const int32_t index = source_of(buf, false);
  require_heads(num_heads, layer, spec(index).width);
  require(rope >= 0 && rope < static_cast<int32_t>(ropes_.size()), "no such rope table");
  push_row_op(false, spec(index).width, RopeWriteOp{index, rope, num_heads, layer});
  written(index);
}

void Tape::attend(const std::string& out, const std::string& src, int32_t layer, int32_t num_heads,
                  double scale, int32_t window, double softcap) {
  const int32_t to = buffer_of(out, false);
  const int32_t from = source_of(src, false);
  require(to != from, "attention cannot write the buffer it reads: " + out);
  require(!has_head_, "the head must be the last operation");
  require_heads(num_heads, layer, spec(from).width);
  require(spec(to).width == num_heads * kv_.head_dim, "attention does not fit buffer " + out);
  const KVPlace place = kv_.layers[static_cast<size_t>(layer)];
  require(window == kv_.group_windows[static_cast<size_t>(place.group)],
          "the attention window differs from that of the layer's KV group");
  require(softcap >= 0.0, "negative attention softcap");
  written(to);
  stages_.emplace_back(AttendStage{to,
                                   from,
                                   layer,
                                   attend_cut(place.group, num_heads),
                                   num_heads,
                                   finite(scale, "attention scale"),
                                   window,
                                   finite(softcap, "attention softcap"),
                                   {}});
}

int32_t Tape::attend_cut(int32_t group, int32_t num_heads) {
  for (size_t i = 0; i < attend_cuts_.size(); ++i) {
    if (attend_cuts_[i].group == group && attend_cuts_[i].num_heads == num_heads) {
      return static_cast<int32_t>(i);
    }
  }
  attend_cuts_.push_back({group, num_heads});
  return static_cast<int32_t>(attend_cuts_.size()) - 1;
}

void Tape::gate(const std::string& out, const std::string& src, const std::string& activation) {
  const int32_t to = buffer_of(out, false);
  const int32_t from = source_of(src, false);
  const int32_t dim = spec(to).width;
  require(to != from && int64_t{2} * dim == spec(from).width, "gate does not fit buffer " + out);
  push_row_op(false, 16 * dim, GateOp{to, from, activation_of(activation)});
  written(to);
}

void Tape::add(const std::string& out, const std::string& src) {
  const int32_t to = buffer_index(out);
  source_of(out, spec(to).wanted);
  const int32_t from = source_of(src, spec(to).wanted);
  require(spec(to).width == spec(from).width, "cannot add " + src + " to " + out);
  push_row_op(spec(to).wanted, spec(to).width, AddOp{to, from});
  written(to);
}

void Tape::select_wanted(const std::string& out, const std::string& src) {
  const int32_t to = buffer_of(out, true);
  const int32_t from = source_of(src, false);
  require(spec(to).width == spec(from).width, "selecting rows of " + src + " does not fit " + out);
  push_row_op(true, spec(to).width, SelectOp{to, from});
  written(to);
}

void Tape::head(const std::string& src, const std::string& weight, double softcap) {
  const int32_t from = source_of(src, true);
  const PackedMatrix& w = weights_->matrix(weight);
  require(w.k == spec(from).width, weight + " does not fit buffer " + src);
  require(w.n == vocab_, weight + " has " + std::to_string(w.n) + " rows, the vocabulary " +
                             std::to_string(vocab_));
  require(softcap >= 0.0, "negative logit softcap");
  require(!has_head_, "a program has one head");
  const ActPlace act = quantize(from, w.act);
  has_head_ = true;
  stages_.emplace_back(HeadStage{&w, act, finite(softcap, "logit softcap")});
}

}  // namespace headrace
