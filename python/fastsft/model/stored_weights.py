"""StoredWeights: the tensors in a directory's weight files, by name, which are read one at a time."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fastsft.model.weights import has_safetensors, pickled_files, pickled_tensors, tell_of_two_forms
from fastsft.runtime.dtypes import BITS, STORED_NAMES, TORCH_NAMES
from fastsft.runtime.regular_files import open_regular

if TYPE_CHECKING:
    import torch

    from fastsft import _C

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
# torch's names of the floating-point dtypes. Tensors of other dtypes are not trained weights, and are copied
# unchanged.
DTYPES = {stored: TORCH_NAMES[stored] for stored in ("F32", "F16", "BF16", "F64")}
BLOCK = 1 << 22  # most elements that `blocks` reads at a time
# A unit's name, digest (None if unknown), size and tensors; for each tensor its name, shape and first element
UnitLayout = tuple[str, str | None, int, list[tuple[str, list[int], int]]]


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as its file's header describes it.

    dtype: safetensors' name, such as BF16. begin: the tensor's first byte in a safetensors file's
    data.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    begin: int = 0

    @property
    def count(self) -> int:
        """The tensor's element count."""
        return math.prod(self.shape)


class StoredWeights:
    """All weight file headers in a directory, which are safetensors or pickled files.

    files: paths. tensors: StoredTensor by name. problems: one line for each error, such as an unreadable
    file. ValueError if there are no weights.
    """

    def __init__(self, directory: str | Path) -> None:
        from fastsft import _C

        self.directory = Path(directory)
        tell_of_two_forms(directory)
        self.is_pickled = not has_safetensors(directory)
        paths = pickled_files(self.directory) if self.is_pickled else _C.weight_files(str(directory))
        self.files = [Path(path) for path in paths]
        self.tensors: dict[str, StoredTensor] = {}
        self.problems: list[str] = []
        self._open: tuple[Path, _C.SafetensorsReader | dict[str, torch.Tensor]] | None = None
        for file in self.files:
            self._list(file)

    def _list(self, file: Path) -> None:
        try:
            tensors = self._read_header(file)
        except (ValueError, RuntimeError, OSError) as error:
            self.problems.append(str(error))
            return
        self.problems += [
            f"{file}: {tensor.name} is in two files" for tensor in tensors if tensor.name in self.tensors
        ]
        self.tensors.update({tensor.name: tensor for tensor in tensors})

    def _read_header(self, file: Path) -> list[StoredTensor]:
        content = self._content(file)
        if isinstance(content, dict):
            return [
                StoredTensor(name, stored_dtype(tensor), tuple(tensor.shape), file)
                for name, tensor in content.items()
            ]
        return [
            StoredTensor(entry.name, entry.dtype, tuple(entry.shape), file, int(entry.begin))
            for entry in content.tensors
        ]

    def _content(self, file: Path) -> _C.SafetensorsReader | dict[str, torch.Tensor]:
        """Open `file`, and close the previous file.

        A single open file is enough, because callers read tensors file by file.
        """
        from fastsft import _C

        if self._open is None or self._open[0] != file:
            self._open = None
            content = dict(pickled_tensors(file)) if self.is_pickled else _C.SafetensorsReader(str(file))
            self._open = file, content
        return self._open[1]

    def read(self, name: str) -> torch.Tensor:
        """Read a floating-point tensor into memory, in the file's dtype. ValueError for other dtypes."""
        entry = self.tensors[name]
        if entry.dtype not in DTYPES:
            raise ValueError(f"{entry.file}: {name}: expected one of {', '.join(DTYPES)}, got {entry.dtype}")
        return self.read_any(name)

    def read_any(self, name: str) -> torch.Tensor:
        """Read a tensor with any dtype into memory."""
        entry = self.tensors[name]
        if entry.dtype not in TORCH_NAMES:
            raise ValueError(
                f"{entry.file}: {name}: is {entry.dtype}, which fastsft does not read; save it as float32"
            )
        content = self._content(entry.file)
        if isinstance(content, dict):
            return content[name].detach().contiguous()
        return as_tensor(content.bytes(name), entry.dtype).reshape(entry.shape)

    def data_begin(self, name: str) -> int:
        """Return the position at which a tensor's data begins in its safetensors file."""
        entry = self.tensors[name]
        with open_regular(entry.file, "a file of weights") as file:
            return 8 + int.from_bytes(file.read(8), "little") + entry.begin

    def blocks(self, name: str) -> Iterator[torch.Tensor]:
        """Yield a tensor's flat values in parts of at most BLOCK elements, to limit the memory.

        ValueError if the dtype is not floating-point, or if the file became shorter while it was read.
        """
        import torch

        entry = self.tensors[name]
        if entry.dtype not in DTYPES or self.is_pickled:
            yield from torch.split(self.read(name).reshape(-1), BLOCK)
            return
        begin = self.data_begin(name)
        with open_regular(entry.file, "a file of weights") as file:
            file.seek(begin)
            for first in range(0, entry.count, BLOCK):
                size = min(BLOCK, entry.count - first) * BITS[entry.dtype] // 8
                data = file.read(size)
                if len(data) != size:
                    raise ValueError(f"{entry.file}: {name}: the file became shorter while it was read")
                yield as_tensor(data, entry.dtype)

    def is_same(self, name: str, other: StoredWeights, other_name: str) -> bool:
        """Return True if two tensors have the same shape, dtype and bits."""
        entry, other_entry = self.tensors[name], other.tensors[other_name]
        if (entry.shape, entry.dtype) != (other_entry.shape, other_entry.dtype):
            return False
        pairs = zip(self.blocks(name), other.blocks(other_name), strict=True)
        return all(bits_of(block) == bits_of(other_block) for block, other_block in pairs)


