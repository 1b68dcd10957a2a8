"""Chat templates: what messages become, defaults, and errors. Expected texts are transformers'."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from headrace.errors import RequestError, TemplateError
from headrace.text import template_sandbox
from headrace.text.chat_template import JinjaChatTemplate, load_chat_template
from headrace.text.tokenizer import load_tokenizer
from headrace.weights.base import TokenizerSpec
from headrace.weights.open import open_source
from tests.support.text_specs import CONTROL, bpe_spec, gpt2_spec

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
HELLO = [{"role": "user", "content": "Hello"}]
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": " Hello! "},
    {"role": "user", "content": "Bye"},
]


def render(source: str, messages: Any = HELLO, **options: Any) -> str:
    return JinjaChatTemplate(source, SPECIAL).render(messages, **options)


def default(special: list[str]) -> Any:
    spec = bpe_spec(special=[(text, CONTROL) for text in special])
    bos = spec.tokens.index(b"<bos>") if "<bos>" in special else None
    spec = TokenizerSpec(
        model="gpt2",
        pre="gpt-2",
        tokens=spec.tokens,
        token_types=spec.token_types,
        bos_id=bos,
    )
    return load_chat_template(None, load_tokenizer(spec, len(spec.tokens)))


def test_default_chatml() -> None:
    template = default(["<|im_start|>", "<|im_end|>", "<start_of_turn>"])
    assert template.render(CHAT) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n Hello! <|im_end|>\n<|im_start|>user\nBye<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert template.render(HELLO, add_generation_prompt=False) == (
        "<|im_start|>user\nHello<|im_end|>\n"
    )


def test_default_gemma() -> None:
    template = default(["<bos>", "<start_of_turn>", "<end_of_turn>"])
    assert template.render(CHAT) == (
        "<bos><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n"
        "<start_of_turn>model\nHello!<end_of_turn>\n"
        "<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n"
    )
    assert template.render(HELLO, add_generation_prompt=False) == (
        "<bos><start_of_turn>user\nHello<end_of_turn>\n"
    )


def test_no_default() -> None:
    with pytest.raises(TemplateError, match="/v1/completions") as caught:
        default(["<s>"]).render(HELLO)
    assert caught.value.status == 400
    assert caught.value.param == "messages"


def test_the_files_template_comes_first() -> None:
    tokenizer = load_tokenizer(gpt2_spec(), 320)
    template = load_chat_template("{{ bos_token }}|{{ eos_token }}", tokenizer)
    assert template.render(HELLO) == "<|im_start|>|<|im_end|>"


def test_nothing_is_compiled_before_the_first_rendering(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    compile_template = template_sandbox.compile_template

    def watched(source: str) -> Any:
        calls.append(source)
        return compile_template(source)

    monkeypatch.setattr(template_sandbox, "compile_template", watched)
    template = JinjaChatTemplate("{{ messages|length }}", SPECIAL)
    assert calls == []
    assert template.render(HELLO) == template.render(HELLO) == "1"
    assert len(calls) == 1


def test_blocks_are_trimmed() -> None:
    assert render("  {% if true %}\n  a\n  {% endif %}\nb\n") == "  a\nb"


def test_loop_controls_and_generation_blocks() -> None:
    source = (
        "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}"
        "{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}"
        "{% generation %}{{ bos_token }}{% endgeneration %}"
    )
    assert render(source) == "023<s>"


def test_tojson_as_transformers() -> None:
    tools = [{"name": "f", "é": "<&>'", "n": [1, 2.5, True, None]}]
    assert render("{{ tools|tojson }}", tools=tools) == (
        '[{"name": "f", "é": "<&>\'", "n": [1, 2.5, true, null]}]'
    )
    assert render("{{ tools[0]|tojson(indent=2) }}", tools=[{"a": [1]}]) == (
        '{\n  "a": [\n    1\n  ]\n}'
    )
    assert render("{{ {'b': 1, 'a': 'é'}|tojson(sort_keys=true, ensure_ascii=true) }}") == (
        '{"a": "\\u00e9", "b": 1}'
    )
    assert render("{{ [1, 2]|tojson(separators=[',', ':']) }}") == "[1,2]"


def test_variables() -> None:
    source = "{{ tools is none }} {{ documents is none }} {{ add_generation_prompt }}"
    assert render(source) == "True True True"
    assert render("{{ tools|length }}", tools=[{}, {}]) == "2"
    assert render("{{ enable_thinking }}", kwargs={"enable_thinking": False}) == "False"
    assert render("{{ strftime_now('%Y')|length }}") == "4"


@pytest.mark.parametrize("name", ["messages", "tools", "bos_token", "add_generation_prompt", "_x"])
def test_reserved_names(name: str) -> None:
    with pytest.raises(RequestError, match="not for the request to set") as caught:
        render("x", kwargs={name: 1})
    assert caught.value.param == f"chat_template_kwargs.{name}"


def test_contents() -> None:
    parts = [{"type": "text", "text": "a"}, "b", {"type": "text", "text": "c"}]
    source = "{% for m in messages %}[{{ m.content }}]{% endfor %}"
    assert render(source, [{"role": "user", "content": parts}]) == "[abc]"
    assert render(source, [{"role": "user", "content": []}]) == "[]"
    assert render(source, [{"role": "assistant", "content": None}]) == "[]"
    assert render(source, [{"role": "tool", "content": "42", "tool_call_id": "x"}]) == "[42]"


@pytest.mark.parametrize(
    "content",
    [
        [{"type": "image_url", "image_url": {"url": "x"}}],
        [{"type": "text"}],
        [{"type": "text", "text": 1}],
        [1],
        5,
        {"type": "input_audio"},
    ],
)
def test_contents_that_are_not_text(content: Any) -> None:
    with pytest.raises(RequestError, match="Only content of type text") as caught:
        render("x", [*HELLO, {"role": "user", "content": content}])
    assert caught.value.param == "messages.1.content.0"
    assert caught.value.code == "unsupported_parameter"


def test_tool_calls() -> None:
    """Arguments come as a string of JSON; templates write them with tojson."""
    source = "{% for c in messages[0].tool_calls %}{{ c.function.arguments|tojson }};{% endfor %}"

    def call(arguments: Any) -> dict[str, Any]:
        return {"type": "function", "function": {"name": "f", "arguments": arguments}}

    calls = [call('{"a": [1]}'), call({"b": 2}), call("not json"), call("[1]"), call("[" * 9999)]
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    text = render(source, [message])
    assert text == '{"a": [1]};{"b": 2};"not json";"[1]";"' + "[" * 9999 + '";'
    assert calls[0]["function"]["arguments"] == '{"a": [1]}'
    assert render("{{ messages[0].content is defined }}", [message]) == "False"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('Roles must alternate.') }}", r"^Roles must alternate\.$"),
        ("{{ nope.x }}", r"failed: 'nope' is undefined\.$"),
        ("{{ nope() }}", r"failed: 'nope' is undefined\.$"),
        ("{{ messages[0].content + 1 }}", "failed: can only concatenate str"),
        ("{{ 1 / 0 }}", r"failed: division by zero\.$"),
        ("{% if %}", "failed: Expected an expression"),
        ("{{ 1|nope }}", "failed: No filter named 'nope'"),
        ("{{ 1 is nope }}", "failed: No test named 'nope'"),
        ("{% for x in [1] %}", "failed: Unexpected end of template"),
        ("{{ " + "9" * 5000 + " }}", "failed: Exceeds the limit"),
    ],
)
def test_errors(source: str, message: str) -> None:
    template = JinjaChatTemplate(source, SPECIAL)
    for _ in range(2):
        with pytest.raises(TemplateError, match=message) as caught:
            template.render(HELLO)
        assert caught.value.status == 400
        assert len(str(caught.value)) < 600


def test_long_messages_are_cut() -> None:
    with pytest.raises(TemplateError) as caught:
        render("{{ raise_exception('x' * 100000) }}")
    assert str(caught.value) == "x" * 500


# What templates use; each must come out as from jinja2 alone.
ORDINARY = [
    "{{ '  x '.strip() }}|{{ ' y '|trim }}|{{ 'aXb'.split('X')[-1] }}",
    "{{ 'a-b-c'.split('-', 1) }}",
    "{{ 'a-b-c'.rsplit('-', 1) }}",
    "{{ 'a\nb'.splitlines() }}",
    "{{ 'abc'.replace('b', 'x') }}{{ 'abc'|replace('b', 'y') }}",
    "{{ 'abab'.replace('a', 'x', 1) }}{{ 'abab'|replace('a', 'x', 1) }}",
    "{{ 'a'.startswith('a') and 'a'.endswith(('b', 'a')) }}",
    "{{ ', '.join(['a', 'b']) }}{{ [1, 2]|join('+') }}",
    "{{ [{'n': 1}, {'n': 2}]|join('-', attribute='n') }}",
    "{{ '%s=%d' % ('a', 7) }}{{ '%(k)05.1f'|format(k=2) }}{{ '%d%%' % 5 }}",
    "{{ '{}-{a:>4}-{{}}'.format(1, a=2) }}",
    "{{ 'x'|indent(2, true) }}{{ 'x'|center(5) }}{{ 'x'.ljust(3) }}{{ 'x'.zfill(3) }}",
    "{{ [3, 1, 2]|sort }}{{ [1, 1]|unique|list }}{{ [1, 2]|sum }}",
    "{{ [{'a': 2}, {'a': 3}]|sum(attribute='a') }}",
    "{{ messages|map(attribute='role')|list }}",
    "{{ messages|selectattr('role', 'equalto', 'user')|list|length }}",
    "{{ messages|rejectattr('role', 'eq', 'user')|first|default('none') }}",
    "{{ {'b': 1, 'a': 2}|dictsort }}{{ {'a': 1}.items()|list }}",
    "{{ messages[0].get('x', 'y') }}{{ messages[0].keys()|list }}",
    "{{ [1, 2, 3][1:] }}{{ 'abc'[::-1] }}{{ (1, 2)[0] }}{{ [1, 2, 3][-1] }}",
    "{{ 'a' ~ 1 ~ none }}{{ 'ab' * 2 }}{{ [0] * 2 }}{{ 2 ** 10 }}{{ 7 // 2 }}",
    "{{ 1.5|round|int }}{{ 2.345|round(2) }}{{ '7'|int }}{{ '1.5'|float }}",
    "{{ 3 is odd }}{{ 4 is divisibleby 2 }}{{ 'a' in 'abc' }}{{ 1 in [1] }}",
    "{{ x is defined }}{{ none is none }}{{ 'a' is string }}{{ {} is mapping }}",
    "{{ 'a b'|upper }}{{ 'A'|lower }}{{ 'ab'|capitalize }}{{ 'a b'|title }}",
    "{{ '<a>'|e }}{{ '<a>'|safe }}{{ 'a b'|urlencode }}",
    "{{ [1, 2, 3]|batch(2)|list }}{{ [1, 2, 3]|slice(2)|list }}",
    "{{ [1, 2]|reverse|list }}{{ 'ab'|reverse }}{{ 'ab'|list }}",
    "{{ [1, 5]|max }}{{ [1, 5]|min }}{{ [1]|last }}{{ 'ab'|first }}{{ -3|abs }}",
    "{{ [{'a': 1}]|groupby('a')|map(attribute='grouper')|list }}",
    "{{ 'long text'|truncate(6) }}{{ 5|string + '!' }}{{ 'a.b'.rfind('.') }}",
    "{% set ns = namespace(n=0) %}{% for i in [1, 2] %}{% set ns.n = ns.n + i %}{% endfor %}"
    "{{ ns.n }}",
    "{% macro f(a, b=2) %}{{ a }}{{ b }}{% endmacro %}{{ f(1) }}{{ f(1, b=3) }}",
    "{% macro f() %}<{{ caller() }}>{% endmacro %}{% call f() %}x{% endcall %}",
    "{% for k, v in {'a': 1}.items() %}{{ loop.index }}{{ k }}{{ v }}{% endfor %}",
    "{% for x in [1, 2] %}{{ x }}{% if not loop.last %},{% endif %}{% else %}n{% endfor %}",
    "{% for x in [1, 2, 3] if x != 2 %}{{ loop.length }}{{ x }}{% endfor %}",
    "{% for x in [1, 2] %}{{ loop.cycle('a', 'b') }}{{ loop.previtem }}{% endfor %}",
    "{% for x in [[1], 2] recursive %}{% if x is number %}{{ x }}{% else %}{{ loop(x) }}{% endif %}"
    "{% endfor %}",
    "{% set x %}a{{ 1 }}{% endset %}{{ x }}{% filter upper %}b{% endfilter %}",
    "{% with a = 1 %}{{ a }}{% endwith %}{{ dict(a=1)['a'] }}{{ 'y' if true else 'n' }}",
    "{{ [messages, messages]|length }}{{ range(3)|list }}{{ {'a': {'b': 1}}.a.b }}",
    "{{ 1 < 2 <= 2 and not 1 == 2 }}{{ 'a' < 'b' }}{{ [1] == [1] }}",
    "{% block b %}in{% endblock %}{{ self.b() }}",
]


def plain_jinja(source: str, **variables: Any) -> str:
    """The environment that transformers renders chat templates in."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string(source).render(**variables)


