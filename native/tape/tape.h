// Tape: a Program lowered to stages. Every operation is checked against the buffers and weights
// when it is added, so that a step needs no check of shapes.
//
// A stage is what runs between two barriers: a chain of row operations (each row passes the whole
// chain), one linear group, one gated pair of products, one attention, or the head.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <variant>
#include <vector>

#include "tape/weights.h"

namespace headrace {

// Where a layer's KV lives (backends/layout.py): block table `group`, region `slot` of the arena.
struct KVPlace {
  int32_t group;
  int32_t slot;
};

// KVType of that number; std::invalid_argument for any other.
KVType to_kv_type(int32_t value);

struct KVShape {
  std::vector<int32_t> group_windows;  // window of each group, 0 = full attention
  std::vector<KVPlace> layers;
  int32_t layers_per_block;
  int32_t num_kv_heads;
  int32_t head_dim;
  KVType type;

  int32_t num_groups() const { return static_cast<int32_t>(group_windows.size()); }
  // Bytes of one layer of one block: [kv_head][K | V], see KVType.
  int64_t region_block_bytes() const { return num_kv_heads * kv_head_bytes(type, head_dim); }
};

struct RopeTable {
  std::vector<double> inv_freq;
  bool interleaved;
  int32_t pairs() const { return static_cast<int32_t>(inv_freq.size()); }
};

struct BufferSpec {
  std::string name;
  int32_t width;
  bool wanted;          // one row per wanted row, else one per step row
  bool stored = false;  // whether any operation writes it to memory
};

// A memory of quantized rows. Each kind has one for rows of buffers and one for gated rows, which
// are written while the first is read.
struct ActPlace {
  ActKind kind;
  bool gated;
  size_t index() const { return static_cast<size_t>(kind) + (gated ? kActKinds : 0); }
};

// ---- row operations; buffers by index ----
struct EmbedOp {
  int32_t out;
  const PackedMatrix* weight;
  float scale;
};
struct RopeAnglesOp {
  int32_t rope;
};
struct NormOp {
  int32_t out, src;
  const float* weight;
  float eps;
};
// Quantizes a buffer into the activation memory of a kind.
struct QuantizeOp {
  int32_t src;
  ActKind kind;
};
struct HeadNormOp {
  int32_t buf, column, num_heads, head_dim;
  const float* weight;
  float eps;
};
struct RopeWriteOp {
  int32_t buf, rope, num_heads, layer;
};
enum class Activation { silu, gelu_tanh };
struct GateOp {
  int32_t out, src;
  Activation activation;
};
struct AddOp {
  int32_t out, src;
};
struct SelectOp {
  int32_t out, src;
};
using RowOp = std::variant<EmbedOp, RopeAnglesOp, NormOp, QuantizeOp, HeadNormOp, RopeWriteOp,
                           GateOp, AddOp, SelectOp>;

// ---- stages ----
struct RowStage {
  bool wanted;
  std::vector<RowOp> ops;
  int64_t row_cost;  // floats touched per row
};
struct LinearPart {
  const PackedMatrix* weight;
  const float* bias;  // or nullptr
  int32_t column;     // of the out buffer
  ActPlace act;
};
struct LinearStage {
  bool wanted;
  int32_t out;
  int32_t k;
  std::vector<LinearPart> parts;
  bool accumulate;  // into out
};
// Products whose outputs are gated and quantized for the next linear at once, never stored.
struct GatedStage {
  int32_t out;
  int32_t k;
  LinearPart gate, up;
  Activation activation;
  std::vector<ActKind> kinds;  // of the quantized rows of out
};
struct AttendStage {
  int32_t out, src, layer;
  int32_t cut;  // index into Tape::attend_cuts
  int32_t num_heads;
  float scale;
  int32_t window;
  float softcap;
  std::vector<ActKind> kinds;  // rows of out are quantized so as soon as they are done
};
// Layers that share it have one plan of items per step.
struct AttendCut {
  int32_t group;
  int32_t num_heads;
};
struct HeadStage {
  const PackedMatrix* weight;
  ActPlace act;
  float softcap;
};
using Stage = std::variant<RowStage, LinearStage, GatedStage, AttendStage, HeadStage>;

class Tape {
 public:
  // std::invalid_argument, naming the buffer, weight or number at fault, from every function.
  Tape(std::shared_ptr<const Weights> weights, std::vector<BufferSpec> buffers,
       std::vector<RopeTable> ropes, KVShape kv, int32_t vocab);

