"""Declaration of an argument: its default, its meaning, and what fastsft makes of it.

IMPLEMENT has its effect; NO-OP is parsed, kept and named once; REJECT has its neutral value or raises.
Source: docs/spec/trainer_arguments.md, section 1.1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, TypeVar

from fastsft.arguments.parsing.field_action import FieldAction

T = TypeVar("T")
Treatment = Literal["IMPLEMENT", "NO-OP", "REJECT"]


class Meaning(str):
    """The help text of a field, with its treatment.

    A string, since HfArgumentParser hands all metadata of a field to argparse, which knows `help` only.
    """

    treatment: Treatment
    remark: str
    neutral: tuple[object, ...]
    quiet: bool

    def __new__(
        cls,
        text: str,
        treatment: Treatment = "IMPLEMENT",
        remark: str = "",
        neutral: tuple[object, ...] = (),
        quiet: bool = False,
    ) -> Meaning:
        made = super().__new__(cls, text)
        made.treatment, made.remark, made.neutral, made.quiet = treatment, remark, neutral, quiet
        return made

    def __getnewargs__(self) -> tuple[Any, ...]:
        return str(self), self.treatment, self.remark, self.neutral, self.quiet


def used(default: T, text: str, remark: str = "") -> T:
    """A field that has its effect. `text`: its meaning; `remark`: limits, for the table of arguments."""
    return _field(default, Meaning(text, "IMPLEMENT", remark))


def inert(
    default: T, text: str, why: str, *, only: tuple[object, ...] | None = None, quiet: bool = False
) -> T:
    """A field without effect, because `why`. `only`: the values that are allowed; others raise ValueError.

    `quiet`: not worth a warning, since it is part of every recipe.
    """
    treatment: Treatment = "NO-OP"
    return _field(default, Meaning(text, treatment, why, only or (), quiet))


def refused(default: T, text: str, instead: str, *, neutral: tuple[object, ...] = ()) -> T:
    """A field that raises unless it has its default, None, False, "" or a value of `neutral`."""
    return _field(default, Meaning(text, "REJECT", instead, (*neutral, default, None, False, "")))


def _field(default: T, meaning: Meaning) -> T:
    metadata: dict[str, Any] = {"help": meaning}
    if default is not True:  # HfArgumentParser would hand the action to its --no_ flag, too
        metadata["action"] = FieldAction
    if isinstance(default, list):
        factory: Callable[[], Any] = default.copy
        listed: T = dataclasses.field(default_factory=factory, metadata=metadata)
        return listed
    return dataclasses.field(default=default, metadata=metadata)


def default_of(field: dataclasses.Field[Any]) -> object:
    """The default of a field, made when it is mutable; None for a field that has none."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None if field.default is dataclasses.MISSING else field.default


def meaning_of(field: dataclasses.Field[Any]) -> Meaning:
    """Meaning of a field. One that a script declared itself has the treatment of any that is used."""
    text = field.metadata.get("help") or ""
    return text if isinstance(text, Meaning) else Meaning(str(text))
