"""Every argument as a row, read from the classes: what `fastsft args` prints and docs/arguments.md holds."""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Iterable
from functools import cache
from typing import Literal, Union, get_args, get_origin, get_type_hints

from fastsft.arguments.data import DataArguments
from fastsft.arguments.lora import LoraArguments
from fastsft.arguments.model import ModelArguments
from fastsft.arguments.support import default_of, meaning_of
from fastsft.arguments.training import TrainingArguments


@dataclasses.dataclass(frozen=True)
class ArgumentRow:
    """One argument: its subject, name, type, default, treatment, meaning, and what else to know."""

    subject: str
    name: str
    type: str
    default: object
    treatment: str
    meaning: str
    remark: str

    @property
    def flag(self) -> str:
        """As one types it; the name alone of what is no flag."""
        return self.name if self.name.startswith("_") else f"--{self.name}"


def argument_rows() -> list[ArgumentRow]:
    """All arguments: ModelArguments, DataArguments, then TrainingArguments subject by subject."""
    return [row for kind in _subjects() for row in _rows_of(kind)]


@cache
def class_of_fields() -> dict[str, str]:
    """Name of each field -> that of the class that declares it."""
    return {field.name: kind.__name__ for kind in _subjects() for field in dataclasses.fields(kind)}


def _subjects() -> list[type]:
    training = [base for base in reversed(TrainingArguments.__mro__[1:]) if _has_fields(base)]
    return [ModelArguments, DataArguments, LoraArguments, *training]


def _has_fields(kind: type) -> bool:
    """Of its own: a class derived from dataclasses is no subject."""
    return "__dataclass_fields__" in vars(kind)


def _rows_of(kind: type) -> Iterable[ArgumentRow]:
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        meaning = meaning_of(field)
        treatment, remark = meaning.treatment, meaning.remark
        if not field.init:
            treatment, remark = "NO-OP", "no flag: set by the launch"
        yield ArgumentRow(
            subject=str(kind.__doc__).rstrip("."),
            name=field.name,
            type=type_name(hints[field.name]),
            default=default_of(field),
            treatment=treatment,
            meaning=str(meaning),
            remark=remark,
        )


def type_name(hint: object) -> str:
    """A type as a person reads it: `int or None`, `a | b | c` for choices."""
    if get_origin(hint) in (Union, types.UnionType):
        members = [type_name(member) for member in get_args(hint) if member is not type(None)]
        return " or ".join([*members, "none"]) if type(None) in get_args(hint) else " or ".join(members)
    if get_origin(hint) is Literal:
        return ", ".join(map(str, get_args(hint)))
    if get_origin(hint) is list:
        return f"list of {type_name(get_args(hint)[0])}"
    return "object" if get_origin(hint) is dict else str(getattr(hint, "__name__", hint))


def as_json(rows: Iterable[ArgumentRow]) -> str:
    """A list of objects."""
    return json.dumps([dataclasses.asdict(row) for row in rows], indent=2)


def as_markdown(rows: Iterable[ArgumentRow]) -> str:
    """A table a subject."""
    lines: list[str] = []
    subject = None
    for row in rows:
        if row.subject != subject:
            subject = row.subject
            lines += [
                "", f"## {subject}", "", "| argument | type | default | | meaning |", "|---|---|---|---|---|",
            ]  # fmt: skip
        remark = f" ({row.remark})" if row.remark else ""
        cells = [f"`{row.flag}`", row.type, _shown(row.default), row.treatment, f"{row.meaning}{remark}"]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines).strip("\n") + "\n"


def as_text(rows: Iterable[ArgumentRow]) -> str:
    """Two lines an argument, for a terminal."""
    lines = []
    for row in rows:
        default = _shown(row.default)
        lines.append(f"{row.flag}  {row.type}; default {default}; {row.treatment}")
        lines.append(f"    {row.meaning}" + (f"; {row.remark}" if row.remark else ""))
    return "\n".join(lines) + "\n"


def _shown(default: object) -> str:
    if default is None:
        return "none"
    return json.dumps(default) if default in ("", []) else str(default)
