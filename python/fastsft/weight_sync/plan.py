"""SyncPlan: the tensors that are sent to other processes (docs/spec/weight_sync.md, section 4.1)."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping, Sequence

import torch

from fastsft import _C
from fastsft.ranks.exchange import Message

NamedTensor = tuple[str, object, Sequence[int]]


class SyncPlan:
    """Names, dtypes, shapes and order of the tensors to send, and further names that are tied to them.

    tensors: (name, dtype, shape). The dtype is a `torch.dtype` or its name in any spelling ("bfloat16",
    "torch.bfloat16", "BF16").
    tied: maps each tied name to the name of the sent tensor. ValueError for a duplicate name, a size beyond
    64 bits, an unknown dtype, or a tied name whose tensor is not sent.
    """

    def __init__(self, tensors: Iterable[NamedTensor], tied: Mapping[str, str] | None = None) -> None:

        given = [(name, str(dtype), [int(size) for size in shape]) for name, dtype, shape in tensors]
        self.native = _C.SyncPlan(given, sorted((tied or {}).items()))
        # Kept, because each access to `native.tensors` builds a new list with all tensors.
        self.tensors: list[tuple[str, str, list[int]]] = self.native.tensors
        self._cuts: dict[tuple[str, int], list[_C.SyncBucket]] = {}

    def __len__(self) -> int:
        return len(self.tensors)

    @functools.cached_property
    def names(self) -> list[str]:
        """Names in the order in which they are sent."""
        return [name for name, _, _ in self.tensors]

    @functools.cached_property
    def dtype_names(self) -> list[str]:
        """The tensors' dtype names without "torch." ("bfloat16"), as vLLM and SGLang expect."""
        return [dtype for _, dtype, _ in self.tensors]

    @functools.cached_property
    def shapes(self) -> list[list[int]]:
        """The tensors' shapes, in the order in which they are sent."""
        return [shape for _, _, shape in self.tensors]

    @functools.cached_property
    def sizes(self) -> list[int]:
        """The tensors' sizes in bytes."""
        return list(self.native.sizes)

    @functools.cached_property
    def tied(self) -> dict[str, str]:
        """Tied names that are not sent, each with the name of the sent tensor."""
        return dict(self.native.tied)

    @property
    def total_bytes(self) -> int:
        """All tensors' total size in bytes."""
        return int(self.native.total_bytes)

    @functools.cached_property
    def hash(self) -> str:
        """Hash over names, dtypes, shapes, order and tied names, as 32 hexadecimal digits."""
        return str(self.native.hash)

    def difference(self, other: SyncPlan, ours: str = "this plan", theirs: str = "the other plan") -> str:
        """Return a message about the first difference between two plans; "" if they are equal."""
        return str(self.native.difference(other.native, ours, theirs))

    def metadata(self) -> list[tuple[str, str, tuple[int, ...]]]:
        """Return (name, dtype such as "torch.bfloat16", shape) for each tensor, as Trinity does."""
        return [(name, f"torch.{dtype}", tuple(shape)) for name, dtype, shape in self.tensors]

    def vllm_update_info(self, buffer_bytes: int, num_buffers: int = 2) -> Message:
        """Return the update request for vLLM's packed transfer (docs/spec/weight_sync.md, section 2.5)."""
        return {
            "names": self.names, "dtype_names": self.dtype_names, "shapes": self.shapes, "packed": True,
            "packed_buffer_size_bytes": buffer_bytes, "packed_num_buffers": num_buffers,
        }  # fmt: skip

    def to_json(self) -> str:
        """Return the plan as JSON text for `from_json`."""
        return json.dumps({"tensors": self.tensors, "tied": self.tied})

    @classmethod
    def from_json(cls, text: str) -> SyncPlan:
        """Parse a text from `to_json`. ValueError for other texts."""
        try:
            content = json.loads(text)
            return cls([(str(n), str(d), list(s)) for n, d, s in content["tensors"]], content["tied"])
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a plan: {error!r}; expected the text of SyncPlan.to_json()") from error

    @functools.cached_property
    def dtypes(self) -> list[torch.dtype]:
        """The tensors' dtypes."""
        return [getattr(torch, dtype) for dtype in self.dtype_names]

    @functools.cached_property
    def torch_shapes(self) -> list[torch.Size]:
        """The tensors' shapes, as `torch.Size`."""
        return [torch.Size(shape) for shape in self.shapes]

    def empty(self, index: int, device: torch.device | str = "cpu") -> torch.Tensor:
        """Return uninitialized memory for the tensor with number `index`."""
        return torch.empty(self.shapes[index], dtype=self.dtypes[index], device=device)

    def buckets(self, cut: str, size: int) -> list[_C.SyncBucket]:
        """Return `native.<cut>(size)`, cached.

        cut: the method's name: native_buckets, vllm_chunks or tensor_batches.
        """
        if (cut, size) not in self._cuts:
            self._cuts[cut, size] = getattr(self.native, cut)(size)
        return self._cuts[cut, size]


def check_same_plan(hashes: Sequence[str]) -> None:
    """Raise ValueError, which names the ranks, if plans differ from rank 0's plan.

    hashes: the plans' hashes, in rank order.
    """
    _C.check_same_plan(list(hashes))


def parameter_dtype(name: str | None) -> torch.dtype | None:
    """Return the dtype with the name `name`; None for None.

    ValueError for names that a save does not support.
    """
    if name is None:
        return None
    if name not in ("float32", "bfloat16", "float16"):
        raise ValueError(f"save_dtype: expected float32, bfloat16, float16 or None, got {name!r}")
    dtype: torch.dtype = getattr(torch, name)
    return dtype
