"""Places in a model's code where the length of a row decides, and that a trial on short rows does not pass.

Read are the forward methods of the classes that a model has, and the methods and functions that these call.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Place = tuple[str, int]  # file and line
_RANGES = ("arange", "range", "linspace")
_NUMBERS = ("size", "numel", "int", "min", "max")
_BOUNDS = ("min", "max", "minimum", "maximum", "clamp", "split", "chunk", "narrow", "range", "tril", "triu")
# Of which a model makes its own where it is given none; here it always is given the first.
_GIVEN = ("position_ids", "cache_position")


def unseen_length(model: PreTrainedModel, seen: Container[Place], longest: int) -> str | None:
    """The reason why a trial says nothing of longer rows; None where it does.

    model: as it was tried. seen: ranges over the length of which the trial has shown that nothing depends on
    them. longest: tokens of its longest conversation.
    """
    for function, owners in _functions(model):
        node = _node(function)
        if node is None:
            return f"the source of {function.__qualname__} cannot be read"
        file = function.__code__.co_filename
        for read in _reads(node):
            value = read.value(model, owners)
            if (file, read.line) not in seen and (value is None or value > longest):
                where = f"{Path(file).name}:{read.line}"
                return f"a row's length decides in its code, beyond the trial's: {read.text} ({where})"
    return None


@dataclass(frozen=True)
class _Read:
    """A use of a length. bound: the expression that it is compared with; None: a range over the length."""

    line: int
    text: str
    bound: ast.expr | None = None

    def value(self, model: PreTrainedModel, owners: list[nn.Module]) -> float | None:
        """The largest value of `bound` in the model; 0 for one that is not known to be a size, None: any."""
        if self.bound is None:
            return None
        if isinstance(self.bound, ast.Constant):
            return abs(self.bound.value) if isinstance(self.bound.value, int | float) else 0.0
        assert isinstance(self.bound, ast.Attribute)
        holders = [*owners, model.config, model.config.get_text_config()]
        values = (vars(each).get(self.bound.attr) for each in holders)
        return max((float(each) for each in values if isinstance(each, int | float)), default=0.0)


def _functions(model: PreTrainedModel) -> Iterator[tuple[FunctionType, list[nn.Module]]]:
    """Each function of forward passes once, and the modules whose method it is."""
    found: dict[FunctionType, list[nn.Module]] = {}
    by_class: dict[type[nn.Module], list[nn.Module]] = {}
    for module in model.modules():
        by_class.setdefault(type(module), []).append(module)
    for kind, owners in by_class.items():
        for function in _methods(kind, "forward"):
            _follow(function, kind, owners, found)
    yield from found.items()


def _methods(kind: type[nn.Module], name: str) -> Iterator[FunctionType]:
    """Of the class and of those that it is derived from."""
    for each in kind.__mro__:
        if (found := _own(vars(each).get(name))) is not None:
            yield found


def _follow(
    function: FunctionType,
    kind: type[nn.Module] | None,
    owners: list[nn.Module],
    found: dict[FunctionType, list[nn.Module]],
) -> None:
    """Adds a function of a model's code and those that it calls."""
    if function in found and all(each in found[function] for each in owners[:1]):
        return
    found[function] = [*found.get(function, ()), *owners]
    for node in ast.walk(_node(function) or ast.Pass()):
        if isinstance(node, ast.Name) and (called := _own(function.__globals__.get(node.id))) is not None:
            _follow(called, None, [], found)
        elif kind is not None and isinstance(node, ast.Attribute) and _is_self(node.value):
            for called in _methods(kind, node.attr):
                _follow(called, kind, owners, found)


def _own(found: object) -> FunctionType | None:
    """A function of the model's files; None for another object, and for those of the libraries themselves."""
    function = inspect.unwrap(found) if callable(found) else found
    if not isinstance(function, FunctionType):
        return None
    room, *rest = function.__module__.split(".")
    is_library = room == "torch" or (room == "transformers" and rest[:1] != ["models"])
    return None if is_library else function


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def _node(function: FunctionType) -> ast.FunctionDef | None:
    return _definitions(function.__code__.co_filename, function.__module__).get(
        function.__code__.co_firstlineno
    )


