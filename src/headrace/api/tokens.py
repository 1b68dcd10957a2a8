"""POST /tokenize and /detokenize."""

from __future__ import annotations

import msgspec

from headrace.api.exchange import Exchange
from headrace.api.openai.generate import decode_body
from headrace.api.openai.prompts import render_chat
from headrace.api.openai.types import DetokenizeRequest, TokenizeRequest
from headrace.errors import RequestError
from headrace.gateway.text import ModelText

MAX_TOKENS = 1 << 19
_tokenize_decoder = msgspec.json.Decoder(TokenizeRequest)
_detokenize_decoder = msgspec.json.Decoder(DetokenizeRequest)


class TokenizeResponse(msgspec.Struct, kw_only=True):
    """Token ids, their number, and the context length to hold it against."""

    tokens: list[int]
    count: int
    max_model_len: int


class DetokenizeResponse(msgspec.Struct, kw_only=True):
    """The text; special tokens are left out."""

    prompt: str


async def tokenize(exchange: Exchange) -> None:
    """Ids of a text, or of a conversation as the chat endpoint would see it."""
    await exchange.read_body()
    request, _ = await decode_body(exchange, _tokenize_decoder)
    text, ready = await exchange.gateway.find(request.model).wait_servable()
    pool = exchange.gateway.pool
    ids = await pool.run(lambda: _encode(text, request), is_large=exchange.is_large)
    response = TokenizeResponse(tokens=ids, count=len(ids), max_model_len=ready.max_model_len)
    await exchange.respond(msgspec.json.encode(response))


def _encode(text: ModelText, request: TokenizeRequest) -> list[int]:
    given = [x for x in (request.prompt, request.content, request.messages) if x is not None]
    if len(given) != 1:
        raise RequestError(
            "Send one of prompt, content and messages.", param="prompt", code="invalid_value"
        )
    if request.messages is not None:
        add_prompt = request.add_generation_prompt is not False
        prompt = render_chat(text, request.messages, add_prompt)
        add_special = bool(request.add_special_tokens)
    else:
        prompt = request.prompt if request.prompt is not None else request.content or ""
        add_special = request.add_special_tokens is not False
    ids = text.tokenizer.encode_bounded(prompt, MAX_TOKENS, add_special=add_special)
    if ids is None:
        raise RequestError(f"The text has more than {MAX_TOKENS} tokens.", param="prompt")
    return ids


async def detokenize(exchange: Exchange) -> None:
    """The text of token ids."""
    await exchange.read_body()
    request, _ = await decode_body(exchange, _detokenize_decoder)
    text, ready = await exchange.gateway.find(request.model).wait_servable()
    if request.tokens and max(request.tokens) >= ready.vocab_size:
        raise RequestError(
            f"tokens holds an id outside 0 to {ready.vocab_size - 1}.",
            param="tokens",
            code="invalid_value",
        )
    pool = exchange.gateway.pool
    prompt = await pool.run(
        lambda: text.tokenizer.decode(request.tokens), is_large=exchange.is_large
    )
    await exchange.respond(msgspec.json.encode(DetokenizeResponse(prompt=prompt)))
