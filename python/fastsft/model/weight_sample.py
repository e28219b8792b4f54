"""Identity of the weights of a model directory, of which little is read: a sample of every tensor."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fastsft.model.base_identity import FILES, base_identity
from fastsft.model.stored_weights import DTYPES, WIDTHS, StoredTensor, StoredWeights, bits_of
from fastsft.runtime.regular_files import open_regular

if TYPE_CHECKING:
    import torch

_BLOCK, _BLOCKS = 4096, 4  # bytes of a block, and blocks of a tensor, evenly spread


def sampled_digest(directory: str | Path, without: Collection[str] = ()) -> str | None:
    """SHA-256 of name, type, shape and at most 16 KiB of each tensor, as `base_identity` writes it.

    None for files that cannot be read. The directory's name and the division into files do not count, nor do
    integers and the tables of rope that old releases saved. without: names of tensors that are copies of
    others, or trained.
    """
    try:
        stored = StoredWeights(directory)
        kept = [
            each
            for name, each in stored.tensors.items()
            if name not in without and each.dtype in WIDTHS and not name.endswith("rotary_emb.inv_freq")
        ]
        if stored.problems:
            return None
        types = [DTYPES[each.dtype] for each in kept]
        return base_identity(FILES, types, _digest(dict(_samples(stored, kept))))
    except (ValueError, RuntimeError, OSError):
        return None


def _digest(samples: dict[str, bytes]) -> str:
    found = hashlib.sha256()
    for name in sorted(samples):
        found.update(f"{name}\n".encode() + samples[name])
    return found.hexdigest()


def _samples(stored: StoredWeights, kept: list[StoredTensor]) -> Iterator[tuple[str, bytes]]:
    """By name a digest of what is looked at of each tensor, file by file."""
    for file in dict.fromkeys(each.file for each in kept):
        here = [each for each in kept if each.file == file]
        if stored.is_pickled:
            yield from ((each.name, _of_tensor(each, stored.read(each.name))) for each in here)
            continue
        with open_regular(file, "a file of weights") as opened:
            data = 8 + int.from_bytes(opened.read(8), "little")
            for each in sorted(here, key=lambda one: one.begin):
                parts = []
                for first, count in _places(each.count * WIDTHS[each.dtype]):
                    opened.seek(data + each.begin + first)
                    parts.append(opened.read(count))
                yield each.name, _sample(each, parts)


def _of_tensor(entry: StoredTensor, value: torch.Tensor) -> bytes:
    bits = bits_of(value)
    return _sample(entry, [bytes(bits[first : first + count]) for first, count in _places(len(bits))])


def _sample(entry: StoredTensor, parts: list[bytes]) -> bytes:
    about = f"{entry.dtype} {list(entry.shape)}\n".encode()
    return hashlib.sha256(b"".join([about, *parts])).digest()


def _places(size: int) -> list[tuple[int, int]]:
    """(first byte, bytes) of what is looked at of `size` bytes: all of a small tensor."""
    if size <= _BLOCK * _BLOCKS:
        return [(0, size)]
    return [((size - _BLOCK) * number // (_BLOCKS - 1), _BLOCK) for number in range(_BLOCKS)]
