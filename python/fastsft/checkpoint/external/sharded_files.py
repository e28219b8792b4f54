"""Folders of torch.distributed.checkpoint, where FSDP keeps its shards: a tensor at a time, no code runs."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import Metadata

_MOST_BYTES = 1 << 30  # of `.metadata`: names and places of tensors
_KINDS = "torch.distributed.checkpoint.metadata"
_NAMES = {
    (_KINDS, name) for name in (
        "Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata", "MetadataIndex",
        "TensorProperties", "_MEM_FORMAT_ENCODING", "StorageMeta",
    )
} | {
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.distributed.checkpoint.filesystem", "_StoragePrefix"),
    ("torch.serialization", "_get_layout"), ("torch", "Size"), ("torch", "device"),
    ("pathlib", "PosixPath"), ("pathlib", "Path"), ("collections", "OrderedDict"),
}  # fmt: skip


class ShardedFiles:
    """The tensors of a folder by name. ValueError, naming it, when it is none of torch's."""

    def __init__(self, folder: Path) -> None:
        # Here, because it loads FSDP, which is slow: only those wait who have such a folder.
        from torch.distributed.checkpoint.metadata import TensorStorageMetadata

        self.folder = folder
        self._metadata = _read_metadata(folder)
        self._reader = _reader(folder, self._metadata)
        self._kinds = {
            name: kind
            for name, kind in self._metadata.state_dict_metadata.items()
            if isinstance(kind, TensorStorageMetadata)
        }
        self._check_places()

    @property
    def names(self) -> list[str]:
        """Of all tensors."""
        return list(self._kinds)

    def tensor(self, name: str) -> torch.Tensor:
        """Whole, on the CPU. ValueError when it is not there or cannot be read."""
        from torch.distributed.checkpoint.state_dict_loader import load

        kind = self._kinds.get(name)
        if kind is None:
            raise ValueError(f"{self.folder}: expected a tensor {name}, found none")
        whole = torch.empty(kind.size, dtype=kind.properties.dtype)
        try:
            load({name: whole}, storage_reader=self._reader, no_dist=True)
        except Exception as error:
            raise ValueError(f"{self.folder}: {name} cannot be read ({_first_line(error)})") from error
        return whole

    def _check_places(self) -> None:
        """Files are names in the folder, and nothing else."""
        for info in (self._metadata.storage_data or {}).values():
            name = str(info.relative_path)
            if Path(name).name != name:
                raise ValueError(f"{self.folder}: expected names of files in the folder, got {name!r}")


def _reader(folder: Path, metadata: Metadata) -> FileSystemReader:
    """torch's, with the metadata that was read, and checked, before."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    reader = FileSystemReader(str(folder))
    setattr(reader, "read_metadata", lambda *_, **__: metadata)  # noqa: B010  a method of its class
    return reader


class _Unpickler(pickle.Unpickler):
    """Makes the classes of torch's metadata only."""

    def find_class(self, module: str, name: str) -> object:
        module = "pathlib" if module == "pathlib._local" else module  # so Python 3.13 writes it
        dtype = getattr(torch, name, None) if module == "torch" else None
        if (module, name) not in _NAMES and not isinstance(dtype, torch.dtype):
            raise pickle.UnpicklingError(f"{module}.{name} does not belong there")
        return super().find_class(module, name)


def _read_metadata(folder: Path) -> Metadata:
    from torch.distributed.checkpoint.metadata import Metadata

    path = folder / ".metadata"
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError(f"{path}: expected at most {_MOST_BYTES} bytes, got {path.stat().st_size}")
    try:
        content = _Unpickler(io.BytesIO(path.read_bytes())).load()
    except Exception as error:
        raise ValueError(
            f"{path}: expected metadata of torch.distributed.checkpoint ({_first_line(error)})"
        ) from error
    if not isinstance(content, Metadata):
        raise ValueError(
            f"{path}: expected metadata of torch.distributed.checkpoint, got {type(content).__name__}"
        )
    return content


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
