"""Read torch.save files as data: memory-mapped tensors, numbers, texts and containers.

`torch.load` passes TorchScript archives to torch.jit.load, which runs code from the archive. Even with
`weights_only=True` it calls every class that a package has marked as safe. This reader supports only
torch.save's zip format, and makes the tensors itself.
"""

from __future__ import annotations

import contextlib
import math
import os
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from io import RawIOBase
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeGuard, cast

from fastsft.runtime.plain_pickle import MOST_BYTES, Inert, Maker, Names, PlainPickleError, read_pickle
from fastsft.runtime.regular_files import open_regular

if TYPE_CHECKING:
    import torch

_MOST_DIRECTORY_BYTES = 16 << 20  # enough for about 150,000 storages
_LOCAL_HEADER_BYTES = 30
_MOST_DIMENSIONS = 64
_MOST_REPEATED = 1 << 20


def read_archive(
    path: str | Path, names: Names | None = None, begin: int = 0, length: int | None = None
) -> Any:
    """Read the object in a torch.save file. Its tensors are on the CPU and mapped from the file.

    names: returns the Makers and values for names that tensors do not need; see `read_pickle`. begin, length:
    position of the archive in the file, in bytes. ValueError, without the path, if the file is anything else;
    none of its code has run by then.
    """
    with open_regular(path, "a file of torch.save") as file:
        size = os.fstat(file.fileno()).st_size
        length = size - begin if length is None else length
        if begin < 0 or length < 0 or begin + length > size:
            raise ValueError(f"expected {length} bytes from byte {begin} on, the file has {size}")
        part = _Part(file, begin, length)
        with _plain_errors():
            records = _Records(part)
            part.most = MOST_BYTES
            content = records.content("data.pkl", MOST_BYTES)
            if records.content("byteorder", 16, b"little") != b"little":
                raise PlainPickleError("its numbers have another byte order")
            storages = _Storages(path, size, begin, records)
            return read_pickle(content, storages.names(names), storages.storage)


@contextlib.contextmanager
def _plain_errors() -> Iterator[None]:
    try:
        yield
    except (zipfile.BadZipFile, NotImplementedError, EOFError) as error:
        raise ValueError(
            f"not a zip archive of torch.save ({error}); files older than torch 1.6 have to be saved again"
        ) from error


class _Part(RawIOBase):
    """A part of a file, as a file object. most: the most bytes that a single read may request."""

    def __init__(self, file: BinaryIO, begin: int, length: int) -> None:
        self._file, self._begin, self._length, self._at = file, begin, length, 0
        self.most = _MOST_DIRECTORY_BYTES

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._length}[whence]
        if start + offset < 0:
            raise OSError("negative seek")  # zipfile expects the error of files
        self._at = start + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._length - self._at)
        size = left if size is None or size < 0 else min(size, left)
        if size > self.most:
            raise PlainPickleError(f"its directory claims {size} bytes")
        self._file.seek(self._begin + self._at)
        data = self._file.read(size)
        self._at += len(data)
        return data