@cache
def _definitions(file: str, module: str) -> dict[int, ast.FunctionDef]:
    """Of a source file, by their first lines; empty where there is none."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]) if module in sys.modules else "")
    except (OSError, TypeError, SyntaxError):
        return {}
    return {
        min([node.lineno, *(each.lineno for each in node.decorator_list)]): node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
    }


def _reads(node: ast.FunctionDef) -> list[_Read]:
    reader = _Reader()
    for each in node.body:
        reader.visit(each)
    return reader.reads


@dataclass
class _Reader(ast.NodeVisitor):
    """Finds uses of lengths: numbers of shapes, and names that were made of them."""

    reads: list[_Read] = field(default_factory=list)
    _lengths: set[str] = field(default_factory=set)
    _made: int = 0  # depth of branches that make up for an argument

    def visit_Assign(self, node: ast.Assign) -> None:
        """Names of lengths; of tensors made by calls there are none."""
        value = node.value
        is_number = not isinstance(value, ast.Call) or _name(value.func) in _NUMBERS
        if is_number and self._is_length(value):
            for each in (name for target in node.targets for name in ast.walk(target)):
                if isinstance(each, ast.Name):
                    self._lengths.add(each.id)
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        """A branch for an argument that was not given is not taken."""
        test = node.test
        is_made = (
            isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Is) and _name(test.left) in _GIVEN
        )
        self.visit(test)
        self._made += is_made
        for each in node.body:
            self.visit(each)
        self._made -= is_made
        for each in node.orelse:
            self.visit(each)

    def visit_Raise(self, node: ast.Raise) -> None:
        """Says itself what is wrong."""

    def visit_Call(self, node: ast.Call) -> None:
        """Ranges over lengths, and bounds of them."""
        name = _name(node.func)
        given = [*node.args, *(each.value for each in node.keywords)]
        is_of_length = any(self._is_length(each) for each in given)
        if name in _RANGES and is_of_length and not self._made:
            self.reads.append(_Read(node.lineno, ast.unparse(node)))
        if name in _BOUNDS and (is_of_length or name in ("split", "tril", "triu", "narrow")):
            self._bound(node, given)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        """Comparisons of a length with a size."""
        sides = [node.left, *node.comparators]
        if not isinstance(node.ops[0], ast.Is | ast.IsNot) and any(map(self._is_length, sides)):
            self._bound(node, sides)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        """Parts of a length."""
        if isinstance(node.op, ast.Mod | ast.FloorDiv) and self._is_length(node.left):
            self._bound(node, [node.right], by_name=False)
        self.generic_visit(node)

    def visit_Slice(self, node: ast.Slice) -> None:
        """A part of fixed size of something."""
        ends = [each for each in (node.lower, node.upper) if each is not None]
        self._bound(node, ends, by_name=False)
        self.generic_visit(node)

    def _bound(self, node: ast.expr, given: list[ast.expr], *, by_name: bool = True) -> None:
        """Sizes among `given`: numbers and, by_name, attributes; parts are mostly those of features."""
        for each in given:
            bound = each.operand if isinstance(each, ast.UnaryOp) else each
            is_number = isinstance(bound, ast.Constant) and type(bound.value) in (int, float)
            is_named = by_name and isinstance(bound, ast.Attribute) and bound.attr not in ("shape", "ndim")
            if is_number or is_named:
                self.reads.append(_Read(node.lineno, ast.unparse(node), bound))

    def _is_length(self, node: ast.expr) -> bool:
        return any(
            (isinstance(each, ast.Attribute) and each.attr == "shape")
            or (isinstance(each, ast.Call) and _name(each.func) in ("size", "numel"))
            or (isinstance(each, ast.Name) and each.id in self._lengths)
            for each in ast.walk(node)
        )


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
