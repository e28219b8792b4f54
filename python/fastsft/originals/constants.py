"""Plain values in the body of a class, as its file writes them."""

from __future__ import annotations

import dis
import functools
import sys
from collections.abc import Iterator
from types import CodeType

from fastsft.originals.classes import Method, is_class_of
from fastsft.originals.source import source_of

_ABSENT = object()


def changed_constants(kind: type, package: str) -> Iterator[Method]:
    """Attributes of `kind` and its bases in `package` that hold another number, text, truth value or None.

    Private names and what dataclasses make of fields are left out.
    """
    for owner in kind.__mro__:
        if not is_class_of(owner, package) or "__dataclass_fields__" in vars(owner):
            continue
        for name, written in _constants(owner.__module__, owner.__qualname__).items():
            value = vars(owner).get(name, _ABSENT)
            if type(value) is not type(written) or value != written:
                yield Method(
                    f"{owner.__module__}.{owner.__qualname__}.{name}", None if value is _ABSENT else value
                )


@functools.cache
def _constants(module: str, qualname: str) -> dict[str, object]:
    assert module in sys.modules
    codes = source_of(module).codes.get(qualname, [])
    return _stored(codes[0]) if len(codes) == 1 else {}


def _stored(code: CodeType) -> dict[str, object]:
    """Names that get a constant; not those that get something else as well."""
    found: dict[str, object] = {}
    others: set[str] = set()
    before: dis.Instruction | None = None
    for instruction in dis.get_instructions(code):
        if instruction.opname == "STORE_NAME":
            name = str(instruction.argval)
            if (
                before is not None
                and before.opname == "LOAD_CONST"
                and not isinstance(before.argval, CodeType)
            ):
                found[name] = before.argval
            else:
                others.add(name)
        before = instruction
    return {name: value for name, value in found.items() if name not in others and name[0] != "_"}
