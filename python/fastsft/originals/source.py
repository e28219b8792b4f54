"""The source file of an imported module, whatever a script has put into the module since."""

from __future__ import annotations

import ast
import dis
import functools
import importlib.util
import inspect
import sys
from collections import defaultdict
from collections.abc import Iterator
from types import CodeType


class ModuleSource:
    """The code of an imported module's file, as the import system finds it (compiled once, from its cache).

    `codes`: of all functions and classes in it, by qualified name; several where a name is defined twice.
    Empty for what is not written in Python.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.codes: dict[str, list[CodeType]] = defaultdict(list)
        self._code = _code_of(name)
        if self._code is not None:
            for code in nested_codes(self._code):
                self.codes[code.co_qualname].append(code)

    def defines(self, qualname: str) -> bool:
        """True if a def of this name is there."""
        return any(code.co_flags & inspect.CO_OPTIMIZED for code in self.codes.get(qualname, ()))

    def defines_class(self, qualname: str) -> bool:
        """True if a class of this name is there."""
        return any(not code.co_flags & inspect.CO_OPTIMIZED for code in self.codes.get(qualname, ()))

    def holds(self, code: CodeType) -> bool:
        """True if exactly this code is written here, under whatever decorator or function."""
        return code in self.codes.get(code.co_qualname, ())

    @functools.cached_property
    def imports(self) -> dict[str, list[tuple[str, str | None]]]:
        """Module and name (None: the module itself) of what the module imports, by the name it has here."""
        found: dict[str, list[tuple[str, str | None]]] = defaultdict(list)
        for bound, module, name in [] if self._code is None else imports_of(self._code, self._package()):
            found[bound].append((module, name))
        return found

    @functools.cached_property
    def lines(self) -> list[str]:
        """The text; none where there is no file."""
        loader = getattr(getattr(sys.modules[self.name], "__spec__", None), "loader", None)
        text = getattr(loader, "get_source", lambda _: None)(self.name)
        return (text or "").splitlines(keepends=True)

    @functools.cached_property
    def _decorators(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = defaultdict(set)
        for qualname, node in _definitions(ast.parse("".join(self.lines)), ""):
            found[qualname] |= {_last_name(decorator) for decorator in node.decorator_list}
        return found

    def decorators(self, qualname: str) -> set[str]:
        """The last names of the decorators that are written above a def."""
        return self._decorators.get(qualname, set())

    def _package(self) -> str:
        spec = sys.modules[self.name].__spec__
        return "" if spec is None else spec.parent or ""


@functools.cache
def source_of(name: str) -> ModuleSource:
    """The source of an imported module; KeyError for one that is not imported."""
    return ModuleSource(name)


def nested_codes(code: CodeType) -> Iterator[CodeType]:
    """The codes inside of `code`, at any depth."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from nested_codes(constant)


def _code_of(name: str) -> CodeType | None:
    spec = getattr(sys.modules[name], "__spec__", None)
    get_code = getattr(getattr(spec, "loader", None), "get_code", None)
    try:
        code = None if get_code is None else get_code(name)
    except (ImportError, OSError, SyntaxError):
        return None
    return code if isinstance(code, CodeType) else None


def imports_of(code: CodeType, package: str) -> Iterator[tuple[str, str, str | None]]:
    """(name here, module, name there) of the import statements of a module's own level.

    code: of the module. package: the one that it is in.
    """
    before: list[object] = [None, None]
    module, names, taken = "", None, None
    for instruction in dis.get_instructions(code):
        operation = instruction.opname
        if operation == "IMPORT_NAME":
            level, names = before
            module, taken = _absolute(str(instruction.argval or ""), level, package), None
        elif operation == "IMPORT_FROM":
            taken = str(instruction.argval)
        elif operation == "STORE_NAME" and module:
            yield str(instruction.argval), module, taken if names else None
            module = module if names else ""
        elif operation == "POP_TOP" and names:
            module = ""
        before = [before[1], instruction.argval]


def _absolute(name: str, level: object, package: str) -> str:
    if not isinstance(level, int) or level == 0:
        return name
    return importlib.util.resolve_name("." * level + name, package)


def _definitions(
    tree: ast.AST, prefix: str
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            qualname = prefix + node.name
            yield qualname, node
            if isinstance(node, ast.ClassDef):
                yield from _definitions(node, qualname + ".")
        elif isinstance(node, ast.If | ast.Try):
            yield from _definitions(node, prefix)


def _last_name(decorator: ast.expr) -> str:
    if isinstance(decorator, ast.Call):
        decorator = decorator.func
    return decorator.attr if isinstance(decorator, ast.Attribute) else getattr(decorator, "id", "")
