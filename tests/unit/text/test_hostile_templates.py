"""Templates that want the machine: each ends soon, small, and as a 400.

The bounds are the product's own (text/template_meter.py): processor time of the rendering thread,
read here with room for a slow machine, and memory, read as the growth of the process.
"""

from __future__ import annotations

import resource
import threading
import time

import pytest

from headrace.errors import TemplateError
from headrace.text import template_meter
from headrace.text.chat_template import JinjaChatTemplate

MESSAGES = [{"role": "user", "content": "hi"}]
MAX_CPU_S = 2.5
MAX_GROWTH_KIB = 512 * 1024

BIG = "{% set s = 'ab' * 4000000 %}"
ALSO_BIG = "{% set t = 'ab' * 3999999 + 'xy' %}"


def grow(step: str, start: str = "'ab'") -> str:
    return (
        f"{{% set ns = namespace(x={start}) %}}{{% for i in range(99) %}}"
        f"{step}{{% endfor %}}{{{{ ns.x }}}}"
    )


def many(expression: str, count: int = 2000) -> str:
    """The same work over and over inside one statement, where no loop could look at the clock."""
    return f"{BIG}{ALSO_BIG}{{% set q = [{','.join([expression] * count)}] %}}"


def body(text: str) -> str:
    return text.replace("DATA", "y" * 60_000)


LOOP = "{% for i in range(100000) %}"
ENDLESS = {
    "nested loops": LOOP + LOOP + "{% endfor %}{% endfor %}",
    "loops that filter everything": LOOP
    + "{% for j in range(100000) if false %}{% endfor %}{% endfor %}",
    "work in a generator": LOOP + "{{ range(100000)|map('string')|list|length }}{% endfor %}",
    "work in a selection": LOOP + "{{ range(100000)|select('odd')|list|length }}{% endfor %}",
    "lists": LOOP + "{% set x = range(100000)|list %}{% endfor %}",
    "macros that call twice": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}"
    "{% endmacro %}{{ f(60) }}",
    "loops that call twice": "{% for x in [1,2] recursive %}{% if loop.depth < 60 %}"
    "{{ loop([1,2]) }}{% endif %}{% endfor %}",
    "callers that call twice": "{% macro f() %}{{ caller() }}{{ caller() }}{% endmacro %}"
    + "{% call f() %}" * 40
    + "x"
    + "{% endcall %}" * 40,
    "arguments": "{% macro f() %}{{ varargs|length }}{% endmacro %}"
    + LOOP
    + "{{ f(*range(100000)) }}{% endfor %}",
    "comparisons": many("s == t"),
    "searches": many("'bb' in s"),
    "tests": many("'bb' is in s"),
    "counts": many("s.count('abb')"),
    "mapping cases": many("s.upper()"),
    "slices": many("s[1:]"),
    "sorting": many("([s] * 2)|sort"),
    "tests of equality": many("s is eq t"),
    "steps of loops": BIG + LOOP + "{{ loop.changed(s, s[1:]) }}{% endfor %}",
    "big numbers": "{% set a = 2 ** 2000 %}" + LOOP + LOOP + "{% set b = a * 3 %}"
    "{% endfor %}{% endfor %}",
}

