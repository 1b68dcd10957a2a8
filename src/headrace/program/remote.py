"""Programs on a server, over its HTTP API."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import msgspec

from headrace.engine.base import DEFAULT_OPTIONS, RequestOptions
from headrace.engine.sampling import SamplingParams
from headrace.errors import HeadraceError, RequestError
from headrace.kv.radix.base import DEFAULT_RETENTION
from headrace.program.base import SESSION_HEADER, Counts, Generated, Message, Scored
from headrace.program.wire import HttpClient, Response
from headrace.urls import parse_url

T = TypeVar("T")

# Of one request: limits of the API on prompts and tails, and on values.
MAX_PROMPTS = 64
MAX_TAILS = 1024
MAX_IDS = 100_000
MAX_RETRIES = 7
MAX_RETRY_S = 30.0
# How long the end of a session waits for hints that are on their way.
HINT_S = 1.0


class _Details(msgspec.Struct):
    cached_tokens: int = 0


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Logprobs(msgspec.Struct):
    token_logprobs: list[float | None]


class _PromptLogprob(msgspec.Struct):
    logprob: float


class _Choice(msgspec.Struct):
    text: str = ""
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] = []
    logprobs: _Logprobs | None = None
    prompt_logprobs: list[dict[str, _PromptLogprob] | None] = []


class _Completion(msgspec.Struct):
    choices: list[_Choice]
    usage: _Usage

    @property
    def counts(self) -> Counts:
        details = self.usage.prompt_tokens_details or _Details()
        return Counts(self.usage.prompt_tokens, details.cached_tokens, self.usage.completion_tokens)


class _Tokens(msgspec.Struct):
    tokens: list[int]


class _Text(msgspec.Struct):
    prompt: str


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


class _Error(msgspec.Struct):
    message: str
    param: str | None = None
    code: str | None = None


class _ErrorBody(msgspec.Struct):
    error: _Error


class RemoteRuntime:
    """Implements base.Runtime over a server. An event loop of its own, in a thread, does the I/O.

    `options`: of all requests; the default ones are not sent, as other servers do not know them.
    Raises HeadraceError for a URL that is none.
    """

    def __init__(
        self,
        url: str,
        session_id: str,
        *,
        model: str | None,
        api_key: str | None,
        options: RequestOptions = DEFAULT_OPTIONS,
    ) -> None:
        target = parse_url(url, api_key)
        self._extra = _extra_fields(options)
        self._salt = {"salt": options.salt} if options.salt else {}
        self._model = model
        self._finding: asyncio.Lock = asyncio.Lock()
        self._client = HttpClient(target, [(SESSION_HEADER, session_id)])
        self._loop = asyncio.new_event_loop()
        self._hints: set[asyncio.Task[Any]] = set()
        self._lock = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._loop.run_forever, name="remote", daemon=True)
        self._thread.start()

    # ---- base.Runtime ----

    def encode(self, texts: Sequence[str], *, add_special: bool) -> Future[list[list[int]]]:
        return self._start(self._encode(texts, add_special))

    def decode(self, ids: Sequence[int]) -> Future[str]:
        return self._start(self._decode(ids))

    def render(self, messages: Sequence[Message]) -> Future[list[int]]:
        return self._start(self._tokenize({"messages": messages}))

    def generate(self, ids: Sequence[int], params: SamplingParams) -> Future[Generated]:
        return self._start(self._generate(ids, params))

    def score(self, prefix: Sequence[int], tails: Sequence[Sequence[int]]) -> list[Future[Scored]]:
        longest = max(map(len, tails), default=0)
        at_once = max(1, min(MAX_PROMPTS, MAX_IDS // (len(prefix) + longest)))
        parts = [tails[i : i + at_once] for i in range(0, len(tails), at_once)]
        return [self._start(self._score(prefix, part)) for part in parts]

    def abandon(self, prefix: Sequence[int], tails: Sequence[Sequence[int]]) -> None:
        for part in _parts(tails, MAX_IDS - len(prefix)):
            self._start(self._hint({"prefix": prefix, "tails": part, **self._salt}))

    def close(self) -> None:
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # ---- on the loop ----

    def _start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        with self._lock:
            if not self._is_closed:
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        work.close()
        failed: Future[T] = Future()
        failed.set_exception(HeadraceError("The session is closed."))
        return failed

    async def _stop(self) -> None:
        if self._hints:
            await asyncio.wait(self._hints, timeout=HINT_S)
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._client.close()
        await asyncio.sleep(0)  # the transports take their leave

    async def _encode(self, texts: Sequence[str], add_special: bool) -> list[list[int]]:
        asked = [self._tokenize({"prompt": t, "add_special_tokens": add_special}) for t in texts]
        return list(await asyncio.gather(*asked))

    async def _tokenize(self, body: dict[str, Any]) -> list[int]:
        return (await self._post("/tokenize", body, _Tokens)).tokens

    async def _decode(self, ids: Sequence[int]) -> str:
        return (await self._post("/detokenize", {"tokens": ids}, _Text)).prompt

    async def _generate(self, ids: Sequence[int], params: SamplingParams) -> Generated:
        fields = {k: v for k, v in msgspec.structs.asdict(params).items() if v is not None}
        body = {**fields, "prompt": ids, "return_token_ids": True, **self._extra}
        done = await self._post("/v1/completions", body, _Completion)
        if not done.choices:
            raise HeadraceError("The server's answer has no choice.")
        choice = done.choices[0]
        logprobs = None if choice.logprobs is None else choice.logprobs.token_logprobs
        return Generated(
            choice.text,
            tuple(choice.token_ids),
            choice.finish_reason or "",
            choice.stop_reason,
            None if logprobs is None else tuple(value or 0.0 for value in logprobs),
            done.counts,
        )

    async def _score(self, prefix: Sequence[int], tails: Sequence[Sequence[int]]) -> Scored:
        body = {
            "prompt": [[*prefix, *tail] for tail in tails],
            "max_tokens": 0,
            "prompt_logprobs": 0,
            "prompt_logprobs_from": len(prefix),
            **self._extra,
        }
        done = await self._post("/v1/completions", body, _Completion)
        try:
            pairs = zip(tails, done.choices, strict=True)
            logprobs = tuple(_tail_logprobs(tail, choice) for tail, choice in pairs)
        except (KeyError, ValueError):
            raise HeadraceError(
                "The server's answer has no log-probabilities of what was asked for."
            ) from None
        return Scored(logprobs, done.counts)

    async def _hint(self, body: dict[str, Any]) -> None:
        """Tell what is abandoned, without a second try."""
        task = asyncio.current_task()
        assert task is not None
        self._hints.add(task)
        try:
            data = msgspec.json.encode({"model": await self._find_model(), **body})
            await self._client.request("POST", "/v1/cache/abandon", data)
        finally:
            self._hints.discard(task)

    # ---- HTTP ----

    async def _post(self, path: str, body: dict[str, Any], kind: type[T]) -> T:
        """The answer as a `kind`. Raises RequestError for what the server refused."""
        model = await self._find_model()
        data = msgspec.json.encode({"model": model, **body})
        return await self._ask("POST", path, data, kind)

    async def _find_model(self) -> str:
        async with self._finding:
            if self._model is None:
                found = (await self._ask("GET", "/v1/models", b"", _Models)).data
                if len(found) != 1:
                    names = ", ".join(model.id for model in found) or "none"
                    raise HeadraceError(f"Say which model of the server to use; it has: {names}.")
                self._model = found[0].id
            return self._model

    async def _ask(self, method: str, path: str, data: bytes, kind: type[T]) -> T:
        response = await self._client.request(method, path, data)
        for _ in range(MAX_RETRIES):
            wait_s = _retry_after_s(response)
            if wait_s is None:
                break
            await asyncio.sleep(wait_s)
            response = await self._client.request(method, path, data)
        if response.status != 200:
            raise _refusal(response)
        try:
            return msgspec.json.decode(response.body, type=kind)
        except msgspec.DecodeError as error:
            raise HeadraceError(f"The server's answer to {path} is odd: {error}.") from None


def _extra_fields(options: RequestOptions) -> dict[str, Any]:
    """What a request says of its place in the queue and of the cache, if it is not the default."""
    keep = options.retention
    cache = {"ttl": keep.ttl_s, "salt": options.salt or None}
    if keep.priority != DEFAULT_RETENTION.priority:
        cache["priority"] = keep.priority
    fields: dict[str, Any] = {"priority": options.priority} if options.priority else {}
    said = {name: value for name, value in cache.items() if value is not None}
    return {**fields, "cache": said} if said else fields


def _parts(tails: Sequence[Sequence[int]], most: int) -> Iterator[list[Sequence[int]]]:
    """Some tails at a time, of so many ids together, or one; a server reads no more at once."""
    part: list[Sequence[int]] = []
    num_ids = 0
    for tail in tails:
        if part and (num_ids + len(tail) > most or len(part) == MAX_TAILS):
            yield part
            part, num_ids = [], 0
        part.append(tail)
        num_ids += len(tail)
    if part:
        yield part


def _tail_logprobs(tail: Sequence[int], choice: _Choice) -> tuple[float, ...]:
    """Of the last tokens: another server may give those of the prefix, too. Raises KeyError or
    ValueError for what is no answer."""
    entries = choice.prompt_logprobs[-len(tail) :]
    pairs = zip(tail, entries, strict=True)
    return tuple((entry or {})[str(token)].logprob for token, entry in pairs)


def _retry_after_s(response: Response) -> float | None:
    """Seconds after which the server wants to be asked again, or None if it does not."""
    value = response.headers.get("retry-after", "")
    if response.status not in (429, 503) or not value.isdecimal():
        return None
    return min(float(value), MAX_RETRY_S)


def _refusal(response: Response) -> RequestError:
    try:
        error = msgspec.json.decode(response.body, type=_ErrorBody).error
    except msgspec.DecodeError:
        error = _Error(f"The server answered with status {response.status}.")
    return RequestError(error.message, param=error.param, code=error.code, status=response.status)
