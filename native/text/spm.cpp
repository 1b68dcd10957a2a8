// See spm.h.
#include "text/spm.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <stdexcept>
#include <unordered_map>

namespace headrace {
namespace {

constexpr std::string_view kSpace = "\xe2\x96\x81";  // U+2581, how pieces write a space

size_t char_len(char first) {
  const auto byte = static_cast<uint8_t>(first);
  if (byte < 0x80) return 1;
  if (byte < 0xe0) return 2;
  return byte < 0xf0 ? 3 : 4;
}

// "<0x0A>" -> 10; -1 when the text is not of that form.
int32_t parse_byte_token(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return -1;
  int32_t value = -1;
  const auto [end, error] = std::from_chars(text.data() + 3, text.data() + 5, value, 16);
  return error == std::errc() && end == text.data() + 5 ? value : -1;
}

uint64_t hash_all(std::string_view text) {
  uint64_t hash = TokenIndex::kSeed;
  for (const char byte : text) hash = TokenIndex::extend(hash, byte);
  return hash;
}

// The high bits of FNV-1a are the better mixed ones.
size_t first_slot(uint64_t hash) { return hash ^ (hash >> 32); }

size_t first_two(std::string_view text) {
  return static_cast<size_t>(static_cast<uint8_t>(text[0])) << 8 |
         (text.size() > 1 ? static_cast<uint8_t>(text[1]) : 0);
}

[[noreturn]] void fail(const std::string& message) { throw std::invalid_argument(message); }

}  // namespace

void TokenIndex::reserve(size_t num_tokens) {
  const size_t capacity = std::bit_ceil(std::max<size_t>(2 * num_tokens, 16));
  entries_.assign(capacity, Entry{});
  mask_ = capacity - 1;
}

bool TokenIndex::insert(int32_t id) {
  const std::string_view text = texts_[static_cast<size_t>(id)];
  const uint64_t hash = hash_all(text);
  if (find(text, hash) >= 0) return false;
  size_t slot = first_slot(hash) & mask_;
  while (entries_[slot].id >= 0) slot = (slot + 1) & mask_;
  entries_[slot] = {static_cast<uint32_t>(hash), id};
  return true;
}

int32_t TokenIndex::find(std::string_view text, uint64_t hash) const {
  const auto tag = static_cast<uint32_t>(hash);
  for (size_t slot = first_slot(hash) & mask_;; slot = (slot + 1) & mask_) {
    const Entry& entry = entries_[slot];
    if (entry.id < 0) return -1;
    if (entry.tag == tag && texts_[static_cast<size_t>(entry.id)] == text) return entry.id;
  }
}

int32_t TokenIndex::find(std::string_view text) const { return find(text, hash_all(text)); }

// What one call of encode works with; reused from word to word.
struct SpmEncoder::Scratch {
  struct Symbol {
    int32_t prev;
    int32_t next;
    uint32_t offset;
    uint32_t size;  // 0: merged into its left neighbour
  };
  struct Pair {
    float score;
    int32_t left;
    int32_t right;
    uint32_t size;
  };

  // True when `a` comes after `b`: the best score first, ties to the leftmost.
  static bool after(const Pair& a, const Pair& b) {
    return a.score < b.score || (a.score == b.score && a.left > b.left);
  }