TOO_BIG = {
    "range": "{% for i in range(10**9) %}x{% endfor %}",
    "text times number": "{{ 'x' * 10**9 }}",
    "number times text": "{{ 10**9 * 'x' }}",
    "list times number": "{{ ([0] * 10**9)|length }}",
    "safe text times number": "{{ ('<'|safe) * 10**9 }}",
    "in a condition": "{{ 'x' * 10**9 if true }}",
    "in a with": "{% with a = 'x' * 10**9 %}{% endwith %}",
    "doubling by +": grow("{% set ns.x = ns.x + ns.x %}"),
    "doubling by ~": grow("{% set ns.x = ns.x ~ ns.x %}"),
    "doubling by a block": grow("{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}"),
    "doubling by a macro": "{% macro f(x) %}{{ x }}{{ x }}{% endmacro %}"
    + grow("{% set ns.x = f(ns.x) %}"),
    "doubling by join": grow("{% set ns.x = [ns.x, ns.x]|join %}"),
    "doubling by format": grow("{% set ns.x = '%s%s' % (ns.x, ns.x) %}"),
    "doubling by filter format": grow("{% set ns.x = '%s%s'|format(ns.x, ns.x) %}"),
    "doubling by str.format": grow("{% set ns.x = '{0}{0}'.format(ns.x) %}"),
    "doubling by replace": grow("{% set ns.x = ns.x.replace('a', 'aa') %}"),
    "doubling lists": grow("{% set ns.x = ns.x + ns.x %}", "[1]"),
    "nesting lists": grow("{% set ns.x = [ns.x, ns.x] %}", "[1]"),
    "nesting tuples": grow("{% set ns.x = (ns.x, ns.x) %}", "(1,)"),
    "nesting mappings": grow("{% set ns.x = {'a': ns.x, 'b': ns.x} %}", "{}"),
    "nesting by dict": grow("{% set ns.x = dict(a=ns.x, b=ns.x) %}", "{}"),
    "nesting by list": grow("{% set ns.x = ([ns.x] * 2)|list %}", "[1]"),
    "comparing nested": "{% set a = namespace(x=[1], y=[1]) %}{% for i in range(60) %}"
    "{% set a.x = [a.x, a.x] %}{% set a.y = [a.y, a.y] %}{% endfor %}{{ a.x == a.y }}",
    "growing deep": grow("{% set ns.x = [[[ns.x]]] %}", "[1]"),
    "power": "{{ 10 ** 1000000000 }}",
    "power of a power": "{{ (2 ** 4000) ** 4000 }}",
    "squaring": grow("{% set ns.x = ns.x * ns.x %}", "3"),
    "factorial": "{% set ns = namespace(n=1) %}{% for i in range(1, 9999) %}"
    "{% set ns.n = ns.n * i %}{% endfor %}",
    "center": "{{ 'x'|center(10**9) }}",
    "str.center": "{{ 'x'.center(10**9) }}",
    "str.ljust": "{{ 'x'.ljust(10**9) }}",
    "str.rjust": "{{ 'x'.rjust(10**9) }}",
    "str.zfill": "{{ 'x'.zfill(10**9) }}",
    "indent": "{{ 'x\ny'|indent(10**9) }}",
    "indent by text": "{{ ('\n' * 90000)|indent('y' * 10000, true, true) }}",
    "join": "{{ range(100000)|join('x' * 100000) }}",
    "str.join": "{{ ('x' * 100000).join(['a'] * 100000) }}",
    "str.replace": "{{ ('a' * 100000).replace('a', 'b' * 100000) }}",
    "replace nothing": "{{ ('a' * 100000)|replace('', 'b' * 100000) }}",
    "filter block": "{% filter replace('a', 'b' * 100000) %}" + "a" * 9999 + "{% endfilter %}",
    "tojson indent": "{{ [1]|tojson(indent=10**9) }}",
    "tojson indent of deep lists": "{% set ns = namespace(x=[0] * 100000) %}"
    "{% for i in range(90) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x|tojson(indent=16) }}",
    "tojson separators": "{{ ([[]] * 10000)|tojson(separators=['x' * 100000, ':']) }}",
    "batch": "{{ [1]|batch(10**9, 'x')|list }}",
    "slice": "{{ [1]|slice(10**9)|list|length }}",
    "percent width": "{{ '%1000000000d' % 1 }}",
    "percent precision": "{{ '%.1000000000f' % 1 }}",
    "percent star": "{{ '%*d' % (10**9, 1) }}",
    "percent key": "{{ '%(a(b)c)1000000000d' % {'a(b)c': 1} }}",
    "percent after percent": "{{ '%%%1000000000d' % 1 }}",
    "percent flags": "{{ '%- +0#1000000000d' % 1 }}",
    "percent filter": "{{ '%1000000000d'|format(1) }}",
    "percent by repeated key": "{{ ('%(a)s' * 10000) % {'a': 'x' * 10000} }}",
    "braces width": "{{ '{:1000000000}'.format(1) }}",
    "braces nested width": "{{ '{:{}}'.format(1, 10**9) }}",
    "braces conversion width": "{{ '{!r:>99999999}'.format(1) }}",
    "braces repeated": "{{ ('{0}' * 10000).format('x' * 10000) }}",
    "splitting": "{{ ('a ' * 4000000).split()|length }}",
    "splitting at a letter": "{{ ('ab' * 4000000).split('b')|length }}",
    "splitting from the right": "{{ ('ab' * 4000000).rsplit('b')|length }}",
    "splitting lines": "{{ ('\r' * 8000000).splitlines()|length }}",
    "listing letters": BIG + "{{ s|list|length }}",
    "sorting letters": BIG + "{{ s|sort|length }}",
    "unique letters": BIG + "{{ s|unique|list|length }}",
    "title": BIG + "{{ s|title|length }}",
    "urlencode": "{{ ('é' * 8000000)|urlencode|length }}",
    "escape": "{{ ('<' * 8000000)|e|length }}",
    "numeral": "{{ ('f' * 1000000)|int(base=16) }}",
    "round": "{{ 5|round(-1000000000) }}",
    "round up": "{{ 5|round(1000000000, 'ceil') }}",
    "search from the right": BIG + "{{ s.rfind('a' + 'b' * 99 + 'ab' * 200000) }}",
    "split at a long text": BIG + "{{ s.rsplit('ab' * 200000)|length }}",
    "strip of many letters": BIG + "{{ s.strip('x' * 8000000 + 'ab') }}",
    "trim of many letters": BIG + "{{ s|trim('x' * 8000000 + 'ab') }}",
    "literal text in a block": body("{% set x %}" + LOOP + "DATA{% endfor %}{% endset %}"),
    "literal text in the output": body(LOOP + "DATA{% endfor %}"),
    "literal text in a condition": body(
        "{% set x %}" + LOOP + "{% if i >= 0 %}DATA{% endif %}{% endfor %}{% endset %}"
    ),
    "literal text in a macro": body(
        "{% macro f() %}DATA{% endmacro %}{% set x %}" + LOOP + "{{ f() }}{% endfor %}{% endset %}"
    ),
    "long template": "x" * 70_000,
    "long date": "{{ strftime_now('%Y' * 100) }}",
}

