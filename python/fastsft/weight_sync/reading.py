"""Reading what a save wrote, with any number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fastsft.weight_sync import layout
from fastsft.weight_sync.formats import save_formats

if TYPE_CHECKING:
    import torch

_TRIES = 5


def read_state_dict(directory: str | Path, *, checksums: bool = False) -> dict[str, torch.Tensor]:
    """The whole tensors by name, on the CPU. `directory`: what `fsdp_save_state_dict` was given.

    ValueError unless it has a manifest whose file sizes match, with `checksums` also their contents. What is
    returned is one save, also while the next one replaces it: files are read again then, and a directory that
    is saved into all the time, or is between two saves, is a ValueError.
    """
    folder = Path(directory)
    for _ in range(_TRIES):
        before = _manifest(folder, checksums)
        try:
            whole = _read(folder)
        except (OSError, ValueError):
            if _manifest(folder, False) == before:
                raise
            continue
        if _manifest(folder, False) == before:
            return whole
    raise ValueError(f"{folder}: saved again while it was read, {_TRIES} times; read it between two saves")


def _manifest(folder: Path, checksums: bool) -> bytes:
    """The manifest as it is, of a complete save; ValueError of any other."""
    found = layout.problems(folder, checksums)
    if found:
        raise ValueError(f"{folder}: not a complete save: {'; '.join(found)}")
    try:
        return (folder / layout.MANIFEST).read_bytes()
    except FileNotFoundError:  # taken away by the next save since
        raise ValueError(f"{folder}: not a complete save: the next one replaces it") from None


def _read(folder: Path) -> dict[str, torch.Tensor]:
    from fastsft import _C

    names = [file.name for file in _C.read_manifest(str(folder)).files]
    for each in save_formats().values():
        if each.recognises(names):
            return each.read(folder, names)
    raise ValueError(f"{folder}: its manifest lists no weights: {', '.join(names)}")
