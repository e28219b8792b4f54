"""python/fastsft/_C.pyi names everything that the extension offers, and every argument has a name."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

from fastsft import _C

STUB = Path(__file__).parents[1] / "python" / "fastsft" / "_C.pyi"


def names_in_stub(body: list[ast.stmt], prefix: str = "") -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield prefix + node.name
            yield from names_in_stub(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            yield prefix + node.name
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield prefix + node.target.id


def public_members(owner: object) -> Iterator[tuple[str, object]]:
    return ((name, value) for name, value in vars(owner).items() if not name.startswith("_"))


def names_in_module() -> Iterator[tuple[str, object]]:
    for name, value in public_members(_C):
        yield name, value
        if inspect.isclass(value):
            yield from ((f"{name}.{member}", each) for member, each in public_members(value))
            yield f"{name}.__init__", value.__init__


def test_stub_names_everything() -> None:
    stubbed = set(names_in_stub(ast.parse(STUB.read_text()).body))
    missing = {name for name, _ in names_in_module() if not name.endswith("__init__")} - stubbed
    assert not missing, f"not in {STUB.name}: {sorted(missing)}; run scripts/make_stub.py"


def test_stub_names_nothing_that_is_gone() -> None:
    stubbed = {name for name in names_in_stub(ast.parse(STUB.read_text()).body) if "__" not in name}
    gone = stubbed - {name for name, _ in names_in_module()}
    assert not gone, f"in {STUB.name}, but not in the extension: {sorted(gone)}; run scripts/make_stub.py"


def test_every_argument_has_a_name() -> None:
    nameless = [
        name for name, value in names_in_module() if re.search(r"\barg\d+:", inspect.getdoc(value) or "")
    ]
    assert not nameless, f"bindings without py::arg: {nameless}"