class _Records:
    """The records of an archive. They must be uncompressed, and their names must be unique."""

    def __init__(self, part: _Part) -> None:
        self._part = part
        infos = zipfile.ZipFile(part).infolist()
        self._infos: dict[str, zipfile.ZipInfo] = {}
        for info in infos:
            name = info.filename.partition("/")[2]
            if name in self._infos:
                raise PlainPickleError(f"two records have the name {info.filename[:200]!r}")
            self._infos[name] = info
        if "constants.pkl" in self._infos or any(name.startswith("code/") for name in self._infos):
            raise PlainPickleError("it is a TorchScript archive, which holds code")

    def place(self, name: str) -> tuple[int, int]:
        """Return the offset of a record's content in the archive, and its size, both in bytes."""
        info = self._infos.get(name)
        if info is None:
            raise PlainPickleError(f"it has no record {name[:200]!r}")
        if (
            info.compress_type != zipfile.ZIP_STORED
            or info.flag_bits & 1
            or info.compress_size != info.file_size
        ):
            raise PlainPickleError(f"the record {name!r} is packed or encrypted")
        self._part.seek(info.header_offset)
        header = self._part.read(_LOCAL_HEADER_BYTES)
        if len(header) < _LOCAL_HEADER_BYTES or header[:4] != b"PK\3\4":
            raise PlainPickleError(f"the record {name!r} has no header")
        begin = (
            info.header_offset
            + _LOCAL_HEADER_BYTES
            + sum(int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
        )
        if begin + info.file_size > self._part.seek(0, os.SEEK_END):
            raise PlainPickleError(f"the record {name!r} goes beyond the file's end")
        return begin, info.file_size

    def content(self, name: str, most: int, default: bytes | None = None) -> bytes:
        """Return a record's bytes, at most `most`. default: the result if there is no such record."""
        if default is not None and name not in self._infos:
            return default
        begin, size = self.place(name)
        if size > most:
            raise PlainPickleError(f"the record {name!r} has {size} bytes, expected at most {most}")
        self._part.seek(begin)
        return self._part.read(size)


@dataclass
class _Storage:
    """The bytes of a storage. dtype: its elements' dtype; None if each tensor names its own dtype."""

    data: torch.UntypedStorage
    dtype: torch.dtype | None

    def aligned(self, itemsize: int) -> torch.UntypedStorage:
        """Return the bytes at a multiple of `itemsize` in memory. Unaligned bytes are copied once."""
        if self.data.data_ptr() % itemsize:
            self.data = self.data.clone()  # type: ignore[no-untyped-call]
        return self.data


class _Storages:
    """The storages of an archive. The mapping is private, so writes to a tensor never reach the file."""

    def __init__(self, path: str | Path, file_size: int, begin: int, records: _Records) -> None:
        self._path, self._file_size, self._begin, self._records = path, file_size, begin, records
        self._known: dict[str, _Storage] = {}
        self._whole: torch.UntypedStorage | None = None

    def names(self, more: Names | None) -> Names:
        own = tensor_names()
        return lambda name: (None if more is None else more(name)) or own.get(name)

    def storage(self, identity: object) -> object:
        """Return the mapped storage for a persistent id ("storage", kind, key, location, element count)."""
        import torch

        match identity:
            case ("storage", _StorageKind(dtype), str(key), str(), int()):
                pass
            case _:
                raise PlainPickleError("a persistent id is not that of a storage")
        if (earlier := self._known.get(key)) is not None:
            return earlier
        begin, size = self._records.place(f"data/{key}")
        begin += self._begin
        if self._whole is None:
            self._whole = cast(
                "torch.UntypedStorage",
                torch.UntypedStorage.from_file(str(self._path), False, self._file_size),
            )
        mapped = _Storage(self._whole[begin : begin + size], dtype)
        self._known[key] = mapped
        return mapped


@dataclass(frozen=True)
class _StorageKind:
    dtype: torch.dtype | None


# torch names the element type of a storage by a legacy class.
_STORAGE_KINDS = {
    "DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16", "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16",
    "CharStorage": "int8", "ByteStorage": "uint8", "BoolStorage": "bool", "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
}  # fmt: skip


@cache
def tensor_names() -> dict[str, object]:
    """Return the Makers and values for all names that pickled tensors need, by name."""
    import torch

    dtypes = {str(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    kinds = {
        f"torch.{name}": _StorageKind(dtypes[f"torch.{dtype}"]) for name, dtype in _STORAGE_KINDS.items()
    }
    return (
        dtypes
        | kinds
        | {
            "torch.storage.UntypedStorage": _StorageKind(None),
            "torch._utils._rebuild_tensor_v2": Maker(_tensor),
            "torch._utils._rebuild_tensor_v3": Maker(_typed_tensor),
            "torch._utils._rebuild_parameter": Maker(_parameter),
            "torch._utils._rebuild_parameter_with_state": Maker(_parameter),
            "torch._tensor._rebuild_from_type_v2": Maker(_tensor_with_attributes),
            "torch.Tensor": _PLAIN_CLASS,
            "torch.nn.parameter.Parameter": _PLAIN_CLASS,
            "torch.Size": Maker(_size),
            "torch.device": Maker(Inert),
            "torch.serialization._get_layout": Maker(Inert),
            "collections.OrderedDict": Maker(_dictionary),
            "collections.Counter": Maker(_counter),  # used by MultiStepLR
            "_codecs.encode": Maker(_latin),
        }
    )


def _dictionary() -> dict[object, object]:
    """Make an empty dictionary; pickles add its items afterwards."""
    return {}


def _counter(counts: object = None) -> object:
    """Return the counts of a Counter as a dictionary."""
    return counts if type(counts) is dict else {}


def _latin(text: object, encoding: object) -> bytes:
    """Return the bytes that pickle protocol 2 has written as Latin-1 text."""
    if not isinstance(text, str) or encoding != "latin1":
        raise PlainPickleError("bytes are not written as Latin-1")
    return text.encode("latin1")


def _size(sizes: object) -> tuple[int, ...]:
    if not _are_counts(sizes):
        raise PlainPickleError("a size is no tuple of numbers")
    return tuple(sizes)


def _parameter(data: object, *_: object) -> object:
    """Return a parameter's tensor; its gradient flag and hooks are dropped."""
    import torch

    if not isinstance(data, torch.Tensor):
        raise PlainPickleError("a parameter has no tensor")
    return data


_PLAIN_CLASS = object()


def _tensor_with_attributes(make: object, kind: object, arguments: object, _: object) -> object:
    """Make a tensor that was saved with Python attributes. The attributes are dropped."""
    if kind is not _PLAIN_CLASS or not isinstance(make, Maker):
        raise PlainPickleError("a tensor is of a class that is not torch's own")
    return _parameter(make(arguments))


def _tensor(storage: object, offset: object, size: object, stride: object, *rest: object) -> torch.Tensor:
    """Make a tensor. Its gradient flag, hooks and metadata are dropped.

    offset, stride: in elements.
    """
    if not isinstance(storage, _Storage) or storage.dtype is None:
        raise PlainPickleError("a tensor has no storage of a known type")
    _check_values(rest)
    return _view(storage, storage.dtype, offset, size, stride)


def _typed_tensor(
    storage: object, offset: object, size: object, stride: object, _: object, __: object, dtype: object,
    *rest: object,
) -> torch.Tensor:  # fmt: skip
    """Make a tensor whose dtype, such as float8 or uint16, is not that of its storage."""
    import torch

    if not isinstance(storage, _Storage) or not isinstance(dtype, torch.dtype):
        raise PlainPickleError("a tensor has no storage or no dtype")
    _check_values(rest)
    return _view(storage, dtype, offset, size, stride)


def _check_values(rest: tuple[object, ...]) -> None:
    """Raise PlainPickleError if the tensor is a conjugated or negated view of its storage."""
    if any(isinstance(item, dict) and ("conj" in item or "neg" in item) for item in rest):
        raise PlainPickleError("a tensor is a conjugated or negated view; save its resolved values")


def _view(storage: _Storage, dtype: torch.dtype, offset: Any, size: Any, stride: Any) -> torch.Tensor:
    import torch

    if (
        not _are_counts(size)
        or not _are_counts(stride)
        or not _are_counts((offset,))
        or len(size) != len(stride)
    ):
        raise PlainPickleError("a tensor's offset, size or stride are not numbers from 0 on")
    count = math.prod(size)
    held = storage.data.nbytes() // dtype.itemsize
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    # An expanded dimension (stride 0) takes no storage, so a copy of the tensor could have any size.
    if count and (count > max(held, _MOST_REPEATED) or last >= held):
        raise PlainPickleError(
            f"a tensor of size {list(size)[:8]} needs {max(count, last + 1)} elements, its storage has {held}"
        )
    return torch.empty(0, dtype=dtype).set_(storage.aligned(dtype.itemsize), offset, size, stride)


def _are_counts(values: object) -> TypeGuard[tuple[int, ...] | list[int]]:
    """True for at most 64 integers from 0 to 2^62."""
    return (
        isinstance(values, tuple | list)
        and len(values) <= _MOST_DIMENSIONS
        and all(type(value) is int and 0 <= value < 1 << 62 for value in values)
    )
