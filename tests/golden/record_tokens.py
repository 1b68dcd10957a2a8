"""Records what independent tokenizers make of tests/support/hard_strings.py.

The suite reads the files; it needs none of these tools. How they were recorded:

- `tokens_NAME.json`: llama.cpp's tokenizer (llama-cpp-python 0.3.36) on the real model file, with
  special tokens parsed (`special`) and as plain text (`plain`, where it differs). llama.cpp takes
  every `</s>` for a control token, also where the file says otherwise and the model's own
  tokenizer disagrees: texts with it are left out of vocabularies that have it.

      python -m tests.golden.record_tokens tokens MODEL.gguf NAME

- `words.json`: the `regex` module (2026.11.19) with the patterns of the models' own tokenizer.json
  files, which is not the engine that runs the splits here:

      python -m tests.golden.record_tokens words

Run from the repository's root, in an environment that has llama-cpp-python or regex.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.support.hard_strings import HARD_STRINGS

FOLDER = Path(__file__).parent

_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# Split name -> patterns, each applied to the words of the one before.
WORD_PATTERNS = {
    "gpt-2": [_GPT2],
    "smollm": [r"\p{N}|[^\p{N}]+", _GPT2],
    "qwen2": [rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_TAIL}"],
    "llama-bpe": [rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_TAIL}"],
}


def record_tokens(model: Path, name: str) -> None:
    import llama_cpp

    llama = llama_cpp.Llama(model_path=str(model), vocab_only=True, verbose=False)
    has_end_tag = len(llama.tokenize(b"</s>", add_bos=False, special=True)) == 1
    cases = []
    for text in HARD_STRINGS:
        if has_end_tag and "</s>" in text:
            continue
        data = text.encode()
        case: dict[str, Any] = {"text": text}
        case["special"] = llama.tokenize(data, add_bos=False, special=True)
        plain = llama.tokenize(data, add_bos=False, special=False)
        if plain != case["special"]:
            case["plain"] = plain
        cases.append(case)
    _write(FOLDER / f"tokens_{name}.json", cases)


def record_words() -> None:
    import regex  # type: ignore[import-untyped]  # only recording needs it

    cases = []
    for text in HARD_STRINGS:
        case: dict[str, Any] = {"text": text}
        for name, patterns in WORD_PATTERNS.items():
            words = [text]
            for pattern in patterns:
                words = [found for word in words for found in regex.findall(pattern, word)]
            if "".join(words) != text:
                raise AssertionError(f"the words of {text!r} lose some of it")
            case[name] = [len(word) for word in words]
        cases.append(case)
    _write(FOLDER / "words.json", cases)


def _write(path: Path, cases: list[dict[str, Any]]) -> None:
    """One case a line."""
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    path.write_text(f"[\n{lines}\n]\n")
    print(f"{path.name}: {len(cases)} cases, {path.stat().st_size} bytes")


if __name__ == "__main__":
    if sys.argv[1:2] == ["tokens"]:
        record_tokens(Path(sys.argv[2]), sys.argv[3])
    else:
        record_words()
