"""`headrace run`: one prompt, one streamed answer."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

from headrace.cli import options
from headrace.cli.console import say, usage_error
from headrace.cli.params import Arg, Opt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.engine.llm import LLM, StreamChunk
    from headrace.engine.sampling import SamplingParams


def run(
    model: options.Model,
    prompt: Annotated[
        str | None,
        Arg("PROMPT", "The prompt; - (or nothing, in a pipe) reads stdin."),
    ] = None,
    system: options.System = None,
    raw: Annotated[
        bool, Opt("--raw", "Complete the prompt as it is, without chat template.")
    ] = False,
    max_tokens: options.MaxTokens = None,
    temperature: options.Temperature = 0.7,
    top_p: options.TopP = 1.0,
    top_k: options.TopK = 0,
    min_p: options.MinP = 0.0,
    seed: options.Seed = None,
    stop: options.Stop = None,
    threads: options.Threads = None,
    activations: options.ActivationsOption = options.Activations.QUANTIZED,
    kv_cache_memory: options.KvCacheMemory = None,
    max_model_len: options.MaxModelLen = None,
    kv_dtype: options.KvDtypeOption = options.KvDtype.FP16,
) -> None:
    """Stream the answer to one prompt to stdout.

    Models with a chat template answer; base models complete the text.
    """
    from headrace.cli.session import open_llm
    from headrace.engine.sampling import SamplingParams

    text = _read_prompt(prompt)
    params = SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        seed=seed,
        stop=tuple(stop or ()),
    )
    with open_llm(
        model,
        threads=threads,
        activations=activations.value,
        kv_cache_bytes=kv_cache_memory,
        max_model_len=max_model_len,
        max_num_seqs=1,
        kv_dtype=kv_dtype.value,
    ) as llm:
        for chunk in _answer(llm, text, system, raw, params):
            sys.stdout.write(chunk.text)
            sys.stdout.flush()
    sys.stdout.write("\n")


def _read_prompt(prompt: str | None) -> str:
    if prompt is None and sys.stdin.isatty():
        usage_error("give a prompt, or use `headrace chat` to talk.")
    if prompt is None or prompt == "-":
        return sys.stdin.read().removesuffix("\n")
    return prompt


def _answer(
    llm: LLM, text: str, system: str | None, raw: bool, params: SamplingParams
) -> Iterator[StreamChunk]:
    if raw or not llm.has_chat_template:
        if system is not None:
            say("headrace: this is a plain completion; --system is ignored.")
        return llm.stream(text, params)
    messages = [{"role": "user", "content": text}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    return llm.chat_stream(messages, params)
