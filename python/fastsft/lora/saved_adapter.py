"""The trained tensors of a LoRA run at the moment of a save."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fastsft.lora.adapter_files import write_adapter
from fastsft.lora.settings import LoraSettings
from fastsft.lora.targets import Targets

if TYPE_CHECKING:
    import torch

    from fastsft import _C

_ROOM_FOR_HEADERS = 1 << 20


@dataclass(frozen=True)
class SavedAdapter:
    """values: everything that is trained, by the engine's names, float32, in host memory.

    along: frozen tensors that the base model, as it is named, has other values for.
    """

    settings: LoraSettings
    targets: Targets
    values: Mapping[str, torch.Tensor]
    along: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def write(self, directory: str | Path) -> list[_C.FileDigest]:
        """Write the adapter's files into a new directory, durable on return. Their digests."""
        return write_adapter(directory, self.settings, self.targets, self.values, self.along)


def adapter_bytes(targets: Targets, along: Mapping[str, torch.Tensor]) -> int:
    """Of the files of an adapter, with room for headers; `along` as of SavedAdapter."""
    elements = 0
    for shape in targets.shapes().values():
        count = 1
        for size in shape:
            count *= size
        elements += count
    replaced = sum(value.numel() * value.element_size() for value in along.values())
    return 4 * elements + int(replaced) + _ROOM_FOR_HEADERS
