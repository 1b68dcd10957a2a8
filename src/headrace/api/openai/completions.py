"""POST /v1/completions."""

from __future__ import annotations

import msgspec

from headrace.api.exchange import JSON_TYPE, Exchange
from headrace.api.openai.chunks import CompletionChunks
from headrace.api.openai.compact import EntryBudget
from headrace.api.openai.gather import Gathered
from headrace.api.openai.generate import Job, prepare
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

_decoder = msgspec.json.Decoder(CompletionRequest)


async def completions(exchange: Exchange) -> None:
    """Continue one prompt or several."""
    await exchange.read_body()
    await exchange.until_gone(_answer(exchange))


async def _answer(exchange: Exchange) -> None:
    request, job = await prepare(
        exchange, _decoder, prefix="cmpl", make_params=completion_params, encode=_encode
    )
    pool = exchange.gateway.pool
    echo = None
    if request.echo:
        echo = await pool.run(lambda: _echo_texts(job, request))
        request.prompt = ""
    whole = None if request.stream else _Whole(job, request, echo)
    stream = job.service.submit(job.prompts, job.params, job.options)
    try:
        if whole is None:
            encoder = _chunks(job, request, echo)
            await stream_response(exchange, stream, encoder, job.headers)
        else:
            gathered = await whole.gather(stream)
            data = await pool.run(
                lambda: msgspec.json.encode(whole.response(gathered)), is_large=gathered.is_large
            )
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


def _firsts(job: Job) -> list[tuple[str, bytes]]:
    """Text and bytes of the first token of each prompt, which has no logprob."""
    tokenizer = job.text.tokenizer
    return [(tokenizer.token_text(ids[0]), tokenizer.decode_bytes(ids[0])) for ids in job.prompts]


def _chunks(job: Job, request: CompletionRequest, echo: list[str] | None) -> CompletionChunks:
    return CompletionChunks(
        job.shape(request),
        echo=echo,
        firsts=_firsts(job),
        num_logprobs=request.logprobs,
    )


class _Whole:
    """A response that is not streamed."""

    def __init__(self, job: Job, request: CompletionRequest, echo: list[str] | None) -> None:
        self._job = job
        self._request = request
        self._echo = echo
        self._firsts = _firsts(job)
        self._budget = EntryBudget()
        if job.params.prompt_logprobs is not None:
            # What is known before anything runs is refused before anything runs.
            first = job.params.prompt_logprobs_from
            num_tokens = sum(max(0, len(ids) - first) for ids in job.prompts)
            num_kept = num_tokens * (1 + job.params.prompt_logprobs)
            EntryBudget().take(num_kept)
            if echo is not None:
                # Choices share what is kept of the prompt, but each of them shows it.
                self._budget.take((job.params.n - 1) * num_kept)

    async def gather(self, stream: RequestStream) -> Gathered:
        """Read the stream to its end."""
        job = self._job
        gathered = Gathered(len(job.prompts), job.params.n, job.text.tokenizer, self._budget)
        await gathered.collect(stream)
        return gathered

    def response(self, gathered: Gathered) -> CompletionResponse:
        """The response, which may take long to make."""
        job = self._job
        done = [gathered.done[p] for p in sorted(gathered.done)]
        return CompletionResponse(
            id=job.response_id,
            created=job.created,
            model=job.model,
            system_fingerprint=job.ready.numerics_id,
            choices=[self._choice(gathered, part, c) for part, c in gathered.choices],
            usage=usage_of(done),
            timings=timings_of(done) if self._request.timings else msgspec.UNSET,
        )

    def _logprobs(self, gathered: Gathered, part: int, c: int) -> msgspec.Raw | None:
        if self._request.logprobs is None:
            return None
        logprobs = CompletionLogprobs(self._request.logprobs)
        for entry in gathered.prompts[part] if self._echo is not None else ():
            logprobs.add(entry, self._firsts[part])
        for entry in gathered.choices[part, c].logprobs:
            logprobs.add(entry)
        return msgspec.Raw(logprobs.take())

    def _choice(self, gathered: Gathered, part: int, c: int) -> CompletionChoice:
        job, request = self._job, self._request
        choice = gathered.choices[part, c]
        echo = "" if self._echo is None else self._echo[part]
        with_ids = bool(request.return_token_ids)
        num_prompt = request.prompt_logprobs
        prompt: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
        if num_prompt is not None:
            items = (prompt_logprob(entry, num_prompt) for entry in gathered.prompts[part])
            prompt = msgspec.Raw(b"[" + b",".join(items) + b"]")
        return CompletionChoice(
            index=part * job.params.n + c,
            text=echo + choice.text,
            logprobs=self._logprobs(gathered, part, c),
            finish_reason=choice.finish_reason,
            stop_reason=choice.stop_reason,
            seed=mix64(job.params.seed or 0, c),
            token_ids=choice.token_ids.tolist() if with_ids else msgspec.UNSET,
            prompt_token_ids=job.prompts[part] if with_ids else msgspec.UNSET,
            prompt_logprobs=prompt,
        )