TOO_DEEP = {
    "macro": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "two macros": "{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}{{ f() }}{% endmacro %}"
    "{{ f() }}",
    "loop": "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "block": "{% block a %}{{ self.a() }}{% endblock %}",
    "parentheses": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "lists": "{{ " + "[" * 5000 + "]" * 5000 + " }}",
    "conditions": "{% if 1 %}" * 900 + "{% endif %}" * 900,
    "loops": "{% for a in [1] %}" * 60 + "x" + "{% endfor %}" * 60,
    "sum": "{{ " + "+".join(["1"] * 9000) + " }}",
    "filters": "{{ 1" + "|string" * 9000 + " }}",
    "nots": "{{ " + "not " * 9000 + "1 }}",
    "attributes": "{{ a" + ".b" * 9000 + " }}",
}

FORBIDDEN = {
    "class": "{{ ''.__class__ }}",
    "class by item": "{{ ''['__class__'] }}",
    "class by filter": "{{ ''|attr('__class__') }}",
    "class by map": "{{ ['']|map(attribute='__class__')|list }}",
    "class by groupby": "{{ ['']|groupby('__class__')|list }}",
    "mro": "{{ ().__class__.__mro__[1].__subclasses__() }}",
    "cycler": "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "joiner": "{{ joiner.__init__ }}",
    "lipsum": "{{ lipsum(n=10**9) }}",
    "namespace class": "{{ namespace.__init__.__globals__ }}",
    "namespace attribute": "{% set n = namespace() %}{% set n.__class__ = 1 %}",
    "namespace argument": "{{ namespace(__class__=1) }}",
    "function globals": "{{ raise_exception.__globals__ }}",
    "macro function": "{% macro f() %}{% endmacro %}{{ f._func }}",
    "loop": "{% for x in [1] %}{{ loop.__init__ }}{% endfor %}",
    "self": "{{ self._TemplateReference__context }}",
    "undefined": "{{ nope.__class__ }}",
    "format field": "{{ '{0.__class__}'.format(1) }}",
    "format item": "{{ '{x[__class__]}'.format(x={}) }}",
    "format later": "{% set f = '{0.__class__}'.format %}{{ f(1) }}",
    "format_map": "{{ '{a.__class__}'.format_map({'a': 1}) }}",
    "format by map": "{{ (['{0.__class__}']|map(attribute='format')|first)(1) }}",
    "formatting by a test": "{{ '%1000000000d' is divisibleby(1) }}",
    "formatting by odd": "{{ '%1000000000d' is odd }}",
    "encode": "{{ 'a'.encode() }}",
    "translate": "{{ 'a'.translate({97: 'x'}) }}",
    "expandtabs": "{{ '\t'.expandtabs(10**9) }}",
    "append": "{{ messages.append(1) }}",
    "clear": "{{ messages[0].clear() }}",
    "update": "{{ messages[0].update({'a': 1}) }}",
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import 'os' as os %}",
    "from import": "{% from 'os' import system %}",
    "extends": "{% extends 'x' %}",
    "autoescape": "{% autoescape true %}{% endautoescape %}",
    "printing a method": "{{ ''.upper }}",
    "printing methods": "{{ [''.upper] }}",
    "joining methods": "{{ [''.upper]|join }}",
    "concatenating a method": "{{ 'a' ~ ''.upper }}",
    "formatting a method": "{{ '%s' % ''.upper }}",
    "printing a generator": "{{ [1]|map('string') }}",
    "calling a text": "{{ 'x'() }}",
    "calling undefined": "{{ nope() }}",
    "random": "{{ [1, 2]|random }}",
    "pprint": "{{ [1]|pprint }}",
    "urlize": "{{ 'a'|urlize }}",
    "adding lists by sum": "{{ ([[1]] * 90000)|sum(start=[])|length }}",
    "bad keyword": "{{ range(__class__=1) }}",
}


