// Python's view of text/: headrace._native.SpmEncoder.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "text/spm.h"

namespace nb = nanobind;

namespace headrace {
namespace {

std::string_view bytes_view(nb::handle object) {
  char* data = nullptr;
  Py_ssize_t size = 0;
  if (PyBytes_AsStringAndSize(object.ptr(), &data, &size) != 0) throw nb::python_error();
  return {data, static_cast<size_t>(size)};
}

// The UTF-8 form that the str object keeps; raises UnicodeEncodeError for a lone surrogate.
std::string_view text_view(const nb::str& text) {
  Py_ssize_t size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (data == nullptr) throw nb::python_error();
  return {data, static_cast<size_t>(size)};
}

nb::bytes to_bytes(std::string_view text) { return nb::bytes(text.data(), text.size()); }

void construct(SpmEncoder* self, const nb::list& tokens, const nb::sequence& scores,
               const nb::sequence& types, int32_t unk_id, bool add_space_prefix) {
  std::vector<std::string_view> texts;
  std::vector<float> score_values;
  std::vector<TokenType> type_values;
  texts.reserve(nb::len(tokens));
  for (const nb::handle token : tokens) texts.push_back(bytes_view(token));
  for (const nb::handle score : scores) {
    score_values.push_back(static_cast<float>(nb::cast<double>(score)));
  }
  for (const nb::handle type : types) {
    const auto value = nb::cast<int64_t>(type);
    if (value < 1 || value > 6) throw nb::value_error("one of its token types is not known");
    type_values.push_back(static_cast<TokenType>(value));
  }
  new (self) SpmEncoder(texts, std::move(score_values), std::move(type_values),
                        {unk_id, add_space_prefix});
}

// The ids as bytes: making Python's numbers of all of them at once would hold the GIL for long.
nb::object encode(const SpmEncoder& self, const nb::str& text, bool parse_special, int64_t limit) {
  const std::string_view view = text_view(text);
  std::vector<int32_t> ids;
  bool complete = false;
  {
    nb::gil_scoped_release unlocked;
    complete =
        self.encode(view, parse_special, static_cast<size_t>(std::max<int64_t>(limit, 0)), ids);
  }
  if (!complete) return nb::none();
  return nb::bytes(ids.data(), ids.size() * sizeof(int32_t));
}

int32_t checked(const SpmEncoder& self, int32_t id) {
  if (id < 0 || id >= self.num_tokens()) throw nb::index_error("no such token id");
  return id;
}

}  // namespace

void bind_text(nb::module_& m) {
  nb::class_<SpmEncoder>(m, "SpmEncoder")
      .def("__init__", &construct, nb::arg("tokens"), nb::arg("scores"), nb::arg("token_types"),
           nb::kw_only(), nb::arg("unk_id"), nb::arg("add_space_prefix"),
           "A SentencePiece-style vocabulary (native/text/spm.h); raises ValueError.")
      .def("encode", &encode, nb::arg("text"), nb::kw_only(), nb::arg("parse_special"),
           nb::arg("limit"),
           "Token ids as int32, or None as soon as there are more than `limit`; releases the GIL.")
      .def(
          "token_bytes",
          [](const SpmEncoder& self, int32_t id) { return to_bytes(self.text(checked(self, id))); },
          nb::arg("token_id"), "A token's text as it is stored.")
      .def(
          "token_type",
          [](const SpmEncoder& self, int32_t id) {
            return static_cast<int>(self.type(checked(self, id)));
          },
          nb::arg("token_id"), "GGUF's type of a token.")
      .def(
          "find",
          [](const SpmEncoder& self, const nb::bytes& text) { return self.find(bytes_view(text)); },
          nb::arg("text"), "The id of the token with this text, or -1.")
      .def_prop_ro("max_token_bytes", &SpmEncoder::max_token_bytes,
                   "Bytes of the longest text that one token can stand for.");
}

}  // namespace headrace