  void embed(const std::string& out, const std::string& weight, double scale);
  void norm(const std::string& out, const std::string& src, const std::string& weight, double eps);
  // `accumulate`: out += the product.
  void linear(const std::string& out, const std::string& src,
              const std::vector<std::string>& weights, const std::vector<std::string>& biases,
              bool accumulate);
  // out = activation(weights[0] @ src + biases[0]) * (weights[1] @ src + biases[1]), of which only
  // what the next operation reads exists: a linear with src = out must follow.
  void gated_linear(const std::string& out, const std::string& src,
                    const std::vector<std::string>& weights, const std::vector<std::string>& biases,
                    const std::string& activation);
  void head_norm(const std::string& buf, int32_t column, int32_t num_heads, int32_t head_dim,
                 const std::string& weight, double eps);
  void rope_write(const std::string& buf, int32_t rope, int32_t layer, int32_t num_heads);
  void attend(const std::string& out, const std::string& src, int32_t layer, int32_t num_heads,
              double scale, int32_t window, double softcap);
  void gate(const std::string& out, const std::string& src, const std::string& activation);
  void add(const std::string& out, const std::string& src);
  void select_wanted(const std::string& out, const std::string& src);
  void head(const std::string& src, const std::string& weight, double softcap);

  const KernelTable& table() const { return weights_->table(); }
  const std::vector<BufferSpec>& buffers() const { return buffers_; }
  const std::vector<RopeTable>& ropes() const { return ropes_; }
  const KVShape& kv() const { return kv_; }
  int32_t vocab() const { return vocab_; }
  const std::vector<Stage>& stages() const { return stages_; }
  const std::vector<AttendCut>& attend_cuts() const { return attend_cuts_; }
  bool has_head() const { return has_head_; }
  // Bytes per row of an activation memory: the most that any product reads.
  size_t act_bytes(ActPlace place) const { return act_bytes_[place.index()]; }
  // Of a buffer whose rows are in memory after a step.
  int32_t stored_buffer(const std::string& name) const;

 private:
  const BufferSpec& spec(int32_t index) const { return buffers_[static_cast<size_t>(index)]; }
  int32_t buffer_index(const std::string& name) const;
  int32_t buffer_of(const std::string& name, bool wanted) const;
  const float* vector_of(const std::string& name, int32_t len) const;
  void require_heads(int32_t num_heads, int32_t layer, int32_t width) const;
  int32_t source_of(const std::string& name, bool wanted) const;
  std::vector<LinearPart> parts_of(const std::string& out, const std::string& src,
                                   const std::vector<std::string>& weights,
                                   const std::vector<std::string>& biases);
  void push_row_op(bool wanted, int64_t row_cost, const RowOp& op);
  ActPlace quantize(int32_t src, ActKind kind);
  std::vector<ActKind>* kinds_made_with(int32_t src);
  int32_t attend_cut(int32_t group, int32_t num_heads);
  void written(int32_t buffer);
  void forget_quantized(int32_t buffer);

  std::shared_ptr<const Weights> weights_;
  std::vector<BufferSpec> buffers_;
  std::vector<RopeTable> ropes_;
  KVShape kv_;
  int32_t vocab_;
  std::unordered_map<std::string, int32_t> index_;
  std::vector<Stage> stages_;
  std::vector<AttendCut> attend_cuts_;
  std::unordered_set<int32_t> in_memory_;  // buffers whose rows are where they belong
  bool has_head_ = false;
  // By ActPlace::index().
  std::array<size_t, 2 * kActKinds> act_bytes_{};
  std::array<int32_t, 2 * kActKinds> act_holds_;  // the buffer whose rows are there, or -1
};

}  // namespace headrace
