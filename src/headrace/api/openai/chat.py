"""POST /v1/chat/completions."""

from __future__ import annotations

import msgspec

from headrace.api.exchange import JSON_TYPE, Exchange
from headrace.api.openai.chunks import ChatChunks
from headrace.api.openai.gather import Gathered
from headrace.api.openai.generate import Job, decode_body, prepare
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
from headrace.worker.frames import TokenLogprob

_decoder = msgspec.json.Decoder(ChatRequest)


async def chat_completions(exchange: Exchange) -> None:
    """Answer one conversation."""
    body = await exchange.read_body()
    await exchange.until_gone(_answer(exchange, body))


async def _answer(exchange: Exchange, body: bytes) -> None:
    request, fields = await decode_body(exchange, body, _decoder)
    job = await prepare(
        exchange, request, fields, prefix="chatcmpl", make_params=chat_params, encode=_encode
    )
    exchange.release_body()
    stream = job.service.submit(job.prompts, job.params)
    try:
        if request.stream:
            await stream_response(exchange, stream, ChatChunks(job.shape(request)), job.headers)
        else:
            response = await _gather(job, request, stream)
            data = msgspec.json.encode(response)
            await exchange.respond(data, headers=[JSON_TYPE, *job.headers])
    finally:
        exchange.note = job.note(stream)
        stream.close()


def _encode(
    text: ModelText, request: ChatRequest, params: SamplingParams, max_model_len: int
) -> list[list[int]]:
    add_prompt = request.add_generation_prompt is not False
    return [encode_chat(text, request.messages, add_prompt, Room(params, max_model_len))]


async def _gather(job: Job, request: ChatRequest, stream: RequestStream) -> ChatResponse:
    params = job.params
    logprobs: list[list[bytes]] = [[] for _ in range(params.n)]
    prompt: list[bytes] = []

    def on_logprobs(_: int, choice: int, entry: TokenLogprob) -> None:
        logprobs[choice].append(chat_logprob(entry))

    def on_prompt(_: int, entry: TokenLogprob | None) -> None:
        prompt.append(prompt_logprob(entry, params.prompt_logprobs or 0))

    gathered = Gathered(1, params.n, on_logprobs=on_logprobs, on_prompt=on_prompt)
    await gathered.collect(stream)
    with_ids = bool(request.return_token_ids)
    choices = []
    for i in range(params.n):
        choice = gathered.choices[0, i]
        shown = None if params.logprobs is None else msgspec.Raw(chat_logprobs(logprobs[i]))
        choices.append(
            ChatChoice(
                index=i,
                message=ChatResponseMessage(content=choice.text),
                logprobs=shown,
                finish_reason=choice.finish_reason,
                stop_reason=choice.stop_reason,
                seed=mix64(params.seed or 0, i),
                token_ids=choice.token_ids if with_ids else msgspec.UNSET,
            )
        )
    done = list(gathered.done.values())
    with_prompt = params.prompt_logprobs is not None
    return ChatResponse(
        id=job.response_id,
        created=job.created,
        model=job.model,
        system_fingerprint=job.ready.numerics_id,
        choices=choices,
        usage=usage_of(done),
        timings=timings_of(done) if request.timings else msgspec.UNSET,
        prompt_token_ids=job.prompts[0] if with_ids else msgspec.UNSET,
        prompt_logprobs=(
            msgspec.Raw(b"[" + b",".join(prompt) + b"]") if with_prompt else msgspec.UNSET
        ),
    )
