// SentencePiece-style BPE: text to ids by merging the adjacent pair with the best score, as
// sentencepiece's bpe_model.cc and llama.cpp's llm_tokenizer_spm do. Knows nothing of Python.
#pragma once

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

namespace headrace {

// GGUF's token types (weights/base.py TokenizerSpec).
enum class TokenType : uint8_t {
  normal = 1,
  unknown = 2,
  control = 3,
  user_defined = 4,
  unused = 5,
  byte = 6,
};

// Token texts to ids: open addressing over the texts of the vocabulary, which it does not own. The
// hash grows byte by byte, so that a caller can walk down a text and ask at every length.
class TokenIndex {
 public:
  static constexpr uint64_t kSeed = 0xcbf29ce484222325u;

  explicit TokenIndex(const std::vector<std::string_view>& texts) : texts_(texts) {}
  void reserve(size_t num_tokens);
  // Adds token `id`; false when its text is already there.
  bool insert(int32_t id);
  // The id of a text, or -1; `hash` is the hash of all its bytes.
  int32_t find(std::string_view text, uint64_t hash) const;
  int32_t find(std::string_view text) const;

  // FNV-1a: the hash of a text extended by one byte.
  static uint64_t extend(uint64_t hash, char byte) {
    return (hash ^ static_cast<uint8_t>(byte)) * 0x100000001b3u;
  }

 private:
  struct Entry {
    uint32_t tag = 0;
    int32_t id = -1;
  };
  const std::vector<std::string_view>& texts_;
  std::vector<Entry> entries_;
  size_t mask_ = 0;
};

// An immutable vocabulary; `encode` may run on several threads at once.
class SpmEncoder {
 public:
  struct Options {
    int32_t unk_id = -1;            // -1: none
    bool add_space_prefix = false;  // a space before the text and after every special token
  };

  // Throws std::invalid_argument with one sentence when the vocabulary cannot be used. `texts`,
  // `scores` and `types` have one entry per token.
  SpmEncoder(const std::vector<std::string_view>& texts, std::vector<float> scores,
             std::vector<TokenType> types, Options options);
  SpmEncoder(const SpmEncoder&) = delete;
  SpmEncoder& operator=(const SpmEncoder&) = delete;

  // Appends the ids of valid UTF-8 `text` to `out`. `parse_special`: the texts of control and
  // unknown tokens become their ids (those of user-defined tokens always do). Gives up and returns
  // false as soon as `out` holds more than `limit` ids.
  bool encode(std::string_view text, bool parse_special, size_t limit,
              std::vector<int32_t>& out) const;

  int32_t num_tokens() const { return static_cast<int32_t>(types_.size()); }
  std::string_view text(int32_t id) const { return texts_[static_cast<size_t>(id)]; }
  TokenType type(int32_t id) const { return types_[static_cast<size_t>(id)]; }
  // Bytes of the longest text that one token can stand for.
  size_t max_token_bytes() const { return max_token_bytes_; }
  // The id of a token's text, of whatever type, or -1.
  int32_t find(std::string_view text) const;

 private:
  struct Scratch;

  void index_token(int32_t id);
  void find_glue(std::string_view text);
  int32_t match_special(std::string_view text, bool parse_special) const;
  bool encode_fragment(std::string_view text, bool space_prefix, size_t limit, Scratch& scratch,
                       std::vector<int32_t>& out) const;
  void encode_word(std::string_view word, Scratch& scratch, std::vector<int32_t>& out) const;
  void merge_symbols(std::string_view word, Scratch& scratch) const;
  void try_pair(std::string_view word, int32_t left, int32_t right, Scratch& scratch) const;
  void append_symbol(std::string_view text, const Scratch& scratch,
                     std::vector<int32_t>& out) const;

  std::string arena_;
  std::vector<std::string_view> texts_;  // into arena_
  std::vector<float> scores_;
  std::vector<TokenType> types_;
  Options options_;
  // What merging may produce: normal, user-defined and unused tokens.
  TokenIndex pieces_{texts_};
  // What is cut out of the text first: control, unknown and user-defined tokens.
  TokenIndex special_{texts_};
  std::bitset<65536> special_starts_;                    // by the first two bytes
  std::array<std::vector<uint32_t>, 256> special_lens_;  // by first byte: lengths, ascending
  std::array<int32_t, 256> byte_ids_;
  std::unordered_set<std::string> glue_;  // characters that some token holds right before U+2581
  size_t max_token_bytes_ = 1;
};

}  // namespace headrace
