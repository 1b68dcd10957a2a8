"""POST /v1/completions."""

from __future__ import annotations

import msgspec

from headrace.api.exchange import JSON_TYPE, Exchange
from headrace.api.openai.chunks import CompletionChunks
from headrace.api.openai.gather import Gathered
from headrace.api.openai.generate import Job, decode_body, prepare
from headrace.api.openai.params import completion_params
from headrace.api.openai.prompts import Room, completion_prompts
from headrace.api.openai.responses import (
    CompletionChoice,
    CompletionLogprobs,
    CompletionResponse,
    prompt_logprob,
    timings_of,
    usage_of,
)
from headrace.api.openai.sse import stream_response
from headrace.api.openai.types import CompletionRequest
from headrace.engine.sampling import SamplingParams, mix64
from headrace.gateway.streams import RequestStream
from headrace.gateway.text import ModelText
from headrace.text.base import Tokenizer
from headrace.worker.frames import TokenLogprob

_decoder = msgspec.json.Decoder(CompletionRequest)


async def completions(exchange: Exchange) -> None:
    """Continue one prompt or several."""
    body = await exchange.read_body()
    await exchange.until_gone(_answer(exchange, body))


async def _answer(exchange: Exchange, body: bytes) -> None:
    request, fields = await decode_body(exchange, body, _decoder)
    job = await prepare(
        exchange, request, fields, prefix="cmpl", make_params=completion_params, encode=_encode
    )
    exchange.release_body()
    stream = job.service.submit(job.prompts, job.params)
    try:
        if request.stream:
            encoder = _chunks(job, request)
            await stream_response(exchange, stream, encoder, job.headers)
        else:
            response = await _Whole(job, request).gather(stream)
            data = msgspec.json.encode(response)
            await exchange.respond(data, headers=[JSON_TYPE, *job.headers])
    finally:
        exchange.note = job.note(stream)
        stream.close()


def _encode(
    text: ModelText, request: CompletionRequest, params: SamplingParams, max_model_len: int
) -> list[list[int]]:
    room = Room(params, max_model_len)
    return completion_prompts(text, request.prompt, room)


def _echo_texts(job: Job, request: CompletionRequest) -> list[str]:
    """The prompts as text: as they came, or decoded when they came as ids."""
    prompt = request.prompt
    given = [prompt] if isinstance(prompt, str) else prompt
    if all(isinstance(text, str) for text in given):
        return [str(text) for text in given]
    return [job.text.tokenizer.decode(ids) for ids in job.prompts]


def _shown(tokenizer: Tokenizer, ids: list[int]) -> list[tuple[str, bytes]]:
    """Text and bytes of prompt tokens, for those that have no logprob."""
    return [(tokenizer.token_text(token), tokenizer.decode_bytes(token)) for token in ids]


def _chunks(job: Job, request: CompletionRequest) -> CompletionChunks:
    tokenizer = job.text.tokenizer
    with_logprobs = request.logprobs is not None
    with_tokens = bool(request.echo) and with_logprobs
    return CompletionChunks(
        job.shape(request),
        echo=_echo_texts(job, request) if request.echo else None,
        tokens=[_shown(tokenizer, ids) for ids in job.prompts] if with_tokens else None,
        num_logprobs=request.logprobs,
    )


class _Whole:
    """A response that is not streamed, while it is gathered."""

    def __init__(self, job: Job, request: CompletionRequest) -> None:
        self._job = job
        self._request = request
        self._echo = _echo_texts(job, request) if request.echo else None
        pairs = [(p, c) for p in range(len(job.prompts)) for c in range(job.params.n)]
        num_top = request.logprobs
        self._logprobs = (
            None if num_top is None else {pair: CompletionLogprobs(num_top) for pair in pairs}
        )
        self._prompt: list[list[bytes]] = [[] for _ in job.prompts]
        self._num_seen = [0] * len(job.prompts)

    async def gather(self, stream: RequestStream) -> CompletionResponse:
        """Read the stream to its end."""
        job, request, params = self._job, self._request, self._job.params
        gathered = Gathered(
            len(job.prompts), params.n, on_logprobs=self._on_logprobs, on_prompt=self._on_prompt
        )
        await gathered.collect(stream)
        done = [gathered.done[p] for p in sorted(gathered.done)]
        return CompletionResponse(
            id=job.response_id,
            created=job.created,
            model=job.model,
            system_fingerprint=job.ready.numerics_id,
            choices=[self._choice(gathered, part, c) for part, c in gathered.choices],
            usage=usage_of(done),
            timings=timings_of(done) if request.timings else msgspec.UNSET,
        )

    def _on_logprobs(self, part: int, choice: int, entry: TokenLogprob) -> None:
        if self._logprobs is not None:
            self._logprobs[part, choice].add(entry)

    def _on_prompt(self, part: int, entry: TokenLogprob | None) -> None:
        at = self._num_seen[part]
        self._num_seen[part] += 1
        if self._request.prompt_logprobs is not None:
            self._prompt[part].append(prompt_logprob(entry, self._request.prompt_logprobs))
        if self._echo is not None and self._logprobs is not None:
            token = self._job.prompts[part][at]
            shown = _shown(self._job.text.tokenizer, [token])[0]
            for choice in range(self._job.params.n):
                self._logprobs[part, choice].add(entry, shown)

    def _choice(self, gathered: Gathered, part: int, c: int) -> CompletionChoice:
        job, request = self._job, self._request
        choice = gathered.choices[part, c]
        echo = "" if self._echo is None else self._echo[part]
        logprobs = None if self._logprobs is None else self._logprobs[part, c].take()
        with_ids = bool(request.return_token_ids)
        with_prompt = request.prompt_logprobs is not None
        items = b"[" + b",".join(self._prompt[part]) + b"]"
        return CompletionChoice(
            index=part * job.params.n + c,
            text=echo + choice.text,
            logprobs=None if logprobs is None else msgspec.Raw(logprobs),
            finish_reason=choice.finish_reason,
            stop_reason=choice.stop_reason,
            seed=mix64(job.params.seed or 0, c),
            token_ids=choice.token_ids if with_ids else msgspec.UNSET,
            prompt_token_ids=job.prompts[part] if with_ids else msgspec.UNSET,
            prompt_logprobs=msgspec.Raw(items) if with_prompt else msgspec.UNSET,
        )