  std::string word;
  std::vector<Symbol> symbols;
  std::vector<Pair> heap;
  // An unused token -> the two texts it was merged from: it is taken apart again in the end.
  std::unordered_map<int32_t, std::pair<std::string_view, std::string_view>> origins;
};

SpmEncoder::SpmEncoder(const std::vector<std::string_view>& texts, std::vector<float> scores,
                       std::vector<TokenType> types, Options options)
    : scores_(std::move(scores)), types_(std::move(types)), options_(options) {
  const size_t count = texts.size();
  if (count == 0 || scores_.size() != count || types_.size() != count) {
    fail("it needs one score and one type for each of its tokens, and at least one token");
  }
  if (count > size_t{1} << 30) fail("it has too many tokens");
  if (std::any_of(scores_.begin(), scores_.end(), [](float s) { return !std::isfinite(s); })) {
    fail("one of its scores is not a finite number");
  }
  size_t arena_bytes = 0;
  for (const auto text : texts) arena_bytes += text.size();
  arena_.reserve(arena_bytes);
  texts_.reserve(count);
  for (const auto text : texts) {
    const size_t start = arena_.size();
    arena_.append(text);
    texts_.emplace_back(arena_.data() + start, text.size());
  }
  const auto num_special =
      static_cast<size_t>(std::count_if(types_.begin(), types_.end(), [](TokenType type) {
        return type == TokenType::control || type == TokenType::unknown ||
               type == TokenType::user_defined;
      }));
  pieces_.reserve(count);
  special_.reserve(num_special);
  byte_ids_.fill(-1);
  for (int32_t id = 0; id < num_tokens(); ++id) index_token(id);
  for (auto& lens : special_lens_) {
    std::sort(lens.begin(), lens.end());
    lens.erase(std::unique(lens.begin(), lens.end()), lens.end());
  }
  const bool all_bytes =
      std::none_of(byte_ids_.begin(), byte_ids_.end(), [](int32_t id) { return id < 0; });
  if (!all_bytes && (options_.unk_id < 0 || options_.unk_id >= num_tokens())) {
    fail("it has neither a token for each byte nor an unknown token");
  }
  // An unknown character is one token, so four bytes at most.
  if (!all_bytes) max_token_bytes_ = std::max<size_t>(max_token_bytes_, 4);
}

void SpmEncoder::index_token(int32_t id) {
  const std::string_view text = texts_[static_cast<size_t>(id)];
  const TokenType type = types_[static_cast<size_t>(id)];
  if (type == TokenType::byte) {
    const int32_t value = parse_byte_token(text);
    if (value < 0) fail("token " + std::to_string(id) + " is a byte token without a byte");
    byte_ids_[static_cast<size_t>(value)] = id;
    return;
  }
  if (text.empty()) return;  // cannot be produced, and stands for nothing
  max_token_bytes_ = std::max(max_token_bytes_, text.size());
  const bool special = type == TokenType::control || type == TokenType::unknown;
  if (special || type == TokenType::user_defined) {
    if (!special_.insert(id)) {
      fail("token " + std::to_string(id) + " repeats the text of another one");
    }
    special_lens_[static_cast<uint8_t>(text[0])].push_back(static_cast<uint32_t>(text.size()));
    const size_t start = first_two(text);
    special_starts_.set(start);
    // One byte alone: whatever follows it.
    for (size_t next = 0; text.size() == 1 && next < 256; ++next) special_starts_.set(start | next);
  }
  if (special) return;
  if (!pieces_.insert(id)) {
    fail("token " + std::to_string(id) + " repeats the text of another one");
  }
  find_glue(text);
}

// A text may be cut before every U+2581 that follows another character, because no token spans
// such a place: except after the characters found here.
void SpmEncoder::find_glue(std::string_view text) {
  for (size_t at = text.find(kSpace, 1); at != std::string_view::npos;
       at = text.find(kSpace, at + kSpace.size())) {
    size_t start = at - 1;
    while (start > 0 && (static_cast<uint8_t>(text[start]) & 0xc0) == 0x80) --start;
    const std::string_view before = text.substr(start, at - start);
    if (before != kSpace) glue_.emplace(before);
  }
}

int32_t SpmEncoder::find(std::string_view text) const {
  const int32_t id = special_.find(text);
  if (id >= 0) return id;
  const int32_t value = parse_byte_token(text);
  if (value >= 0 && byte_ids_[static_cast<size_t>(value)] >= 0) {
    return byte_ids_[static_cast<size_t>(value)];
  }
  return pieces_.find(text);
}

// The longest special token that `text` begins with, or -1.
int32_t SpmEncoder::match_special(std::string_view text, bool parse_special) const {
  int32_t best = -1;
  uint64_t hash = TokenIndex::kSeed;
  size_t hashed = 0;
  for (const uint32_t len : special_lens_[static_cast<uint8_t>(text[0])]) {
    if (len > text.size()) break;
    for (; hashed < len; ++hashed) hash = TokenIndex::extend(hash, text[hashed]);
    const int32_t id = special_.find(text.substr(0, len), hash);
    if (id >= 0 && (parse_special || type(id) == TokenType::user_defined)) best = id;
  }
  return best;
}

bool SpmEncoder::encode(std::string_view text, bool parse_special, size_t limit,
                        std::vector<int32_t>& out) const {
  Scratch scratch;
  bool after_special = true;
  size_t start = 0;
  const auto flush = [&](size_t end) {
    if (end == start) return true;
    const bool space_prefix = options_.add_space_prefix && after_special;
    after_special = false;
    return encode_fragment(text.substr(start, end - start), space_prefix, limit, scratch, out);
  };
  for (size_t at = 0; at < text.size();) {
    const std::string_view rest = text.substr(at);
    const int32_t id = special_starts_[first_two(rest)] ? match_special(rest, parse_special) : -1;
    if (id < 0) {
      ++at;
      continue;
    }
    if (!flush(at)) return false;
    out.push_back(id);
    if (out.size() > limit) return false;
    after_special = true;
    at += texts_[static_cast<size_t>(id)].size();
    start = at;
  }
  return flush(text.size());
}

// Writes spaces as U+2581 and encodes word by word; a word ends where no token can span.
bool SpmEncoder::encode_fragment(std::string_view text, bool space_prefix, size_t limit,
                                 Scratch& scratch, std::vector<int32_t>& out) const {
  std::string& word = scratch.word;
  word.clear();
  if (space_prefix) word = kSpace;
  std::string_view last = space_prefix ? kSpace : std::string_view();
  for (size_t at = 0; at < text.size();) {
    const size_t len = std::min(char_len(text[at]), text.size() - at);
    const std::string_view symbol = text[at] == ' ' ? kSpace : text.substr(at, len);
    if (symbol == kSpace && !last.empty() && last != kSpace &&
        (glue_.empty() || !glue_.contains(std::string(last)))) {
      encode_word(word, scratch, out);
      if (out.size() > limit) return false;
      word.clear();
    }
    word.append(symbol);
    last = symbol;
    at += len;
  }
  encode_word(word, scratch, out);
  return out.size() <= limit;
}

void SpmEncoder::encode_word(std::string_view word, Scratch& scratch,
                             std::vector<int32_t>& out) const {
  merge_symbols(word, scratch);
  for (int32_t i = scratch.symbols.empty() ? -1 : 0; i >= 0;) {
    const auto& symbol = scratch.symbols[static_cast<size_t>(i)];
    append_symbol(word.substr(symbol.offset, symbol.size), scratch, out);
    i = symbol.next;
  }
}

void SpmEncoder::merge_symbols(std::string_view word, Scratch& scratch) const {
  auto& symbols = scratch.symbols;
  auto& heap = scratch.heap;
  symbols.clear();
  heap.clear();
  scratch.origins.clear();
  for (size_t at = 0; at < word.size();) {
    const size_t len = std::min(char_len(word[at]), word.size() - at);
    const auto index = static_cast<int32_t>(symbols.size());
    symbols.push_back(
        {index - 1, index + 1, static_cast<uint32_t>(at), static_cast<uint32_t>(len)});
    at += len;
  }
  if (symbols.empty()) return;
  symbols.back().next = -1;
  for (int32_t i = 1; i < static_cast<int32_t>(symbols.size()); ++i) {
    try_pair(word, i - 1, i, scratch);
  }
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), Scratch::after);
    const Scratch::Pair pair = heap.back();
    heap.pop_back();
    auto& left = symbols[static_cast<size_t>(pair.left)];
    auto& right = symbols[static_cast<size_t>(pair.right)];
    // Stale: one side has been merged since.
    if (left.size == 0 || right.size == 0 || left.size + right.size != pair.size) continue;
    left.size += right.size;
    right.size = 0;
    left.next = right.next;
    if (right.next >= 0) symbols[static_cast<size_t>(right.next)].prev = pair.left;
    try_pair(word, left.prev, pair.left, scratch);
    try_pair(word, pair.left, left.next, scratch);
  }
}