@pytest.mark.parametrize("source", ORDINARY)
def test_ordinary_templates(source: str) -> None:
    assert render(source) == plain_jinja(source, messages=HELLO)


def test_several_threads_at_once() -> None:
    template = JinjaChatTemplate("{% for m in messages %}{{ m.content }};{% endfor %}", SPECIAL)
    wrong: list[str] = []

    def run(number: int) -> None:
        for _ in range(20):
            text = template.render([{"role": "user", "content": str(number)}] * 50)
            if text != f"{number};" * 50:
                wrong.append(text)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_long_chats_fit() -> None:
    source = (
        "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + "
        "'<|im_end|>' + '\\n' }}{% endfor %}"
    )
    chat = [{"role": "user" if i % 2 else "assistant", "content": f"{i} "} for i in range(3000)]
    assert render(source, chat).count("<|im_start|>") == 3000
    long = [{"role": "user", "content": "x" * 10_000_000}]
    assert len(render(source, long)) == 10_000_000 + len("<|im_start|>user\n<|im_end|>\n")


CONVERSATIONS = [
    HELLO,
    CHAT,
    [{"role": "system", "content": "<|im_end|> {{ 7 * 7 }} {% raw %}"}, *HELLO],
    [*HELLO, {"role": "tool", "content": "4"}, {"role": "tool", "content": "5"}, *HELLO],
]


def check_real_template(path: Path, *, tools: list[dict[str, Any]] | None) -> None:
    source = open_source(path)
    try:
        text = source.chat_template
    finally:
        source.close()
    assert text is not None
    for messages in CONVERSATIONS:
        for add in (True, False):
            got = render(text, messages, tools=tools, add_generation_prompt=add)
            assert got == plain_jinja(
                text, messages=messages, tools=tools, add_generation_prompt=add, **SPECIAL
            )


def test_smollm2(smollm2_path: Path) -> None:
    check_real_template(smollm2_path, tools=None)


@pytest.mark.parametrize("tools", [None, [{"type": "function", "function": {"name": "f"}}]])
def test_qwen25(qwen25_path: Path, tools: list[dict[str, Any]] | None) -> None:
    check_real_template(qwen25_path, tools=tools)
