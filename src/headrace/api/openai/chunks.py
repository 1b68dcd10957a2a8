"""Server-sent events of both OpenAI dialects, from byte templates: the hot path of every token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from headrace.api.openai.responses import (
    CompletionLogprobs,
    PromptTokensDetails,
    Usage,
    chat_logprob,
    chat_logprobs,
    timings_of,
    usage_of,
)
from headrace.engine.sampling import mix64
from headrace.gateway.streams import StreamEvent
from headrace.worker.frames import Delta, Finished, PromptLogprobs

DONE = b"data: [DONE]\n\n"
COMMENT = b": keep-alive\n\n"
_encode = msgspec.json.encode


class StreamShape:
    """What one streamed response looks like. `prompts`: ids of each prompt."""

    def __init__(
        self,
        *,
        response_id: str,
        created: int,
        model: str,
        fingerprint: str,
        prompts: Sequence[Sequence[int]],
        num_choices: int,
        seed: int,
        include_usage: bool = False,
        continuous_usage: bool = False,
        with_timings: bool = False,
        with_token_ids: bool = False,
    ) -> None:
        self.response_id = response_id
        self.created = created
        self.model = model
        self.fingerprint = fingerprint
        self.prompts = prompts
        self.num_choices = num_choices
        self.seed = seed
        self.include_usage = include_usage or continuous_usage
        self.continuous_usage = continuous_usage
        self.with_timings = with_timings
        self.with_token_ids = with_token_ids

    def head(self, kind: str) -> bytes:
        """The start of every chunk, up to the content of `choices`."""
        start = b'data: {"id":%b,"object":%b,"created":%d,"model":%b,"system_fingerprint":%b,' % (
            _encode(self.response_id),
            _encode(kind),
            self.created,
            _encode(self.model),
            _encode(self.fingerprint),
        )
        return start + b'"choices":['


class ChunkEncoder(Protocol):
    """Turns a stream's events into SSE bytes."""

    def encode(self, part: int, event: StreamEvent) -> bytes:
        """Bytes to send for an event (maybe none)."""
        ...

    def end(self) -> bytes:
        """The last chunks, `[DONE]` included."""
        ...


class _Tail:
    """Ends of chunks: usage so far when asked for, and the last chunk."""

    def __init__(self, shape: StreamShape, head: bytes) -> None:
        self._shape = shape
        self._head = head
        self._num_prompt = sum(map(len, shape.prompts))
        self._num_output: dict[tuple[int, int], int] = {}
        self._num_cached: dict[int, int] = {}
        self._done: list[Finished] = []
        self._plain = b',"usage":null}\n\n' if shape.include_usage else b"}\n\n"

    def note(self, part: int, event: Delta) -> None:
        self._num_output[part, event.choice] = event.num_output
        self._num_cached[part] = event.num_cached

    def finished(self, event: Finished) -> None:
        self._done.append(event)

    def close(self) -> bytes:
        """What follows `"choices":[...]` in an ordinary chunk."""
        if not self._shape.continuous_usage:
            return self._plain
        output = sum(self._num_output.values())
        cached = PromptTokensDetails(sum(self._num_cached.values()))
        usage = Usage(self._num_prompt, output, self._num_prompt + output, cached)
        return b',"usage":' + _encode(usage) + b"}\n\n"

    def end(self) -> bytes:
        """The last chunk with usage and timings, if any, and `[DONE]`."""
        extra = b""
        if self._shape.include_usage:
            extra += b',"usage":' + _encode(usage_of(self._done))
        if self._shape.with_timings:
            extra += b',"timings":' + _encode(timings_of(self._done))
        if not extra:
            return DONE
        return self._head + b"]" + extra + b"}\n\n" + DONE