def source_dtype(directory: str | Path, config: Mapping[str, Any]) -> str:
    """Return the dtype of the weights in `directory`: float32, bfloat16 or float16.

    For safetensors, this is the first tensor's dtype; for pickled weights, it is the dtype in `config`. Any
    other dtype counts as float32.
    """
    from fastsft import _C

    if has_safetensors(directory):
        first = _C.SafetensorsReader(_C.weight_files(str(directory))[0]).tensors[0]
        dtype = DTYPES.get(first.dtype, "float32")
    else:
        dtype = str(config.get("torch_dtype") or config.get("dtype") or "float32").removeprefix("torch.")
    return dtype if dtype in ("float32", "bfloat16", "float16") else "float32"


def stored_dtype(tensor: torch.Tensor) -> str:
    """Return the safetensors name of the tensor's dtype, or the torch name if safetensors has none."""
    name = str(tensor.dtype).removeprefix("torch.")
    return STORED_NAMES.get(name, f"torch.{name}")


def as_tensor(data: bytes, dtype: str) -> torch.Tensor:
    """Return a flat, read-only tensor over `data`, bytes from a safetensors file, without copying."""
    import torch

    kind = getattr(torch, TORCH_NAMES[dtype])
    if not data:
        return torch.empty(0, dtype=kind)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given buffer is not writable")
        return torch.frombuffer(data, dtype=kind)


def bits_of(tensor: torch.Tensor) -> memoryview:
    """Return a contiguous tensor's memory as bytes, without copying."""
    import torch

    return tensor.reshape(-1).view(torch.uint8).numpy().data


def extremes(parts: Iterable[torch.Tensor]) -> tuple[int, float]:
    """Return how many values in `parts` are not finite, and the largest magnitude among the others."""
    bad, most = 0, 0.0
    for part in parts:
        finite = part.isfinite()
        bad += int(part.numel() - int(finite.sum()))
        if bool(finite.any()):
            most = max(most, float(part[finite].abs().max()))
    return bad, most


def differences(shapes: Iterable[tuple[str, Sequence[int]]], stored: StoredWeights) -> list[str]:
    """Describe the tensors that are missing, unknown, or differ in shape or dtype, one in each line.

    shapes: names and shapes of the model's tensors. A head next to tied weights is no error, and neither are
    the rotary tables that old transformers releases saved.
    """
    expected = {name: tuple(shape) for name, shape in shapes}
    problems = [f"missing: {name}" for name in expected if name not in stored.tensors]
    for name, entry in stored.tensors.items():
        if name not in expected:
            if name != HEAD and not name.endswith("rotary_emb.inv_freq"):
                problems.append(f"config.json has no place for {name}")
        elif entry.shape != expected[name]:
            problems.append(f"{name}: expected shape {list(expected[name])}, got {list(entry.shape)}")
        elif entry.dtype not in DTYPES:
            problems.append(f"{name}: expected one of {', '.join(DTYPES)}, got {entry.dtype}")
    return problems


class WeightForm(Protocol):
    """Compares weight file tensors with a model's tensors.

    names: maps a tensor's name in the model to its name in the files.
    """

    names: dict[str, str]

    def problems(self) -> list[str]:
        """Describe the tensors that are missing, unknown, or differ in shape or dtype, one in each line."""

    def second_copies(self) -> list[tuple[str, str]]:
        """Return pairs of file names for tied tensors: the tensor that is read, and its copy."""

    def unneeded(self) -> list[str]:
        """Return the file tensor names that the model does not read."""


class StoredForm:
    """Compares weight files with a native engine model (see WeightForm).

    ties: True if embedding and head are tied.
    """

    def __init__(
        self, shapes: Iterable[tuple[str, Sequence[int]]], stored: StoredWeights, *, ties: bool
    ) -> None:
        self._shapes, self._stored, self._ties = list(shapes), stored, ties
        self.names = {name: name for name, _ in self._shapes if name in stored.tensors}

    def problems(self) -> list[str]:
        return differences(self._shapes, self._stored)

    def second_copies(self) -> list[tuple[str, str]]:
        has_both = EMBEDDING in self._stored.tensors and HEAD in self._stored.tensors
        return [(EMBEDDING, HEAD)] if self._ties and has_both else []

    def unneeded(self) -> list[str]:
        return [name for name in self._stored.tensors if name.endswith("rotary_emb.inv_freq")]
