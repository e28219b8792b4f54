"""One `model.safetensors`: every rank writes its own byte ranges of it. No gather, no merge.

A row of a row-major tensor is a contiguous range, so a rank's rows are one range a tensor. All ranks must see
one file system.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fastsft.weight_sync.formats import WrittenFile, register, temporary_name
from fastsft.weight_sync.range_file import RangeFile, header
from fastsft.weight_sync.staging import bytes_of

if TYPE_CHECKING:
    import torch

    from fastsft.weight_sync.staging import Snapshot

_NAME = "model.safetensors"


@register
class HuggingFace:
    """A file that transformers and safetensors load, with config.json in `huggingface/` next to it."""

    name = "hf"

    def write(self, directory: Path, tag: str, snapshot: Snapshot) -> list[WrittenFile]:
        plan = snapshot.plan
        prefix, begins = header(plan.tensors, plan.sizes, {})
        temporary = temporary_name(_NAME, tag)
        written = 0
        with RangeFile(directory / temporary) as file:
            if snapshot.rank == 0:
                file.write_at(0, prefix)
                written += len(prefix)
            for number, part in snapshot.parts.items():
                if not part.is_sharded and snapshot.rank != 0:
                    continue
                rows = max(1, plan.shapes[number][0]) if part.is_sharded else 1
                file.write_at(
                    begins[number] + part.begin * (plan.sizes[number] // rows), bytes_of(part.tensor)
                )
                written += part.tensor.nbytes
            file.finish()
        return [WrittenFile(temporary, _NAME, written, 0, shared=True)]

    def recognises(self, names: list[str]) -> bool:
        return _NAME in names

    def read(self, directory: Path, names: list[str]) -> dict[str, torch.Tensor]:
        from safetensors.torch import load_file

        loaded: dict[str, torch.Tensor] = load_file(directory / _NAME)
        return loaded