void SpmEncoder::try_pair(std::string_view word, int32_t left, int32_t right,
                          Scratch& scratch) const {
  if (left < 0 || right < 0) return;
  const auto& a = scratch.symbols[static_cast<size_t>(left)];
  const auto& b = scratch.symbols[static_cast<size_t>(right)];
  const uint32_t size = a.size + b.size;
  if (size > max_token_bytes_) return;
  const int32_t id = pieces_.find(word.substr(a.offset, size));
  if (id < 0) return;
  scratch.heap.push_back({scores_[static_cast<size_t>(id)], left, right, size});
  std::push_heap(scratch.heap.begin(), scratch.heap.end(), Scratch::after);
  if (type(id) == TokenType::unused) {
    scratch.origins[id] = {word.substr(a.offset, a.size), word.substr(b.offset, b.size)};
  }
}

void SpmEncoder::append_symbol(std::string_view text, const Scratch& scratch,
                               std::vector<int32_t>& out) const {
  const int32_t id = pieces_.find(text);
  if (id >= 0) {
    const auto origin = scratch.origins.find(id);
    if (origin == scratch.origins.end()) {
      out.push_back(id);
      return;
    }
    append_symbol(origin->second.first, scratch, out);
    append_symbol(origin->second.second, scratch, out);
    return;
  }
  for (const char byte : text) {
    if (byte_ids_[static_cast<uint8_t>(byte)] < 0) {
      out.push_back(options_.unk_id);
      return;
    }
  }
  for (const char byte : text) out.push_back(byte_ids_[static_cast<uint8_t>(byte)]);
}

}  // namespace headrace
