"""Check what scripts pass to the package's functions, and explain calls with names that a function lacks."""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

from fastsft.runtime.near_names import nearest_text

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")
_UNKNOWN = re.compile(r"unexpected keyword argument '(\w+)'")


def check_path(value: object, where: str, way: str) -> None:
    """Raise TypeError unless `value` is a path. where: begins the message. way: the way out."""
    if not isinstance(value, str | os.PathLike):
        raise TypeError(f"{where}: expected a path, got {value!r:.60}; {way}")


def check_has(value: object, names: Iterable[str], where: str, expected: str, way: str) -> None:
    """Raise TypeError unless `value` has the attributes `names`. where, expected, way: for the message."""
    if not all(hasattr(value, name) for name in names):
        raise TypeError(f"{where}: expected {expected}, got {value!r:.60}; {way}")


def check_tokenizer_type(tokenizer: object, where: str = "tokenizer") -> None:
    """Raise TypeError for an object that cannot be a tokenizer, such as None or the name of a model."""
    check_has(
        tokenizer, ("model_max_length", "pad_token_id"), where, "a tokenizer",
        "fastsft.Tokenizer.from_pretrained(DIR) makes one, and so does transformers' AutoTokenizer",
    )  # fmt: skip


def can_be_iterated(value: object) -> bool:
    """True if a loop can go over `value`, such as a list or an object with items by number."""
    return hasattr(value, "__iter__") or hasattr(value, "__getitem__")


def check_records(records: object, where: str) -> None:
    """Raise TypeError for an object that cannot be a list of records, such as the name of a file."""
    if isinstance(records, str | bytes | os.PathLike) or not can_be_iterated(records):
        raise TypeError(
            f"{where}: expected a list of records, got {records!r:.60}; json.load reads a file, and so does "
            "make_supervised_data_module(tokenizer, DataArguments(data_path=...))"
        )


def explain_missing(owner: object, name: str, way: str) -> object:
    """Raise AttributeError for a name that `owner` does not have. Called by a `__getattr__`.

    If the class has the name, a property has raised an AttributeError of its own, which is raised again.
    """
    if hasattr(type(owner), name):
        return object.__getattribute__(owner, name)
    raise AttributeError(f"{type(owner).__name__!r} object has no attribute {name!r}; {way}")


def explained_call(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Return `function` with a TypeError for wrong arguments that names the arguments it takes."""

    @functools.wraps(function)
    def call(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            trace = error.__traceback__
            if trace is None or trace.tb_next is not None:  # raised inside of the function
                raise
            raise TypeError(f"{error}{_way_of_call(function, str(error))}") from None

    return call


def _way_of_call(function: Callable[..., object], message: str) -> str:
    names = [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]
    unknown = _UNKNOWN.search(message)
    near = nearest_text(unknown[1], names) if unknown else ""
    return f"{near}; it takes {', '.join(names)}"
