"""Text of a wanted number of tokens: common words, drawn from a seed, which most tokenizers have
whole. How many tokens a word really takes is asked of the server once (`words_per_token`)."""

from __future__ import annotations

import functools
import random

from headrace.bench.load.shapes import BLOCK_LEN, Shape

_TEXT = """
the of and to in is that it was for on are as with his they at be this from have or by one had not
but what all were when we there can an your which their said if do will each about how up out them
then she many some so these would other into has more her two like him see time could no make than
first been its who now people my made over did down only way find use may water long little very
after words called just where most know get through back much before go good new write our used me
man too any day same right look think also around another came come work three word must because
does part even place well such here take why things help put years different away again off went
old number great tell men say small every found still between name should home big give air line
"""
WORDS = tuple(_TEXT.split())


class PromptMaker:
    """Prompts of shapes. Same seed and index, same text; equal blocks, equal text."""

    def __init__(self, seed: int, words_per_token: float = 1.0) -> None:
        self._seed = seed
        self._words_per_token = words_per_token
        self._block = functools.lru_cache(maxsize=4096)(self._make_block)

    def make(self, index: int, shape: Shape) -> str:
        """The prompt of request number `index`."""
        if not shape.blocks:
            return self._text(f"request {self._seed} {index}", shape.prompt_len)
        *whole, last = shape.blocks
        rest = shape.prompt_len - BLOCK_LEN * len(whole)
        parts = [self._block(block, BLOCK_LEN) for block in whole]
        return "".join([*parts, self._block(last, rest)])

    def _make_block(self, block: int, length: int) -> str:
        return self._text(f"block {self._seed} {block}", length)

    def _text(self, key: str, length: int) -> str:
        """A shorter text of the same key is the beginning of a longer one."""
        count = max(1, round(length * self._words_per_token))
        rng = random.Random(key)
        return "".join(" " + word for word in rng.choices(WORDS, k=count))
