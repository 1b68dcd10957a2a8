"""POST /v1/chat/completions."""

from __future__ import annotations

import msgspec

from headrace.api.exchange import JSON_TYPE, Exchange
from headrace.api.openai.chunks import ChatChunks
from headrace.api.openai.gather import Gathered
from headrace.api.openai.generate import Job, prepare
from headrace.api.openai.params import chat_params
from headrace.api.openai.prompts import Room, encode_chat
from headrace.api.openai.responses import (
    ChatChoice,
    ChatResponse,
    ChatResponseMessage,
    chat_logprob,
    chat_logprobs,
    prompt_logprob,
    timings_of,
    usage_of,
)
from headrace.api.openai.sse import stream_response
from headrace.api.openai.types import ChatRequest
from headrace.engine.sampling import SamplingParams, mix64
from headrace.gateway.streams import RequestStream
from headrace.gateway.text import ModelText

_decoder = msgspec.json.Decoder(ChatRequest)


async def chat_completions(exchange: Exchange) -> None:
    """Answer one conversation."""
    await exchange.read_body()
    await exchange.until_gone(_answer(exchange))


async def _answer(exchange: Exchange) -> None:
    request, job = await prepare(
        exchange, _decoder, prefix="chatcmpl", make_params=chat_params, encode=_encode
    )
    stream = job.service.submit(job.prompts, job.params, job.options)
    try:
        if request.stream:
            await stream_response(exchange, stream, ChatChunks(job.shape(request)), job.headers)
        else:
            data = await _gather(exchange, job, request, stream)
            await exchange.respond(data, headers=[JSON_TYPE, *job.headers])
    finally:
        exchange.note = job.note(stream)
        stream.close()


def _encode(
    text: ModelText, request: ChatRequest, params: SamplingParams, max_model_len: int
) -> list[list[int]]:
    add_prompt = request.add_generation_prompt is not False
    return [encode_chat(text, request.messages, add_prompt, Room(params, max_model_len))]


async def _gather(
    exchange: Exchange, job: Job, request: ChatRequest, stream: RequestStream
) -> bytes:
    gathered = Gathered(1, job.params.n, job.text.tokenizer)
    await gathered.collect(stream)
    return await exchange.gateway.pool.run(
        lambda: msgspec.json.encode(_response(job, request, gathered)), is_large=gathered.is_large
    )


def _response(job: Job, request: ChatRequest, gathered: Gathered) -> ChatResponse:
    params = job.params
    with_ids = bool(request.return_token_ids)
    choices = []
    for i in range(params.n):
        choice = gathered.choices[0, i]
        entries = (chat_logprob(entry) for entry in choice.logprobs if entry is not None)
        shown = None if params.logprobs is None else msgspec.Raw(chat_logprobs(list(entries)))
        choices.append(
            ChatChoice(
                index=i,
                message=ChatResponseMessage(content=choice.text),
                logprobs=shown,
                finish_reason=choice.finish_reason,
                stop_reason=choice.stop_reason,
                seed=mix64(params.seed or 0, i),
                token_ids=choice.token_ids.tolist() if with_ids else msgspec.UNSET,
            )
        )
    done = list(gathered.done.values())
    num_prompt = params.prompt_logprobs
    items = b",".join(prompt_logprob(entry, num_prompt or 0) for entry in gathered.prompts[0])
    return ChatResponse(
        id=job.response_id,
        created=job.created,
        model=job.model,
        system_fingerprint=job.ready.numerics_id,
        choices=choices,
        usage=usage_of(done),
        timings=timings_of(done) if request.timings else msgspec.UNSET,
        prompt_token_ids=job.prompts[0] if with_ids else msgspec.UNSET,
        prompt_logprobs=(msgspec.UNSET if num_prompt is None else msgspec.Raw(b"[" + items + b"]")),
    )
