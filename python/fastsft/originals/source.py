"""Reads code, imports, decorators and default values from a module's source file.

Scripts change modules in memory, but not their files.
"""

from __future__ import annotations

import ast
import dis
import functools
import importlib.util
import inspect
import sys
import textwrap
import tokenize
from collections import defaultdict
from collections.abc import Iterator, Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType

# stands for a value that cannot be known without running the file, such as a call's result
_UNKNOWN = object()


class ModuleSource:
    """The source file of an imported module, compiled once or read from the import system's cache.

    codes: code objects of the file's functions and classes by qualified name; several objects if a name is
    defined twice; empty for a module that is not written in Python.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.codes: dict[str, list[CodeType]] = defaultdict(list)
        self._code = _code_of(name)
        if self._code is not None:
            for code in nested_codes(self._code):
                self.codes[code.co_qualname].append(code)

    def defines(self, qualname: str) -> bool:
        """Return True if the file has a def with this qualified name."""
        return any(code.co_flags & inspect.CO_OPTIMIZED for code in self.codes.get(qualname, ()))

    def defines_class(self, qualname: str) -> bool:
        """Return True if the file has a class with this qualified name."""
        return any(not code.co_flags & inspect.CO_OPTIMIZED for code in self.codes.get(qualname, ()))

    def holds(self, code: CodeType) -> bool:
        """Return True if the file has exactly this code object."""
        return code in self.codes.get(code.co_qualname, ())

    @functools.cached_property
    def imports(self) -> dict[str, list[tuple[str, str | None]]]:
        """Pairs (module, name in the module) for each imported name; the name is None for a whole module."""
        found: dict[str, list[tuple[str, str | None]]] = defaultdict(list)
        for bound, module, name in [] if self._code is None else imports_of(self._code, self._package()):
            found[bound].append((module, name))
        return found

    @functools.cached_property
    def lines(self) -> list[str]:
        """The lines of the file; empty if there is no file."""
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
        """Return a definition's decorator names, without module names."""
        return self._decorators.get(qualname, set())

    def _package(self) -> str:
        spec = sys.modules[self.name].__spec__
        return "" if spec is None else spec.parent or ""


@functools.cache
def source_of(name: str) -> ModuleSource:
    """Return the source of an imported module; KeyError if the module is not imported."""
    return ModuleSource(name)


def nested_codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the code objects inside `code`, at any depth."""
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
    """Yield (bound name, module, name in the module) for the import statements at module level.

    code: code of the module. package: package of the module.
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


def names_in(module: str) -> set[str]:
    """Return all names in the functions of a transformers module, without importing the module."""
    code = _compiled(module)
    functions = [] if code is None else nested_codes(code)
    return {name for part in functions if part.co_flags & inspect.CO_OPTIMIZED for name in part.co_names}


def imported_by(module: str) -> Iterator[tuple[str, str]]:
    """Yield (module, name) for each name that `module` imports from transformers modules in memory."""
    for _, home, name in _written_imports(module):
        loaded = sys.modules.get(home)
        if name is not None and home.startswith("transformers.") and name in vars(loaded or object):
            yield home, name


@functools.cache
def _written_imports(module: str) -> tuple[tuple[str, str, str | None], ...]:
    code = _compiled(module)
    return () if code is None else tuple(imports_of(code, module.rpartition(".")[0]))


@functools.cache
def _compiled(module: str) -> CodeType | None:
    """Compile a transformers module without running it; None if it is not installed."""
    spec = importlib.util.find_spec("transformers")
    folders = (spec.submodule_search_locations if spec is not None else None) or []
    for folder in folders:
        path = Path(folder, *module.split(".")[1:]).with_suffix(".py")
        if path.is_file():
            try:
                return SourceFileLoader(module, str(path)).get_code(module)
            except (ImportError, OSError, SyntaxError):
                return None
    return None


def has_written_defaults(function: FunctionType, module: str) -> bool:
    """Return True if the function's default values equal those of its definition in `module`'s file.

    Only defaults that are literals or names are compared; lambdas are not checked. An imported name has the
    value that it has in the module it is imported from, even if a script has replaced the name in `module`.
    """
    written = _arguments(module, function.__code__.co_firstlineno)
    if written is None or function.__code__.co_name == "<lambda>":
        return True
    names, values = _Names(function.__globals__, module), function.__defaults__ or ()
    by_name = function.__kwdefaults__ or {}
    expected = {
        argument.arg: node
        for argument, node in zip(written.kwonlyargs, written.kw_defaults, strict=True)
        if node is not None
    }
    return (
        len(values) == len(written.defaults)
        and by_name.keys() == expected.keys()
        and all(map(lambda node, value: _agrees(node, value, names), written.defaults, values))
        and all(_agrees(node, by_name[name], names) for name, node in expected.items())
    )


@functools.cache
def _arguments(module: str, line: int) -> ast.arguments | None:
    """Return the parameters of the definition whose first line (or decorator) is `line`; else None."""
    text = _header(source_of(module).lines[line - 1 :])
    for ending in ("", "\n pass"):
        try:
            found = ast.parse(textwrap.dedent(text).rstrip() + ending).body
        except SyntaxError:
            continue
        if len(found) == 1 and isinstance(found[0], ast.FunctionDef | ast.AsyncFunctionDef):
            return found[0].args
    return None


def _header(lines: list[str]) -> str:
    """Return the decorators and the signature of the function definition at the start of `lines`."""
    is_inside = False
    try:
        for token in tokenize.generate_tokens(iter(lines).__next__):
            is_inside = is_inside or token.string == "def"
            if is_inside and token.type == tokenize.NEWLINE:
                return "".join(lines[: token.end[0]])
    except (tokenize.TokenError, SyntaxError, StopIteration):
        pass
    return ""


class _Names:
    """The values that names in a source file have."""

    def __init__(self, now: Mapping[str, object], module: str) -> None:
        self._now, self._imports = now, source_of(module).imports

    def get(self, name: str) -> object:
        """Return `name`'s value; _UNKNOWN if the name has no value."""
        for home, original in self._imports.get(name, ()):
            there = vars(sys.modules.get(home, object))
            if original in there:
                return there[original]
        return self._now.get(name, _UNKNOWN)


def _agrees(node: ast.expr, value: object, names: _Names) -> bool:
    expected = _value(node, names)
    if expected is _UNKNOWN or expected is value:
        return True
    return type(expected) is type(value) and bool(expected == value)


def _value(node: ast.expr, names: _Names) -> object:
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = _value(node.value, names)
        return _UNKNOWN if owner is _UNKNOWN else getattr(owner, node.attr, _UNKNOWN)
    try:
        return ast.literal_eval(node)
    except ValueError:
        return _UNKNOWN
