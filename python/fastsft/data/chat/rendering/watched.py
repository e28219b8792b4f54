"""A sandbox that records the operations of a chat template on marks (`marks.py`).

A template that only writes a text writes any other text in the same way. Every other operation on a mark,
such as a comparison or a search, is recorded as a `Guard` with its result. If all these operations have the
same results for the texts of a chat, that chat is rendered in the same way as the marks. An operation that
cannot be recorded raises `Unforeseen`.
"""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Callable
from typing import Any, TypeVar

import jinja2
from jinja2 import nodes
from jinja2.filters import do_mark_safe, do_trim
from jinja2.runtime import Macro
from jinja2.visitor import NodeTransformer

from fastsft.data.chat.rendering.marked_values import (
    Unforeseen,
    check_call,
    each_unpacked,
    gone_through,
    holds_marked,
    in_json,
    is_any,
    is_escaped,
    is_free,
    is_marked,
    is_of_kinds,
    is_simple,
    look_up,
    members,
    named,
    tells_nothing,
    unpacked,
    whole,
)
from fastsft.data.chat.rendering.marks import Trace
from fastsft.data.chat.rendering.sandbox import JsonTexts, MarkedList, MarkedObject, Sandbox

# Filters and tests whose results depend neither on a text's content nor on a marked object's parts.
_WRITING_FILTERS = frozenset(("default", "d"))
_LIST_FILTERS = frozenset(("first", "last", "list", "reverse", "length", "count", "items"))
_IMPURE = frozenset(("random", "sameas"))
_KIND_TESTS = frozenset(
    (
        *("defined", "undefined", "none", "string", "mapping", "iterable", "sequence"),
        *("number", "integer", "float", "boolean", "true", "false", "callable"),
    )
)
_PICKING_FILTERS = frozenset(("selectattr", "rejectattr"))
_STRIPS = frozenset(("strip", "lstrip", "rstrip"))
_LOCALS = ("_loop_vars", "_block_vars")  # arguments that Jinja adds to each call
_LOOKUPS = frozenset(("get", "items", "keys", "values"))
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "gt": operator.gt,
    "gteq": operator.ge,
    "lt": operator.lt,
    "lteq": operator.le,
    "in": lambda one, many: one in many,
    "notin": lambda one, many: one not in many,
}
_OWN = (
    "_write",
    "_each",
    "_any",
    "_named",
    "_cut",
    "_compare",
    "_unpacked",
    "_each_unpacked",
)  # the filters by which _Rewriter replaces Jinja's own operations