def refuse(source: str) -> str:
    """Render in a worker thread, as a server does; the message of the refusal."""
    outcome: list[str] = []
    spent: list[float] = []

    def run() -> None:
        started = time.thread_time()
        try:
            text = JinjaChatTemplate(source, {}).render(MESSAGES)
            outcome.append(f"rendered {text[:80]!r}")
        except TemplateError as error:
            outcome.append(str(error))
            spent.append(time.thread_time() - started)

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert spent, outcome
    assert spent[0] < MAX_CPU_S
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MAX_GROWTH_KIB
    assert len(outcome[0]) < 600
    return outcome[0]


@pytest.mark.parametrize("name", ENDLESS)
def test_endless(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # A fifth of the time, so that the suite need not wait: the way to it is the same.
    monkeypatch.setattr(template_meter, "MAX_RENDER_S", 0.1)
    message = refuse(ENDLESS[name])
    assert "took longer than" in message or "too many long values" in message


def test_endless_for_as_long_as_it_may() -> None:
    assert refuse(ENDLESS["nested loops"]).endswith("took longer than 0.5 s.")


@pytest.mark.parametrize("name", TOO_BIG)
def test_too_big(name: str) -> None:
    message = refuse(TOO_BIG[name])
    assert message.startswith("The model's chat template ")


@pytest.mark.parametrize("name", TOO_DEEP)
def test_too_deep(name: str) -> None:
    message = refuse(TOO_DEEP[name])
    assert "deep" in message or "nested" in message


@pytest.mark.parametrize("name", FORBIDDEN)
def test_forbidden(name: str) -> None:
    message = refuse(FORBIDDEN[name])
    for secret in ("0x", "/headrace", "Traceback"):
        assert secret not in message


def test_a_namespace_that_holds_itself() -> None:
    source = "{% set ns = namespace() %}{% set ns.x = ns %}{{ [ns] }}"
    assert JinjaChatTemplate(source, {}).render(MESSAGES) == "[<namespace>]"


def test_messages_are_not_changed() -> None:
    messages = [{"role": "user", "content": "hi"}]
    source = "{% set messages = [] %}{% for m in messages %}{% set m = 1 %}{% endfor %}"
    JinjaChatTemplate(source, {}).render(messages)
    assert messages == [{"role": "user", "content": "hi"}]


def test_text_of_messages_is_not_a_template() -> None:
    messages = [{"role": "user", "content": "{{ 7 * 7 }}{% endfor %}"}]
    assert JinjaChatTemplate("{{ messages[0].content }}", {}).render(messages) == (
        "{{ 7 * 7 }}{% endfor %}"
    )


def test_a_refusal_leaves_the_next_rendering_alone() -> None:
    """The meter is the rendering's own: one that ran out must not shorten another."""
    refuse(TOO_DEEP["macro"])
    assert JinjaChatTemplate("{% for i in range(9) %}{{ i }}{% endfor %}", {}).render([]) == (
        "012345678"
    )
