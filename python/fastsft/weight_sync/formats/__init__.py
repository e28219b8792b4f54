"""File formats of a save: one file each, which registers itself."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

    from fastsft.weight_sync.staging import Snapshot


TEMPORARY = ".fastsft-tmp-"  # how names of files begin that no save has committed


@dataclass(frozen=True)
class WrittenFile:
    """A durable file under a temporary name. shared: several ranks write it, and rank 0 renames it."""

    temporary: str
    name: str
    size: int
    crc32c: int
    shared: bool = False

    def as_json(self) -> dict[str, Any]:
        return dict(vars(self))


def temporary_name(name: str, tag: str) -> str:
    """Of a file that is renamed when all ranks have written theirs; in no folder, whatever `name` is in."""
    return f"{TEMPORARY}{name.replace('/', '--')}-{tag}"


def written_file(directory: Path, name: str, tag: str) -> WrittenFile:
    """A durable file of this rank alone, as its bytes are on the disk."""
    from fastsft import _C

    temporary = temporary_name(name, tag)
    digest = _C.digest_file(str(directory / temporary))
    return WrittenFile(temporary, name, digest.size, digest.crc32c)


class SaveFormat(Protocol):
    """Conversion of a snapshot into files, and of files into the whole state dict."""

    name: str

    def write(self, directory: Path, tag: str, snapshot: Snapshot) -> list[WrittenFile]:
        """This rank's files, durable under names that contain `tag`."""

    def recognises(self, names: list[str]) -> bool:
        """True if a manifest's file names are of this format."""

    def read(self, directory: Path, names: list[str]) -> dict[str, torch.Tensor]:
        """The whole tensors by name."""


@dataclass
class _Registry:
    formats: dict[str, SaveFormat] = field(default_factory=dict)


_REGISTRY = _Registry()


def register(make: Callable[[], SaveFormat]) -> Callable[[], SaveFormat]:
    """A decorator for the class of a format."""
    made = make()
    if made.name in _REGISTRY.formats:
        raise ValueError(f"save format {made.name} is registered twice")
    _REGISTRY.formats[made.name] = made
    return make


def save_formats() -> dict[str, SaveFormat]:
    """All formats by name."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return _REGISTRY.formats


def save_format(name: str) -> SaveFormat:
    """ValueError names the formats there are."""
    known = save_formats()
    if name not in known:
        raise ValueError(f"format: expected one of {', '.join(sorted(known))}, got {name!r}")
    return known[name]