class Watched(Sandbox):
    """The sandbox for chats with marks. trace: records the operations on marks."""

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "%", "**"))

    def __init__(
        self, date: str, generation_marks: tuple[str, str], trace: Trace, json_texts: JsonTexts
    ) -> None:
        super().__init__(date, generation_marks)
        self.trace, self.json_texts = trace, json_texts
        self.filters = {
            name: function if name in _WRITING_FILTERS else self._watched(name, function)
            for name, function in self.filters.items()
        }
        self.tests = {
            name: function if name in _KIND_TESTS else self._watched(name, function)  # type: ignore[arg-type]
            for name, function in self.tests.items()
        }
        own = (
            *(self._write, gone_through, is_any, named, self._cut, self._compare),
            *(unpacked, each_unpacked),
        )
        self.filters |= {"tojson": self._tojson, "trim": self._trim, "safe": self._mark_safe}
        self.filters |= dict(zip(_OWN, own, strict=True))

    def compiled(self, source: str) -> jinja2.Template:
        """Compile the template so that all operations on values call methods of this class."""
        tree = self.parse(source)
        if next(tree.find_all(nodes.EvalContextModifier), None) is not None:
            raise Unforeseen("the template escapes its texts")
        return self.from_string(_Rewriter().visit(tree))

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a function for the template. Record the call of a text's method, and check all other calls."""
        owner = getattr(__obj, "__self__", None)
        result = super().call(__context, __obj, *args, **kwargs)
        kwargs = {name: value for name, value in kwargs.items() if name not in _LOCALS}
        if type(owner) is str:
            method = getattr(str, __obj.__name__)
            if __obj.__name__ in _STRIPS and not kwargs:
                return __self._stripped(method, owner, *args)
            return __self._kept(method, (owner, *args), kwargs, result)
        if isinstance(owner, dict) and __obj.__name__ in _LOOKUPS:
            look_up(owner, args[0] if args else "")
        elif not isinstance(__obj, Macro):
            check_call(__obj, owner, [*args, *kwargs.values()])
        return named(result)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        result = super().call_binop(context, operator, left, right)
        for operand in (left, right):
            whole(operand)
        if operator in "+*" and not any(map(is_escaped, (left, right))):
            return result
        return self._kept(self.binop_table[operator], (left, right), {}, result)

    def getattr(self, obj: Any, attribute: str) -> Any:
        look_up(obj, attribute)
        value = super().getattr(obj, attribute)
        is_own = getattr(value, "__self__", None) is obj or isinstance(value, jinja2.Undefined)
        # The sandbox has replaced the method, so the call could not be recorded.
        if isinstance(obj, str) and is_marked(obj) and not is_own:
            raise Unforeseen(f"the method {attribute} of a text")
        return value

    def getitem(self, obj: Any, argument: Any) -> Any:
        if type(obj) is str and isinstance(argument, int):
            return self._kept(operator.getitem, (obj, argument), {}, super().getitem(obj, argument))
        look_up(obj, argument)
        if isinstance(obj, str) and is_marked(obj):
            if is_escaped(obj):
                raise Unforeseen("a part of an escaped text is taken")
            return self.getattr(obj, str(argument))
        return super().getitem(obj, argument)

    def _kept(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Any, result: Any) -> Any:
        """Return a call's result, and record the call if an argument has marks."""
        values = (*args, *kwargs.values())
        if all(map(is_free, values)):
            return result
        if not all(map(is_simple, values)):
            raise Unforeseen("a value of many parts is looked into")
        if not is_simple(result) or isinstance(result, jinja2.Undefined):
            raise Unforeseen(f"a {type(result).__name__} is made of a text")
        self.trace.keep(function, args, kwargs, result)
        return result

    def _watched(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a filter or test that records its calls with marks."""
        first = int(hasattr(function, "jinja_pass_arg"))  # 1 if Jinja puts an argument of its own first

        @functools.wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            value = args[first] if len(args) > first else None
            if name in _IMPURE:
                raise Unforeseen(f"{name} says otherwise each time")
            if name in _LIST_FILTERS and not isinstance(value, str):
                whole(value)
                return function(*args, **kwargs)
            if name in _PICKING_FILTERS and is_of_kinds(*args[first:], *kwargs.values()):
                return function(*args, **kwargs)
            again = functools.partial(function, *args[:first])
            return self._kept(again, args[first:], kwargs, function(*args, **kwargs))

        return watched

    def _trim(self, value: Any, chars: str | None = None) -> Any:
        """Trim a value like Jinja's filter `trim`, and record the call if the value has marks."""
        if type(value) is str:
            return self._stripped(str.strip, value, chars)
        return self._kept(do_trim, (value, chars), {}, do_trim(value, chars))

    def _stripped(self, method: Callable[..., str], text: str, *chars: str | None) -> str:
        """Return the stripped text. For a mark, return a new mark that stands for the stripped value.

        The stripped value is not empty, because marks never replace blank texts.
        """
        is_white = all(
            characters is None or (type(characters) is str and characters.isspace()) for characters in chars
        )
        if is_white and self.trace.marks.is_one(text):
            return self.trace.made(text, method, *chars)
        result = method(text, *chars)
        self._kept(method, (text, *chars), {}, result)
        return result

    def _mark_safe(self, value: Any) -> Any:
        """Mark a text as safe, like Jinja's filter `safe`."""
        if type(value) is str or is_free(value):
            return do_mark_safe(value)
        raise Unforeseen(f"a {type(value).__name__} is made a text")

    def _write(self, value: Any) -> Any:
        """Return the value if the template may write or join it.

        Raise Unforeseen if the value is no text and contains marks.
        """
        if isinstance(value, str) or is_free(value):
            return value
        raise Unforeseen(f"a {type(value).__name__} is written")

    def _cut(self, value: Any, *bounds: int | None) -> Any:
        piece = slice(*bounds)
        if isinstance(value, str):
            return self._kept(operator.getitem, (value, piece), {}, value[piece])
        return whole(value)[piece]

    def _compare(self, left: Any, *others: Any) -> bool:
        """Return a comparison chain's result.

        others: alternately Jinja's name of an operator and an operand.
        """
        for name, right in zip(others[::2], others[1::2], strict=True):
            result = _COMPARISONS[name](left, right)
            among = members(left, right) if name in ("in", "notin") else right
            if not (name in ("eq", "ne") and tells_nothing(left, right)):
                self._kept(_COMPARISONS[name], (left, among), {}, result)
            if not result:
                return False
            left = right
        return True

    def _tojson(
        self, value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any
    ) -> str:
        """Return the JSON text of a value. New marks in the text stand for the JSON text of marked values."""
        if any(map(is_marked, (ensure_ascii, indent, *options.values()))):
            raise Unforeseen("a text says how JSON is written")
        if isinstance(value, MarkedObject | MarkedList):
            return self.trace.made(value._mark, self.json_texts.write, ensure_ascii, indent, **options)
        if holds_marked(value):
            raise Unforeseen("an object of marked ones is written as JSON")
        text = json.dumps(value, ensure_ascii=False, indent=indent)
        if not (ensure_ascii or options):
            return self.trace.made(text, in_json)
        if is_marked(text):
            raise Unforeseen("a text is written as JSON of another kind")
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


_Call = TypeVar("_Call", nodes.Call, nodes.Filter, nodes.Test)


class _Rewriter(NodeTransformer):
    """A visitor that replaces Jinja's own operations in a template by filters of `Watched`."""

    def visit_Output(self, node: nodes.Output) -> nodes.Output:
        self.generic_visit(node)
        node.nodes = [
            part if isinstance(part, nodes.TemplateData) else _through("_write", part) for part in node.nodes
        ]
        return node

    def visit_Dict(self, node: nodes.Dict) -> nodes.Expr:
        self.generic_visit(node)
        return _through("_named", node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Concat:
        self.generic_visit(node)
        node.nodes = [_through("_write", part) for part in node.nodes]
        return node

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        way = "_each_unpacked" if _takes_parts(node.target) else "_each"
        node.iter = _through(way, node.iter)  # type: ignore[arg-type]
        return node

    def visit_Assign(self, node: nodes.Assign) -> nodes.Assign:
        self.generic_visit(node)
        if _takes_parts(node.target):
            node.node = _through("_unpacked", node.node)  # type: ignore[arg-type]
        return node

    def visit_With(self, node: nodes.With) -> nodes.With:
        self.generic_visit(node)
        node.values = [
            _through("_unpacked", value) if _takes_parts(target) else value
            for target, value in zip(node.targets, node.values, strict=True)
        ]
        return node

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.AssignBlock:
        self.generic_visit(node)
        if _takes_parts(node.target):
            raise Unforeseen("the letters of a text become targets")
        return node

    def visit_Call(self, node: nodes.Call) -> nodes.Call:
        return self._with_opened(node)

    def visit_Filter(self, node: nodes.Filter) -> nodes.Filter:
        return self._with_opened(node)

    def visit_Test(self, node: nodes.Test) -> nodes.Test:
        return self._with_opened(node)

    def _with_opened(self, node: _Call) -> _Call:
        """Pass values whose parts become arguments through a filter that checks them."""
        self.generic_visit(node)
        if node.dyn_args is not None:
            node.dyn_args = _through("_unpacked", node.dyn_args)
        if node.dyn_kwargs is not None:
            node.dyn_kwargs = _through("_unpacked", node.dyn_kwargs)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        bounds = (node.arg.start, node.arg.stop, node.arg.step)
        return _through("_cut", node.node, *(bound or nodes.Const(None) for bound in bounds))

    def visit_Compare(self, node: nodes.Compare) -> nodes.Expr:
        self.generic_visit(node)
        others: list[nodes.Expr] = []
        for operand in node.ops:
            others += [nodes.Const(operand.op), operand.expr]
        measured = node.expr
        if isinstance(measured, nodes.Filter) and measured.name in ("length", "count") and measured.node:
            first = node.ops[0]
            if first.op in ("gt", "eq", "ne") and first.expr == nodes.Const(0):
                measured = _through("_any", measured.node)
        return _through("_compare", measured, *others)


def _takes_parts(target: nodes.Node) -> bool:
    """True if `target` is a tuple of variables. Raise Unforeseen if the tuple is nested."""
    if not isinstance(target, nodes.Tuple):
        return False
    if any(isinstance(item, nodes.Tuple) for item in target.items):
        raise Unforeseen("parts of parts become targets")
    return True


def _through(name: str, value: nodes.Expr, *others: nodes.Expr) -> nodes.Filter:
    made = nodes.Filter(value, name, list(others), [], None, None, lineno=value.lineno)
    if value.environment is not None:
        made.set_environment(value.environment)
    return made
