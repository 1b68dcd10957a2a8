"""The environment that chat templates run in: jinja2's immutable sandbox, metered.

jinja2 keeps a template from reaching Python; it does not keep it from taking an hour or all memory.
So the syntax tree is rewritten before it is compiled: every loop, block, literal, comparison, slice
and concatenation counts its cost, and calls and operators do so in the hooks of the sandbox. It
holds in any thread: nothing here is a signal or a trace function.
"""

from __future__ import annotations

import threading
from functools import lru_cache
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import BlockReference, Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import pass_context
from jinja2.visitor import NodeTransformer

from headrace.text.template_builtins import (
    GLOBALS,
    METHODS,
    check_percent_format,
    metered_filters,
    metered_tests,
)
from headrace.text.template_meter import MAX_INT_BITS, MAX_TEXT_LEN, LimitError, Meter

MAX_TEMPLATE_LEN = 1 << 16

# Names of the filters that the rewriting puts in; a template cannot write such a name.
_SPEND = "(spend)"
_READ = "(read)"
_MADE = "(made)"
_CONCAT = "(concat)"
_SLICE = "(slice)"

_GLOBAL_FUNCTIONS = frozenset(GLOBALS.values())
_REFUSED = (nodes.Extends, nodes.Include, nodes.Import, nodes.FromImport, nodes.EvalContextModifier)


class _GenerationExtension(Extension):
    """`{% generation %}` marks the assistant's text for training; here it is only its body."""

    tags = {"generation"}  # noqa: RUF012  # jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _CostWriter(NodeTransformer):
    """Puts the filters named above into a syntax tree."""

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        if isinstance(node, _REFUSED):
            raise SecurityError(f"line {node.lineno} has a statement that chat templates have not")
        self.generic_visit(node)
        for field in ("body", "else_"):
            body = getattr(node, field, None)
            if isinstance(body, list):
                self._charge_body(node, body)
        if isinstance(node, nodes.For) and node.test is not None:
            spend = _filter(nodes.Const(1), _SPEND, node)
            node.test = nodes.And(spend, node.test, lineno=node.lineno)
        if isinstance(node, nodes.Compare | nodes.Operand):
            node.expr = _filter(node.expr, _READ, node)
        elif isinstance(node, nodes.Concat):
            return _filter(nodes.List(node.nodes, lineno=node.lineno), _CONCAT, node)
        elif isinstance(node, nodes.List | nodes.Dict) or (
            isinstance(node, nodes.Tuple) and node.ctx == "load"
        ):
            return _filter(node, _MADE, node)
        elif isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
            bounds = [node.arg.start, node.arg.stop, node.arg.step]
            return _filter(node.node, _SLICE, node, [b or nodes.Const(None) for b in bounds])
        return node

    @staticmethod
    def _charge_body(node: nodes.Node, body: list[nodes.Node]) -> None:
        """The literal text of a body costs memory whenever it is written."""
        num_chars = sum(
            len(piece.data)
            for statement in body
            if isinstance(statement, nodes.Output)
            for piece in statement.nodes
            if isinstance(piece, nodes.TemplateData)
        )
        if num_chars or isinstance(node, nodes.For | nodes.Macro | nodes.CallBlock):
            spend = _filter(nodes.Const(1 + num_chars), _SPEND, node)
            body.insert(0, nodes.ExprStmt(spend, lineno=node.lineno))


def _filter(
    value: nodes.Expr, name: str, origin: nodes.Node, args: list[nodes.Expr] | None = None
) -> nodes.Filter:
    return nodes.Filter(value, name, args or [], [], None, None, lineno=origin.lineno)