class ChatChunks:
    """Chunks of a chat: the role first, one per delta, one that finishes each choice."""

    def __init__(self, shape: StreamShape) -> None:
        head = shape.head("chat.completion.chunk")
        self._tail = _Tail(shape, head)
        self._shape = shape
        indices = range(shape.num_choices)
        self._role = [
            head + b'{"index":%d,"delta":{"role":"assistant","content":null},' % i for i in indices
        ]
        self._content = [head + b'{"index":%d,"delta":{"content":' % i for i in indices]
        self._finish = [head + b'{"index":%d,"delta":{},"logprobs":null,' % i for i in indices]
        self._seeds = [mix64(shape.seed, i) for i in indices]
        self._has_role = [False] * shape.num_choices

    def encode(self, part: int, event: StreamEvent) -> bytes:
        """See ChunkEncoder."""
        if isinstance(event, Finished):
            self._tail.finished(event)
            return b""
        if not isinstance(event, Delta):
            return b""
        self._tail.note(part, event)
        close = b"]" + self._tail.close()
        i = event.choice
        out = []
        if not self._has_role[i]:
            self._has_role[i] = True
            out += [self._role[i], b'"logprobs":null,"finish_reason":null}', close]
        if event.text or event.logprobs or (self._shape.with_token_ids and event.token_ids):
            out += [self._content[i], _encode(event.text), b"}", self._logprobs(event)]
            out += [b',"finish_reason":null', self._token_ids(event), b"}", close]
        if event.finish_reason is not None:
            out += [self._finish[i], _ending(event, self._seeds[i]), b"}", close]
        return b"".join(out)

    @staticmethod
    def _logprobs(event: Delta) -> bytes:
        if event.logprobs is None:
            return b',"logprobs":null'
        return b',"logprobs":' + chat_logprobs([chat_logprob(entry) for entry in event.logprobs])

    def _token_ids(self, event: Delta) -> bytes:
        if not self._shape.with_token_ids:
            return b""
        return b',"token_ids":' + _encode(event.token_ids)

    def end(self) -> bytes:
        """See ChunkEncoder."""
        return self._tail.end()


class CompletionChunks:
    """text_completion chunks. `echo` holds the text of each prompt when it is to be sent first."""

    def __init__(
        self,
        shape: StreamShape,
        *,
        echo: Sequence[str] | None = None,
        firsts: Sequence[tuple[str, bytes]] = (),
        num_logprobs: int | None = None,
    ) -> None:
        head = shape.head("text_completion")
        self._tail = _Tail(shape, head)
        self._shape = shape
        total = shape.num_choices * len(shape.prompts)
        self._text = [head + b'{"index":%d,"text":' % i for i in range(total)]
        self._logprobs = None
        if num_logprobs is not None:
            self._logprobs = [CompletionLogprobs(num_logprobs) for _ in range(total)]
        self._echo = echo
        self._echoed = [echo is None] * total
        self._firsts = firsts

    def encode(self, part: int, event: StreamEvent) -> bytes:
        """See ChunkEncoder."""
        if isinstance(event, Finished):
            self._tail.finished(event)
            return b""
        if isinstance(event, PromptLogprobs):
            return self._prompt_chunks(part, event)
        if not isinstance(event, Delta):
            return b""
        self._tail.note(part, event)
        i = part * self._shape.num_choices + event.choice
        logprobs = None if self._logprobs is None else self._logprobs[i]
        text = event.text
        if not self._echoed[i]:
            text = self._take_echo(i, part) + text
        if logprobs is not None:
            for entry in event.logprobs or ():
                logprobs.add(entry)
        return self._chunk(i, event, text, logprobs)

    def _take_echo(self, i: int, part: int) -> str:
        """The prompt's text, once for each choice."""
        if self._echoed[i] or self._echo is None:
            return ""
        self._echoed[i] = True
        return self._echo[part]

    def _prompt_chunks(self, part: int, event: PromptLogprobs) -> bytes:
        """Log-probabilities of the prompt are sent as they come: of a long one they are too many to
        keep. The first chunk has all of its text."""
        if self._echo is None or self._logprobs is None:
            return b""
        out = []
        num = self._shape.num_choices
        for i in range(part * num, part * num + num):
            logprobs = self._logprobs[i]
            for entry in event.entries:
                logprobs.add(entry, self._firsts[part])
            out += [self._text[i], _encode(self._take_echo(i, part)), b',"logprobs":']
            out += [logprobs.take(), b',"finish_reason":null']
            out += [b',"token_ids":[]' if self._shape.with_token_ids else b"", b"}]"]
            out.append(self._tail.close())
        return b"".join(out)

    def _chunk(self, i: int, event: Delta, text: str, logprobs: CompletionLogprobs | None) -> bytes:
        ids = self._shape.with_token_ids
        ends = event.finish_reason is not None
        if not (text or ends or event.logprobs or (ids and event.token_ids)):
            return b""
        out = [self._text[i], _encode(text), b',"logprobs":']
        out.append(b"null" if logprobs is None else logprobs.take())
        out.append(b",")
        if ends:
            out.append(_ending(event, mix64(self._shape.seed, event.choice)))
        else:
            out.append(b'"finish_reason":null')
        if ids:
            out += [b',"token_ids":', _encode(event.token_ids)]
        out += [b"}]", self._tail.close()]
        return b"".join(out)

    def end(self) -> bytes:
        """See ChunkEncoder."""
        return self._tail.end()


def _ending(event: Delta, seed: int) -> bytes:
    """`finish_reason` and what else the last chunk of a choice says."""
    return b'"finish_reason":%b,"stop_reason":%b,"seed":%d' % (
        _encode(event.finish_reason),
        _encode(event.stop_reason),
        seed,
    )
