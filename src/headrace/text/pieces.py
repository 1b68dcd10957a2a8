"""How the two families of vocabularies write bytes: GPT-2's alphabet, pieces with byte tokens."""

from __future__ import annotations

from functools import cache

SPACE_MARK = "\u2581"  # how SentencePiece writes a space


@cache
def byte_alphabet() -> tuple[str, ...]:
    """GPT-2's character for each byte: itself if it is printable, else one from U+0100 up."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = iter(range(0x100, 0x200))
    return tuple(chr(byte if byte in printable else next(moved)) for byte in range(256))


@cache
def _byte_values() -> dict[int, int]:
    """str.translate table from the alphabet to the code points 0 to 255."""
    return {ord(char): byte for byte, char in enumerate(byte_alphabet())}


def byte_level_bytes(text: str) -> bytes:
    """The bytes that a byte-level token stands for; characters outside the alphabet as UTF-8."""
    try:
        return text.translate(_byte_values()).encode("latin-1")
    except UnicodeEncodeError:
        values = _byte_values()
        return b"".join(
            bytes([values[ord(char)]]) if ord(char) in values else char.encode() for char in text
        )


def byte_token_value(text: str) -> int | None:
    """10 for `<0x0A>`; None for a text that is no byte token."""
    if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
        try:
            return int(text[3:5], 16)
        except ValueError:
            return None
    return None
