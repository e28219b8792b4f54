"""Reading what a save wrote, with any number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fastsft.weight_sync import layout
from fastsft.weight_sync.formats import save_formats

if TYPE_CHECKING:
    import torch


def read_state_dict(directory: str | Path, *, checksums: bool = False) -> dict[str, torch.Tensor]:
    """The whole tensors by name, on the CPU. `directory`: what `fsdp_save_state_dict` was given.

    ValueError unless it has a manifest whose file sizes match, with `checksums` also their contents.
    """
    from fastsft import _C

    folder = Path(directory)
    found = layout.problems(folder, checksums)
    if found:
        raise ValueError(f"{folder}: not a complete save: {'; '.join(found)}")
    names = [file.name for file in _C.read_manifest(str(folder)).files]
    for each in save_formats().values():
        if each.recognises(names):
            return each.read(folder, names)
    raise ValueError(f"{folder}: its manifest lists no weights: {', '.join(names)}")
