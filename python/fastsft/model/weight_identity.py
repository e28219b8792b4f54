"""Identity of a base model's frozen weights in a checkpoint: `files of float32: <digest>`."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fastsft.model.config import has_safetensors
from fastsft.model.stored_weights import DTYPES, WIDTHS, StoredTensor, StoredWeights, bits_of
from fastsft.model.weights import pickled_files
from fastsft.ranks.common_files import common_digests
from fastsft.runtime.regular_files import open_regular

if TYPE_CHECKING:
    import torch
    from torch import nn

    from fastsft.model.causal_lm import CausalLM

FILES, VALUES = "files", "values"  # what a digest is of: samples of a directory's tensors, or all values


def base_identity(kind: str, types: Iterable[str], digest: str) -> str:
    """kind: FILES or VALUES. types: of the tensors, by torch's names."""
    return f"{kind} of {'+'.join(sorted(set(types)))}: {digest}"


def types_of(identity: str) -> str:
    """The types of the tensors: `bfloat16+float32`."""
    return identity.partition(": ")[0].rpartition(" ")[2]


def is_comparable(old: str, new: str) -> bool:
    """True if equal weights have equal identities: they are of one kind, and of the same types."""
    return old.partition(": ")[0] == new.partition(": ")[0] and ": " in old


def has_other_types(old: str, new: str) -> bool:
    """True if the two are of one kind, and tell no more than that the types differ."""
    return old.partition(" ")[0] == new.partition(" ")[0] and types_of(old) != types_of(new)


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


_MODULE = "module"  # of models in memory


def place_of_weights(model: CausalLM) -> str:
    """The place of the weights that training starts from: "an engine", "memory" or "a directory"."""
    if getattr(model, "engine", None) is not None:
        return "an engine"
    return "a directory" if getattr(model, _MODULE, None) is None else "memory"


def weight_digests(model: CausalLM) -> dict[str, str]:
    """Of a model in memory every tensor, of a directory its weight files, by name.

    Collective, on models whose weights are in the same place on all ranks. {} where engines hold the weights
    already, which they share. Raises as `common_digests`.
    """
    place = place_of_weights(model)
    if place == "memory":
        module: nn.Module = getattr(model, _MODULE)
        return tensor_digests(module.named_parameters())
    if place == "an engine":
        return {}
    return common_digests("comparing weights", lambda: weight_files(model.source_directory))


def weight_files(directory: str | Path) -> list[Path]:
    """The weight files of a model directory. ValueError as of its readers."""
    from fastsft import _C

    if has_safetensors(directory):
        return [Path(path) for path in _C.weight_files(str(directory))]
    return list(pickled_files(Path(directory)))


def tensor_digests(named: Iterable[tuple[str, torch.Tensor]]) -> dict[str, str]:
    """CRC-32C of every element of tensors, by name; named: pairs of name and tensor."""
    import torch

    from fastsft import _C

    found = {}
    for name, tensor in named:
        flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        found[name] = f"{list(tensor.shape)} {tensor.dtype} {_C.buffer_checksum(flat, flat.numel()):08x}"
    return found


def type_of_digest(digest: str) -> str:
    """The type of the tensor that has this digest of `tensor_digests`: `bfloat16`."""
    return digest.split()[-2].removeprefix("torch.")
