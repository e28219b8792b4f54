"""Weight digests: over all values, to compare ranks, and over samples, to identify a frozen base model.

A checkpoint identifies its base model by a line such as `files of float32: <digest>` (kind, dtypes, digest).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fastsft.model.stored_weights import DTYPES, StoredTensor, StoredWeights, bits_of
from fastsft.model.weights import has_safetensors, pickled_files
from fastsft.ranks.comparison import common_digests
from fastsft.runtime.dtypes import BITS
from fastsft.runtime.regular_files import open_regular

if TYPE_CHECKING:
    import torch
    from torch import nn

    from fastsft.model.causal_lm import CausalLM

FILES, VALUES = "files", "values"  # kinds of digests: of samples from a directory's tensors, or of all values
_BLOCK, _BLOCKS = 4096, 4  # sample size in bytes, and how many evenly spread samples a tensor has
_MODULE = "module"  # attribute of a model that holds its module in memory


def base_identity(kind: str, types: Iterable[str], digest: str) -> str:
    """Return the line that identifies weights.

    kind: FILES or VALUES. types: torch's names for the tensors' dtypes. digest: in hexadecimal.
    """
    return f"{kind} of {'+'.join(sorted(set(types)))}: {digest}"


def types_of(identity: str) -> str:
    """Return the dtypes in an identity, such as `bfloat16+float32`."""
    return identity.partition(": ")[0].rpartition(" ")[2]


def is_comparable(old: str, new: str) -> bool:
    """Return True if kind and dtypes are the same, so that equal weights have equal digests."""
    return old.partition(": ")[0] == new.partition(": ")[0] and ": " in old


def has_other_types(old: str, new: str) -> bool:
    """Return True if the kind is the same but dtypes differ, so that digests cannot be compared."""
    return old.partition(" ")[0] == new.partition(" ")[0] and types_of(old) != types_of(new)


def sampled_digest(directory: str | Path, without: Collection[str] = ()) -> str | None:
    """Return the identity of the weights in a directory, from samples in every floating-point tensor.

    The digest is a SHA-256 over names, dtypes, shapes and samples, at most 16 KiB per tensor. It does not
    depend on the directory's name, the split into files, integer tensors and old releases' rotary
    tables. None if files cannot be read. without: tensor names to leave out, because they are tied or
    trained.
    """
    try:
        stored = StoredWeights(directory)
        entries = [
            entry
            for name, entry in stored.tensors.items()
            if name not in without and entry.dtype in DTYPES and not name.endswith("rotary_emb.inv_freq")
        ]
        if stored.problems:
            return None
        types = [DTYPES[entry.dtype] for entry in entries]
        return base_identity(FILES, types, _digest(dict(_sample_digests(stored, entries))))
    except (ValueError, RuntimeError, OSError):
        return None


def _digest(samples: dict[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name in sorted(samples):
        digest.update(f"{name}\n".encode() + samples[name])
    return digest.hexdigest()


def _sample_digests(stored: StoredWeights, entries: list[StoredTensor]) -> Iterator[tuple[str, bytes]]:
    """Yield each tensor's name and sample digest, file by file."""
    for file in dict.fromkeys(entry.file for entry in entries):
        in_file = [entry for entry in entries if entry.file == file]
        if stored.is_pickled:
            yield from ((entry.name, _digest_in_memory(entry, stored.read(entry.name))) for entry in in_file)
            continue
        with open_regular(file, "a file of weights") as opened:
            data = 8 + int.from_bytes(opened.read(8), "little")
            for entry in sorted(in_file, key=lambda entry: entry.begin):
                samples = []
                for first, count in _sample_ranges(entry.count * BITS[entry.dtype] // 8):
                    opened.seek(data + entry.begin + first)
                    samples.append(opened.read(count))
                yield entry.name, _tensor_digest(entry, samples)


def _digest_in_memory(entry: StoredTensor, value: torch.Tensor) -> bytes:
    bits = bits_of(value)
    ranges = _sample_ranges(len(bits))
    return _tensor_digest(entry, [bytes(bits[first : first + count]) for first, count in ranges])


def _tensor_digest(entry: StoredTensor, samples: list[bytes]) -> bytes:
    header = f"{entry.dtype} {list(entry.shape)}\n".encode()
    return hashlib.sha256(b"".join([header, *samples])).digest()


def _sample_ranges(size: int) -> list[tuple[int, int]]:
    """Return the sample ranges in `size` bytes, as (first byte, bytes).

    A small tensor is one sample.
    """
    if size <= _BLOCK * _BLOCKS:
        return [(0, size)]
    return [((size - _BLOCK) * number // (_BLOCKS - 1), _BLOCK) for number in range(_BLOCKS)]


def weights_location(model: CausalLM) -> str:
    """Return the initial weights' location: "an engine", "memory" or "a directory"."""
    if getattr(model, "engine", None) is not None:
        return "an engine"
    return "a directory" if getattr(model, _MODULE, None) is None else "memory"


def weight_digests(model: CausalLM) -> dict[str, str]:
    """Return digests for the tensors in memory, or for the weight files in a directory, by name.

    Collective if the weights are in a directory. `weights_location` must be the same on all ranks. Empty if
    the engines already hold the weights, because then the ranks share them. Errors as in `common_digests`.
    """
    location = weights_location(model)
    if location == "memory":
        module: nn.Module = getattr(model, _MODULE)
        return tensor_digests(module.named_parameters())
    if location == "an engine":
        return {}
    return common_digests("comparing weights", lambda: weight_files(model.source_directory))


def weight_files(directory: str | Path) -> list[Path]:
    """Return a model directory's weight files. ValueError if there are none."""
    from fastsft import _C

    if has_safetensors(directory):
        return [Path(path) for path in _C.weight_files(str(directory))]
    return list(pickled_files(Path(directory)))


def tensor_digests(named: Iterable[tuple[str, torch.Tensor]]) -> dict[str, str]:
    """Return a text with shape, dtype and CRC-32C for each tensor, by name.

    named: pairs (name, tensor).
    """
    import torch

    from fastsft import _C

    digests = {}
    for name, tensor in named:
        flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digests[name] = f"{list(tensor.shape)} {tensor.dtype} {_C.buffer_checksum(flat, flat.numel()):08x}"
    return digests


def type_of_digest(digest: str) -> str:
    """Return the dtype, such as `bfloat16`, in a value of `tensor_digests`."""
    return digest.split()[-2].removeprefix("torch.")
