"""Commit: what one drawn token does to a choice. The first event wins: end of sequence or stop id,
stop string, length."""

from __future__ import annotations

from headrace.backends.base import RowResult
from headrace.engine.base import TokenLogprob
from headrace.engine.request import PendingText, SequenceState


def to_logprob(row: RowResult) -> TokenLogprob:
    """The engine's view of a row's logprobs."""
    return TokenLogprob(row.token, row.logprob, tuple(row.top))


def commit_token(seq: SequenceState, row: RowResult) -> PendingText:
    """Append the drawn token to the choice and say what may be sent.

    The token that ends a choice is part of its ids (and counts as output); the text of a stop id or
    end-of-sequence token is not part of its text. Stop strings are matched from min_tokens on.
    """
    request = seq.request
    params = request.params
    seq.tokens.append(row.token)
    pending = PendingText(token_ids=[row.token])
    if params.logprobs is not None:
        pending.logprobs.append(to_logprob(row))
    if row.token in request.stop_ids:
        _finish(seq, pending, "stop")
        if row.token in params.stop_token_ids:
            pending.stop_reason = row.token
        return pending
    text = seq.detokenizer.push(row.token)
    if seq.stop_matcher is not None and seq.num_output >= params.min_tokens:
        match = seq.stop_matcher.push(text)
        pending.text = match.text
        if match.stopped is not None:
            pending.finish_reason = "stop"
            pending.stop_reason = match.stopped
            return pending
    else:
        pending.text = text
    if len(seq.tokens) >= request.max_len:
        _finish(seq, pending, "length")
    return pending


def _finish(seq: SequenceState, pending: PendingText, reason: str) -> None:
    """End the choice: held-back text goes out, unless it completes a stop string."""
    pending.finish_reason = reason
    tail = seq.detokenizer.flush()
    if seq.stop_matcher is None:
        pending.text += tail
        return
    match = seq.stop_matcher.push(tail)
    pending.text += match.text
    if match.stopped is None:
        pending.text += seq.stop_matcher.flush()
    elif reason == "length":
        pending.finish_reason = "stop"
        pending.stop_reason = match.stopped
