"""Parts of the recorders (tests/golden/*/record.py): files, functions that write them, and a comparison."""

from __future__ import annotations

import gzip
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).resolve().parent
# Hashes of weights hold for one kind of processor, and how far attention differs is rounding.
NOT_COMPARED = ("sha256", "largest_difference_to_eager_attention", "largest_difference_to_sdpa_attention")


@dataclass(frozen=True)
class Part:
    """Files of a folder that are written together, by a call of `write` with the folder."""

    files: tuple[str, ...]
    write: Callable[[Path], None]


@dataclass(frozen=True)
class Recorder:
    """What `record.py` of a folder defines.

    libraries: the versions that made the files. parts: by name. given: the other files, and where they are
    from. apart: how far numbers may be from the stored ones on another processor, relative to the largest
    value of the tensor or list; 0 if the files are the same to the byte. noise: ends of the names of tensors
    whose gradients are rounding alone, which are not compared.
    """

    libraries: Mapping[str, str]
    parts: Mapping[str, Part]
    given: Mapping[str, str] = field(default_factory=dict)
    apart: float = 0.0
    noise: tuple[str, ...] = ()


def each_file(writers: Mapping[str, Callable[[Path], None]]) -> dict[str, Part]:
    """Return a part for each file, named like the file; its writer gets the path of the file."""
    return {name: Part((name,), _at(name, write)) for name, write in writers.items()}


def _at(name: str, write: Callable[[Path], None]) -> Callable[[Path], None]:
    return lambda folder: write(folder / name)


def write_bytes(path: Path, data: bytes) -> None:
    """Write `data`, compressed without a time if the name ends in .gz."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data, 9, mtime=0) if path.suffix == ".gz" else data)


def write_json(path: Path, value: Any, indent: int = 1) -> None:
    write_bytes(path, (json.dumps(value, ensure_ascii=False, indent=indent) + "\n").encode())


def write_json_lines(path: Path, rows: list[Any]) -> None:
    write_bytes(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())


def difference(stored: Path, made: Path, noise: tuple[str, ...] = ()) -> float | str:
    """Return 0 for equal files, how far numbers are apart, or a text if something else differs."""
    before, after = stored.read_bytes(), made.read_bytes()
    if before == after:
        return 0.0
    if stored.suffix == ".gz":
        before, after = gzip.decompress(before), gzip.decompress(after)
        return 0.0 if before == after else "another content"
    if stored.suffix == ".json":
        return _largest(_differences(json.loads(before), json.loads(after), "", noise))
    if stored.suffix == ".safetensors":
        return _largest(_tensor_differences(stored, made))
    if stored.suffix == ".zip":
        return 0.0 if _members(stored) == _members(made) else "other members"
    return "another content"


def _largest(found: Iterator[float | str]) -> float | str:
    largest = 0.0
    for each in found:
        if isinstance(each, str):
            return each
        largest = max(largest, each)
    return largest


def _differences(before: Any, after: Any, place: str, noise: tuple[str, ...]) -> Iterator[float | str]:
    if isinstance(before, dict) and isinstance(after, dict):
        if before.keys() != after.keys():
            yield f"{place}: keys {sorted(before.keys() ^ after.keys())}"
        for key in before.keys() & after.keys() - set(NOT_COMPARED):
            if not key.endswith(noise):
                yield from _differences(before[key], after[key], f"{place}/{key}", noise)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        if all(isinstance(each, float) for each in [*before, *after]):
            yield _apart(before, after)
            return
        for number, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from _differences(one, other, f"{place}/{number}", noise)
    elif isinstance(before, float) and isinstance(after, float):
        yield _apart([before], [after])
    elif before != after:
        yield f"{place}: {before!r} became {after!r}"


def _apart(before: list[float], after: list[float]) -> float:
    largest = max((abs(value) for value in before), default=0.0)
    distance = max((abs(one - other) for one, other in zip(before, after, strict=True)), default=0.0)
    return distance / largest if largest else distance


def _tensor_differences(before: Path, after: Path) -> Iterator[float | str]:
    from safetensors.torch import load_file

    old, new = load_file(before), load_file(after)
    if old.keys() != new.keys():
        yield f"tensors {sorted(old.keys() ^ new.keys())}"
    for name in old.keys() & new.keys():
        if (old[name].shape, old[name].dtype) != (new[name].shape, new[name].dtype):
            yield f"{name}: another shape or dtype"
        elif old[name].is_floating_point():
            yield _apart(old[name].flatten().tolist(), new[name].flatten().tolist())
        elif not old[name].equal(new[name]):
            yield f"{name}: other values"


def _members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}
