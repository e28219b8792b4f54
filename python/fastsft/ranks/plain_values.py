"""Encoding of the values that ranks exchange. It carries only data, so that no peer can make a rank run code.

Containers, numbers, strings and bytes are pickled, and read by `runtime/plain_pickle.py`. Arrays, tensors,
paths and fastsft's own data classes are encoded as tuples whose first item is a tag.
"""

from __future__ import annotations

import dataclasses
import enum
import pickle
import sys
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from fastsft.runtime.plain_pickle import read_pickle

if TYPE_CHECKING:
    import torch

_MOST_BYTES = 1 << 36
_PLAIN = (type(None), bool, int, float, str, bytes)


@dataclasses.dataclass(frozen=True)
class Unsendable:
    """The substitute for a value that a rank could not encode. reason: the error message."""

    reason: str


def to_bytes(value: object) -> bytes:
    """Encode a value. TypeError, with the class name, for an object of an unsupported class."""
    return pickle.dumps(_encoded(value), protocol=4)


def from_bytes(data: bytes) -> Any:
    """Decode bytes that `to_bytes` returned. ValueError for any other bytes."""
    return _decoded(read_pickle(data, lambda _: None, most_bytes=_MOST_BYTES, most_opcodes=None))


def _encoded(value: Any) -> object:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is list:
        return [_encoded(item) for item in value]
    if kind is tuple:
        return ("tuple", [_encoded(item) for item in value])
    if kind in (set, frozenset):
        return (kind.__name__, [_encoded(item) for item in value])
    if isinstance(value, dict):
        return ("dict", [(_encoded(key), _encoded(item)) for key, item in value.items()])
    if isinstance(value, PurePath):
        return ("path", str(value))
    if isinstance(value, enum.Enum):
        return ("enum", *_class_name(kind), value.name)
    if isinstance(value, tuple) and kind.__module__.partition(".")[0] != "fastsft":
        return ("tuple", [_encoded(item) for item in value])  # such as torch.return_types.max
    if isinstance(value, tuple):  # a NamedTuple
        return ("named", *_class_name(kind), [_encoded(item) for item in value])
    if dataclasses.is_dataclass(value):
        fields = [(field.name, _encoded(getattr(value, field.name))) for field in dataclasses.fields(value)]
        return ("data", *_class_name(kind), fields)
    return (
        _encoded_base(value) if type(value).__module__ not in ("numpy", "torch") else _encoded_numbers(value)
    )


def _encoded_base(value: Any) -> object:
    """Encode an instance of a subclass of str, bytes, int, float or list as that base class."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bytes | int | float):
        base = next(kind for kind in (bytes, int, float) if isinstance(value, kind))
        return base(value)  # type: ignore[arg-type]
    if isinstance(value, list):
        return [_encoded(item) for item in value]
    return _encoded_numbers(value)


def _encoded_numbers(value: Any) -> object:
    import numpy as np
    import torch

    if isinstance(value, torch.dtype):
        return ("dtype", str(value).removeprefix("torch."))
    if isinstance(value, torch.Tensor):
        host = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
        content = host.reshape(-1).view(torch.uint8).numpy().tobytes()
        return ("tensor", str(host.dtype).removeprefix("torch."), list(host.shape), content)
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufcSU":
        is_scalar = isinstance(value, np.generic)
        return ("array", value.dtype.str, list(value.shape), value.tobytes(), is_scalar)
    raise TypeError(f"ranks cannot exchange a {type(value).__module__}.{type(value).__qualname__}")


def _class_name(kind: type) -> tuple[str, str]:
    _known_class(kind.__module__, kind.__qualname__)
    return kind.__module__, kind.__qualname__


def _known_class(module: object, name: object) -> Any:
    """Return the data class, NamedTuple or enum with this name from a loaded module of fastsft.

    TypeError for any other name.
    """
    loaded = sys.modules.get(str(module)) if str(module).partition(".")[0] == "fastsft" else None
    kind = vars(loaded).get(str(name)) if loaded is not None else None
    is_data = isinstance(kind, type) and (
        dataclasses.is_dataclass(kind)
        or issubclass(kind, enum.Enum)
        or (issubclass(kind, tuple) and hasattr(kind, "_fields"))
    )
    if not is_data:
        raise TypeError(f"ranks cannot exchange a {module}.{name}")
    return kind


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    if not isinstance(value, tuple):
        return value
    match value:
        case ("tuple", list(items)):
            return tuple(_decoded(item) for item in items)
        case ("set", list(items)):
            return {_decoded(item) for item in items}
        case ("frozenset", list(items)):
            return frozenset(_decoded(item) for item in items)
        case ("dict", list(items)):
            return {_decoded(key): _decoded(item) for key, item in items}
        case ("path", str(text)):
            return Path(text)
        case ("enum", module, name, str(member)):
            return _known_class(module, name)[member]
        case ("named", module, name, list(items)):
            return _known_class(module, name)._make(_decoded(item) for item in items)
        case ("data", module, name, list(fields)):
            return _data(_known_class(module, name), {key: _decoded(item) for key, item in fields})
        case _:
            return _decoded_numbers(value)


def _data(kind: type, values: dict[str, Any]) -> object:
    """Make an instance of a data class from its fields, without calling `__init__`, as pickle does."""
    made: object = object.__new__(kind)
    for field in dataclasses.fields(kind):
        object.__setattr__(made, field.name, values[field.name])
    return made


def _decoded_numbers(value: tuple[Any, ...]) -> Any:
    import numpy as np
    import torch

    match value:
        case ("dtype", str(name)):
            return _dtype(name)
        case ("tensor", str(name), list(shape), bytes(content)):
            flat = (
                torch.frombuffer(bytearray(content), dtype=torch.uint8)
                if content
                else torch.empty(0, dtype=torch.uint8)
            )
            return flat.view(_dtype(name)).reshape(shape)
        case ("array", str(name), list(shape), bytes(content), bool(is_scalar)):
            array = np.zeros(shape, np.dtype(name))
            if array.nbytes:
                array[...] = np.frombuffer(content, dtype=array.dtype).reshape(shape)
            return array[()] if is_scalar else array
        case _:
            raise ValueError("a peer sent a value of an unknown kind")


def _dtype(name: str) -> torch.dtype:
    import torch

    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"a peer sent the dtype {name[:50]!r}")
    return dtype
