"""Finds model code whose result for long rows may differ from a trial on short rows.

Such code compares a row's length with a number, or computes a range over the length. This file parses the
model classes' forward methods, and all methods and functions that they call.
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

CodeLine = tuple[str, int]  # file name and line number
_RANGES = ("arange", "range", "linspace")
_NUMBERS = ("size", "numel", "int", "min", "max")
_BOUNDS = ("min", "max", "minimum", "maximum", "clamp", "split", "chunk", "narrow", "range", "tril", "triu")
# Arguments that a model computes itself if they are None; the engine always passes position_ids.
_GIVEN = ("position_ids", "cache_position")


def unseen_length(model: PreTrainedModel, seen: Container[CodeLine], length: int) -> str | None:
    """Return the reason why a trial is not valid for longer rows; None if it is valid.

    model: the trial's small model. seen: code lines whose ranges over the length proved harmless in the
    trial.
    length: the trial row's tokens.
    """
    for function, owners in _functions(model):
        node = _node(function)
        if node is None:
            return f"the source of {function.__qualname__} cannot be read"
        file = function.__code__.co_filename
        for read in _reads(node):
            value = read.value(model, owners)
            if (file, read.line) not in seen and (value is None or value > length):
                where = f"{Path(file).name}:{read.line}"
                return f"a row's length decides in its code, beyond the trial's: {read.text} ({where})"
    return None


@dataclass(frozen=True)
class _Read:
    """An expression in model code that depends on a row's length.

    bound: the value with which the length is compared; None if the expression is a range over the length.
    """

    line: int
    text: str
    bound: ast.expr | None = None

    def value(self, model: PreTrainedModel, owners: list[nn.Module]) -> float | None:
        """Return the largest value that `bound` has in the model; 0 if not a number; None for a range."""
        if self.bound is None:
            return None
        if isinstance(self.bound, ast.Constant):
            return abs(self.bound.value) if isinstance(self.bound.value, int | float) else 0.0
        assert isinstance(self.bound, ast.Attribute)
        holders = [*owners, model.config, model.config.get_text_config()]
        values = (vars(holder).get(self.bound.attr) for holder in holders)
        return max((float(value) for value in values if isinstance(value, int | float)), default=0.0)


def _functions(model: PreTrainedModel) -> Iterator[tuple[FunctionType, list[nn.Module]]]:
    """Yield each function that forward passes call, with the modules that have the function as a method."""
    functions: dict[FunctionType, list[nn.Module]] = {}
    by_class: dict[type[nn.Module], list[nn.Module]] = {}
    for module in model.modules():
        by_class.setdefault(type(module), []).append(module)
    for kind, owners in by_class.items():
        for function in _methods(kind, "forward"):
            _follow(function, kind, owners, functions)
    yield from functions.items()


def _methods(kind: type[nn.Module], name: str) -> Iterator[FunctionType]:
    """Yield every method `name` in the class and its bases."""
    for base in kind.__mro__:
        if (method := _own(vars(base).get(name))) is not None:
            yield method


def _follow(
    function: FunctionType,
    kind: type[nn.Module] | None,
    owners: list[nn.Module],
    functions: dict[FunctionType, list[nn.Module]],
) -> None:
    """Add a model function to `functions`, and all functions that it calls."""
    if function in functions and all(owner in functions[function] for owner in owners[:1]):
        return
    functions[function] = [*functions.get(function, ()), *owners]
    for node in ast.walk(_node(function) or ast.Pass()):
        if isinstance(node, ast.Name) and (called := _own(function.__globals__.get(node.id))) is not None:
            _follow(called, None, [], functions)
        elif kind is not None and isinstance(node, ast.Attribute) and _is_self(node.value):
            for called in _methods(kind, node.attr):
                _follow(called, kind, owners, functions)


def _own(value: object) -> FunctionType | None:
    """Return `value` if it is a function in the model's own code; None for a library function."""
    function = inspect.unwrap(value) if callable(value) else value
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
    """Return the functions in a module's source, by their first lines; empty without source."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]) if module in sys.modules else "")
    except (OSError, TypeError, SyntaxError):
        return {}
    return {
        min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]): node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
    }


def _reads(node: ast.FunctionDef) -> list[_Read]:
    reader = _Reader()
    for statement in node.body:
        reader.visit(statement)
    return reader.reads


@dataclass
class _Reader(ast.NodeVisitor):
    """Collects expressions that depend on a length.

    Lengths are numbers from tensor shapes, and variables that are computed from such numbers.
    """

    reads: list[_Read] = field(default_factory=list)
    _lengths: set[str] = field(default_factory=set)
    _skipped: int = 0  # enclosing branches for an argument in _GIVEN that is None

    def visit_Assign(self, node: ast.Assign) -> None:
        """Record variables that hold lengths.

        A call's result counts as a tensor, unless the function is known to return a number.
        """
        value = node.value
        is_number = not isinstance(value, ast.Call) or _name(value.func) in _NUMBERS
        if is_number and self._is_length(value):
            targets = [part for target in node.targets for part in _parts(target)]
            self._lengths |= {target.id for target in targets if isinstance(target, ast.Name)}
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        """Ignore ranges in a branch for an argument that is None, because the engine passes the argument."""
        test = node.test
        is_skipped = (
            isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Is) and _name(test.left) in _GIVEN
        )
        self.visit(test)
        self._skipped += is_skipped
        for statement in node.body:
            self.visit(statement)
        self._skipped -= is_skipped
        for statement in node.orelse:
            self.visit(statement)

    def visit_Raise(self, node: ast.Raise) -> None:
        """Ignore the statement: if it runs, the model itself reports that it cannot compute the row."""

    def visit_Call(self, node: ast.Call) -> None:
        """Collect ranges over lengths, and calls such as min() or split() that limit a length."""
        name = _name(node.func)
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        is_of_length = any(self._is_length(argument) for argument in given)
        if name in _RANGES and is_of_length and not self._skipped:
            self.reads.append(_Read(node.lineno, ast.unparse(node)))
        if name in _BOUNDS and (is_of_length or name in ("split", "tril", "triu", "narrow")):
            self._bound(node, given)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        """Collect comparisons between a length and a number or a setting."""
        sides = [node.left, *node.comparators]
        if not isinstance(node.ops[0], ast.Is | ast.IsNot) and any(map(self._is_length, sides)):
            self._bound(node, sides)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        """Collect divisions of a length by a number."""
        if isinstance(node.op, ast.Mod | ast.FloorDiv) and self._is_length(node.left):
            self._bound(node, [node.right], by_name=False)
        self.generic_visit(node)

    def visit_Slice(self, node: ast.Slice) -> None:
        """Collect slices with a constant end."""
        ends = [end for end in (node.lower, node.upper) if end is not None]
        self._bound(node, ends, by_name=False)
        self.generic_visit(node)

    def _bound(self, node: ast.expr, given: list[ast.expr], *, by_name: bool = True) -> None:
        """Collect the numbers in `given` and, if by_name, the attributes.

        In slices and divisions, attributes are mostly feature sizes rather than length limits.
        """
        for value in given:
            bound = value.operand if isinstance(value, ast.UnaryOp) else value
            is_number = isinstance(bound, ast.Constant) and type(bound.value) in (int, float)
            is_named = by_name and isinstance(bound, ast.Attribute) and bound.attr not in ("shape", "ndim")
            if is_number or is_named:
                self.reads.append(_Read(node.lineno, ast.unparse(node), bound))

    def _is_length(self, node: ast.expr) -> bool:
        return any(
            (isinstance(part, ast.Attribute) and part.attr == "shape")
            or (isinstance(part, ast.Call) and _name(part.func) in ("size", "numel"))
            or (isinstance(part, ast.Name) and part.id in self._lengths)
            for part in ast.walk(node)
        )


def _parts(target: ast.expr) -> list[ast.expr]:
    """Return the assignment's targets.

    If a shape with three or more sizes is unpacked, the first target is left out, because it is the row
    count.
    """
    if not isinstance(target, ast.Tuple):
        return [target]
    return target.elts[1:] if len(target.elts) > 2 else target.elts


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
