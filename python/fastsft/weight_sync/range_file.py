"""Safetensors files written at offsets, by one process or several."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_METADATA = "__metadata__"
_SAFETENSORS = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "float8_e5m2": "F8_E5M2", "float8_e4m3fn": "F8_E4M3",
    "float8_e8m0fnu": "F8_E8M0", "int16": "I16", "uint16": "U16", "float16": "F16", "bfloat16": "BF16",
    "int32": "I32", "uint32": "U32", "float32": "F32", "float64": "F64", "int64": "I64",
}  # fmt: skip


def header(
    tensors: Sequence[tuple[str, str, Sequence[int]]], sizes: Sequence[int], metadata: dict[str, str]
) -> tuple[bytes, list[int]]:
    """The first bytes of a file with these tensors, and where in the file each begins.

    Computed once from the real layout: the data begins where the header ends, whatever its length. ValueError
    for a tensor with the name that the format keeps for itself.
    """
    if any(name == _METADATA for name, _, _ in tensors):
        raise ValueError(
            f"a tensor is called {_METADATA}, which safetensors keeps for itself; rename it, or save with "
            'format="verl_pt"'
        )
    entries: dict[str, Any] = {_METADATA: {"format": "pt", **metadata}}
    begin = 0
    begins = []
    for (name, dtype, shape), size in zip(tensors, sizes, strict=True):
        offsets = [begin, begin + size]
        entries[name] = {"dtype": _SAFETENSORS[dtype], "shape": list(shape), "data_offsets": offsets}
        begins.append(begin)
        begin += size
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    prefix = struct.pack("<Q", len(text)) + text
    return prefix, [len(prefix) + each for each in begins]


class RangeFile:
    """A file of which this process writes some ranges. Made when it is not there, and never truncated."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def write_at(self, offset: int, data: Any) -> None:
        """All of `data`, bytes or a memoryview."""
        left = memoryview(data)
        while len(left):
            try:
                written = os.pwrite(self._descriptor, left[: 1 << 28], offset)
            except OSError as error:
                raise OSError(error.errno, f"cannot write: {error.strerror}", str(self._path)) from error
            left, offset = left[written:], offset + written

    def finish(self) -> None:
        """Durable on return."""
        os.fsync(self._descriptor)
        self.close()

    def close(self) -> None:
        """Without a promise about the disk; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> RangeFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