class SandboxEnvironment(ImmutableSandboxedEnvironment):
    """One for all templates; the meter of the current rendering is the thread's own."""

    intercepted_binops = frozenset({"//", "%", "+", "*", "-", "/", "**"})

    def __init__(self) -> None:
        self._current = threading.local()
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # it would run parts of a template while compiling it
            extensions=[loopcontrols, _GenerationExtension],
            finalize=self._finalize,
            cache_size=0,
        )
        self.globals = dict(GLOBALS)
        self.filters = metered_filters(self.meter)
        self.filters |= {
            _SPEND: self._spend,
            _READ: self._read,
            _MADE: self._made,
            _CONCAT: self._concat,
            _SLICE: self._slice,
        }
        self.tests = metered_tests(self.meter)

    def meter(self) -> Meter:
        meter: Meter = self._current.meter
        return meter

    def set_meter(self, meter: Meter) -> None:
        self._current.meter = meter

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        return super()._generate(_CostWriter().visit(source), *args, **kwargs)

    # What the rewritten tree calls.

    def _spend(self, num_chars: int) -> bool:
        self.meter().charge(num_chars)
        return True

    def _read(self, value: Any) -> Any:
        self.meter().read(value)
        return value

    def _made(self, value: Any) -> Any:
        return self.meter().take(value)

    def _concat(self, values: list[Any]) -> str:
        meter = self.meter()
        for value in values:
            meter.charge(2 * meter.weigh_text(value))
        return "".join(map(str, values))

    def _slice(self, value: Any, start: Any, stop: Any, step: Any) -> Any:
        meter = self.meter()
        meter.read(value)
        return meter.take(value[start:stop:step])

    @pass_context  # with it, jinja2 cannot evaluate an output while compiling
    def _finalize(self, context: Context, value: Any) -> Any:
        meter = self.meter()
        meter.charge(meter.weigh_text(value))
        return value

    # Hooks of the sandbox.

    def getattr(self, obj: Any, attribute: str) -> Any:
        self.meter().tick()
        if type(obj) is dict and attribute in obj and attribute not in METHODS[dict]:
            return obj[attribute]
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        self.meter().tick()
        return super().getitem(obj, argument)

    def unsafe_undefined(self, obj: Any, attribute: str) -> jinja2.Undefined:
        """At once: an undefined value that is never used would hide the attempt."""
        raise SecurityError(f"a template may not use {attribute!r} of a {type(obj).__name__}")

    def wrap_str_format(self, value: Any) -> None:
        """`call` bounds str.format itself."""

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        meter = self.meter()
        meter.tick()
        if operator == "%" and isinstance(left, str):
            check_percent_format(meter, left, right)
        elif operator == "+" and isinstance(left, str) and isinstance(right, str):
            meter.charge(len(left) + len(right))
        elif operator == "+" and isinstance(left, list | tuple):
            meter.check_items(len(left) + len(right))
            meter.charge(meter.weigh(left) + meter.weigh(right))
        elif operator == "*" and not isinstance(left, int | float):
            self._check_repeated(meter, left, right)
        elif operator == "*" and not isinstance(right, int | float):
            self._check_repeated(meter, right, left)
        elif (
            operator == "**"
            and isinstance(left, int)
            and isinstance(right, int)
            and left.bit_length() * right > MAX_INT_BITS
        ):
            raise LimitError("made a number of too many digits")
        return meter.take(super().call_binop(context, operator, left, right))

    @staticmethod
    def _check_repeated(meter: Meter, value: Any, count: Any) -> None:
        if isinstance(count, int) and count > 0 and hasattr(value, "__len__"):
            if isinstance(value, str):
                meter.charge(len(value) * count)
            else:
                meter.check_items(len(value) * count)
                meter.charge(meter.weigh(value) * count)

    def call(
        __self,  # so that a template may pass the keyword `self`, as in jinja2
        __context: Context,
        __obj: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        meter = __self.meter()
        meter.tick()
        method = _bounded_method(__obj)
        if method is not None:
            kwargs.pop("_loop_vars", None)
            kwargs.pop("_block_vars", None)
            return meter.take(method(meter, __obj.__self__, *args, **kwargs))
        if not _is_callable(__obj):
            if isinstance(__obj, jinja2.Undefined):
                __obj()
            raise SecurityError(f"a {type(__obj).__name__} may not be called")
        meter.read(*args, *kwargs.values())
        meter.enter()
        result = super().call(__context, __obj, *args, **kwargs)
        meter.depth -= 1
        return meter.take(result)


def _bounded_method(value: Any) -> Any:
    """The bounded form of a method of a plain value, or None."""
    if not isinstance(value, BuiltinMethodType | MethodType):
        return None
    for owner_type, methods in METHODS.items():
        if isinstance(value.__self__, owner_type):
            return methods.get(value.__name__)
    return None


def _is_callable(value: Any) -> bool:
    """What a template defines, what it is given, and two methods of `loop`."""
    if isinstance(value, Macro | BlockReference | LoopContext):
        return True
    if isinstance(value, MethodType):
        return isinstance(value.__self__, LoopContext) and value.__name__ in ("cycle", "changed")
    return isinstance(value, FunctionType) and value in _GLOBAL_FUNCTIONS


@lru_cache(maxsize=1)
def environment() -> SandboxEnvironment:
    return SandboxEnvironment()


@lru_cache(maxsize=32)
def compile_template(source: str) -> jinja2.Template:
    """Raises what jinja2 and Python's compiler raise, and LimitError for a text too long."""
    if len(source) > MAX_TEMPLATE_LEN:
        raise LimitError(f"is longer than {MAX_TEMPLATE_LEN} characters")
    sandbox = environment()
    sandbox.set_meter(Meter())
    return sandbox.from_string(source)


def run_template(template: jinja2.Template, variables: dict[str, Any]) -> str:
    """Raises what the template causes, of any type, and LimitError."""
    meter = Meter(variables)
    environment().set_meter(meter)
    pieces: list[str] = []
    num_chars = 0
    for piece in template.root_render_func(template.new_context(variables)):
        num_chars += len(piece)
        if num_chars > MAX_TEXT_LEN:
            raise LimitError(f"made an output of more than {MAX_TEXT_LEN} characters")
        meter.tick()
        pieces.append(piece)
    return "".join(pieces)
