"""Declares arguments: default, help text, and whether fastsft supports, ignores or rejects the argument.

A supported argument has an effect. An ignored argument is parsed and kept as an
attribute; a single warning says that the argument has no effect. A rejected argument raises ValueError unless
its value is neutral. The rules are in docs/spec/trainer_arguments.md, section 1.1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

from fastsft.arguments.parsing.options import FieldAction, WordsAction
from fastsft.arguments.values import check_choice, checked_value, without_enums
from fastsft.runtime.messages import warn_once

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")


class Support(StrEnum):
    """Treatment of an argument.

    The values are the specification's words, and `fastsft args` prints them.
    """

    SUPPORTED = "IMPLEMENT"
    IGNORED = "NO-OP"
    REJECTED = "REJECT"


class ArgSupport(str):
    """Help text of a field, which also has the field's treatment.

    The class is a string, because HfArgumentParser passes a field's metadata to argparse, which accepts only
    `help`.
    """

    treatment: Support
    remark: str
    neutral: tuple[object, ...]
    quiet: bool

    def __new__(
        cls,
        text: str,
        treatment: Support = Support.SUPPORTED,
        remark: str = "",
        neutral: tuple[object, ...] = (),
        quiet: bool = False,
    ) -> ArgSupport:
        made = super().__new__(cls, text)
        made.treatment, made.remark, made.neutral, made.quiet = treatment, remark, neutral, quiet
        return made

    def __getnewargs__(self) -> tuple[Any, ...]:
        return str(self), self.treatment, self.remark, self.neutral, self.quiet


def supported(default: T, text: str, remark: str = "") -> T:
    """Declare a supported field.

    text: help text. remark: limits, for the argument table.
    """
    return _field(default, ArgSupport(text, remark=remark))


def several_words(declared: T) -> T:
    """Let the flag of a field `list[str] | str | None` take several words; HfArgumentParser follows, too."""
    assert isinstance(declared, dataclasses.Field)
    metadata = {**declared.metadata, "action": WordsAction, "nargs": "+"}
    default: Any = declared.default
    made: T = dataclasses.field(default=default, metadata=metadata)
    return made


def ignored(
    default: T, text: str, why: str, *, only: tuple[object, ...] | None = None, quiet: bool = False
) -> T:
    """Declare a field without effect.

    why: the reason, for the warning. only: the allowed values, if other values raise ValueError. quiet: True
    to give no warning, because example scripts and recipes set the flag.
    """
    return _field(default, ArgSupport(text, Support.IGNORED, why, only or (), quiet))


def rejected(default: T, text: str, instead: str, *, neutral: tuple[object, ...] = ()) -> T:
    """Declare a field that raises ValueError unless it is the default, None, False, "" or in `neutral`.

    instead: the alternative that the message names.
    """
    return _field(default, ArgSupport(text, Support.REJECTED, instead, (*neutral, default, None, False, "")))


def _field(default: T, support: ArgSupport) -> T:
    metadata: dict[str, Any] = {"help": support}
    if default is not True:  # HfArgumentParser would use this action for the --no_ flag, too
        metadata["action"] = FieldAction
    if isinstance(default, list):
        factory: Callable[[], Any] = default.copy
        listed: T = dataclasses.field(default_factory=factory, metadata=metadata)
        return listed
    return dataclasses.field(default=default, metadata=metadata)


def default_of(field: dataclasses.Field[Any]) -> object:
    """Return a field's default, as a new object if it is mutable; None if the field has no default."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None if field.default is dataclasses.MISSING else field.default


def support_of(field: dataclasses.Field[Any]) -> ArgSupport:
    """Return the declared support of a field. A field that a script's own class adds counts as supported."""
    text = field.metadata.get("help") or ""
    return text if isinstance(text, ArgSupport) else ArgSupport(str(text))


def apply_support(args: object, declared: type[DataclassInstance]) -> None:
    """Convert values to their fields' types, and warn about ignored fields.

    declared: the class that declares fastsft's fields. A subclass may declare a field again, but the field's
    meaning and treatment stay. ValueError for rejected and invalid values.
    """
    for field in dataclasses.fields(declared):
        if not field.init:
            continue
        support = support_of(field)
        value = without_enums(getattr(args, field.name))
        if support.treatment is Support.REJECTED:
            value = _converted_if_possible(declared, field.name, value)
        elif support.treatment is Support.SUPPORTED or value is not None:
            value = checked_value(declared, field.name, value)
        setattr(args, field.name, value)
        check_choice(declared, field.name, value)
        if support.treatment is Support.SUPPORTED or value == default_of(field):
            continue
        if support.neutral and not any(
            type(value) is type(item) and value == item for item in support.neutral
        ):
            raise ValueError(rejection(field.name, value, support.remark))
        if support.treatment is Support.IGNORED and not support.quiet:
            warn_once(f"--{field.name} has no effect: {support.remark}")


def _converted_if_possible(declared: type, name: str, value: object) -> object:
    """Convert a value, such as "False" to False; return an invalid value unchanged, for the error message."""
    try:
        return checked_value(declared, name, value)
    except ValueError:
        return value


def rejection(name: str, value: object, remark: str) -> str:
    """Return the error message about a value that fastsft does not support. remark: the alternative."""
    shown = "" if value is True else f" {value}"
    return f"fastsft does not support --{name}{shown}; {remark}"
