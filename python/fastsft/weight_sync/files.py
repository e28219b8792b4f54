"""A save's files. They are written under temporary names, and kept open until they are renamed."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import os
import stat
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch

from fastsft import _C
from fastsft.model.config import json_text
from fastsft.model.config_words import in_both_words
from fastsft.model.model_config import write_both_words
from fastsft.ranks.exchange import Message
from fastsft.runtime.dtypes import STORED_NAMES, TORCH_NAMES
from fastsft.runtime.file_calls import repeated
from fastsft.runtime.new_files import NewFile, make_folders, opened_folder, sync_folder
from fastsft.runtime.output_files import files_of
from fastsft.runtime.regular_files import kind_of
from fastsft.tokenizer.files import write_compatible_config
from fastsft.weight_sync.engine import state_of
from fastsft.weight_sync.interfaces import Engine

if TYPE_CHECKING:
    from transformers import PretrainedConfig

TEMPORARY = ".fastsft-tmp-"  # name prefix for files that are not committed yet


# Digests for the files that only this rank writes, and for its ranges in files that several ranks write.
Written = tuple[list[_C.FileDigest], list[_C.RangeDigest]]


def temporary_name(name: str, tag: str) -> str:
    """Return the file `name`'s temporary name. It contains no folder, even if `name` does.

    tag: a secret that a save's ranks share, so that other programs cannot guess the temporary names.
    """
    start = temporary_start(name)
    return start + hashlib.blake2b(start.encode(), key=tag.encode(), digest_size=8).hexdigest()


def temporary_start(name: str) -> str:
    """Return the prefix that a file's temporary names have in all saves."""
    return f"{TEMPORARY}{name.replace('/', '--')}-"


def temporary_files(directory: Path, tag: str) -> list[Path]:
    """Return the temporary files in `directory` that belong to the save with this `tag`."""
    there = directory.glob(f"{TEMPORARY}*")
    return [path for path in there if path.name == temporary_name(_name_of_temporary(path.name), tag)]


def _name_of_temporary(temporary: str) -> str:
    return temporary.removeprefix(TEMPORARY).rpartition("-")[0]


def written_file(directory: Path, name: str, tag: str, size: int, crc32c: int) -> _C.FileDigest:
    """Return the digest for a file that this rank wrote. RuntimeError unless it reads back as written."""
    path = directory / temporary_name(name, tag)
    digest = _C.digest_file(str(path))
    if (digest.size, digest.crc32c) != (size, crc32c):
        raise changed(path, f"{digest.size} bytes of other content, where {size} were written")
    return _C.FileDigest(name, size, crc32c)


_METADATA = "__metadata__"


def dtype_of(name: str, where: str) -> torch.dtype:
    """Return the dtype that has this `name` in safetensors headers. ValueError if no save writes it."""
    if name not in TORCH_NAMES:
        raise ValueError(f"{where}: expected one of {', '.join(TORCH_NAMES)}, got {name}")
    dtype: torch.dtype = getattr(torch, TORCH_NAMES[name])
    return dtype


def header(
    tensors: Sequence[tuple[str, str, Sequence[int]]], sizes: Sequence[int], metadata: dict[str, str]
) -> tuple[bytes, list[int]]:
    """Return a file's safetensors header, and each tensor's offset in the file.

    tensors: (name, dtype, shape). sizes: each tensor's size in bytes. ValueError for a tensor with the
    reserved name __metadata__.
    """
    if any(name == _METADATA for name, _, _ in tensors):
        raise ValueError(
            f"a tensor is called {_METADATA}, which safetensors keeps for itself; rename it, or save with "
            'format="verl_pt"'
        )
    entries: Message = {_METADATA: {"format": "pt", **metadata}}
    begin = 0
    begins = []
    for (name, dtype, shape), size in zip(tensors, sizes, strict=True):
        offsets = [begin, begin + size]
        entries[name] = {"dtype": STORED_NAMES[dtype], "shape": list(shape), "data_offsets": offsets}
        begins.append(begin)
        begin += size
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    prefix = struct.pack("<Q", len(text)) + text
    return prefix, [len(prefix) + begin for begin in begins]


class RangeFile:
    """A file in which several ranks write ranges.

    path: its temporary path. name: its final name.
    """

    def __init__(self, path: Path, name: str) -> None:
        self._name = name
        self._ranges: list[_C.RangeDigest] = []
        self._file = NewFile(path, shared=True)

    def write_tensor(self, offset: int, tensor: torch.Tensor) -> None:
        """Write a contiguous tensor in host memory at `offset`, without a copy."""
        data = tensor.reshape(-1).view(torch.uint8)
        self._write(offset, data.numpy().data, _C.buffer_checksum(data, data.numel()))

    def write_at(self, offset: int, data: bytes) -> None:
        """Write `data` at `offset`."""
        self._write(offset, memoryview(data), _C.crc32c(data))

    def _write(self, offset: int, left: memoryview, crc32c: int) -> None:
        if len(left):
            self._ranges.append(_C.RangeDigest(self._name, offset, len(left), crc32c))
        self._file.write_at(offset, left)

    def finish(self) -> list[_C.RangeDigest]:
        """Make the written ranges durable, and return their digests.

        RuntimeError if `path` now refers to another file.
        """
        self._file.sync()
        check_same(self._file.fileno(), self._file.path)
        self.close()
        return self._ranges

    def close(self) -> None:
        """Close the file without making it durable. A second call does nothing."""
        self._file.close()

    def __enter__(self) -> RangeFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def rename_into(directory: Path, temporary: str, name: str) -> None:
    """Rename the file `temporary` in `directory` durably to `name`, which may contain folders.

    If `name` is a symbolic link, the link is replaced and its target stays. ValueError as in `opened_folder`.
    """
    with opened_folder(directory, name) as folder:
        path, last = directory / temporary, name.rpartition("/")[2]
        repeated("rename", path, lambda: os.replace(path, last, dst_dir_fd=folder))
        sync_folder(folder, (directory / name).parent)


def remove_file(directory: Path, name: str) -> None:
    """Remove the file `name` below `directory`, if it exists. If it is a link, remove only the link."""
    with contextlib.suppress(FileNotFoundError, ValueError), opened_folder(directory, name) as folder:
        os.unlink(name.rpartition("/")[2], dir_fd=folder)


_HUGGINGFACE = "huggingface"


def huggingface_files(
    engine: Engine, config: object, texts: Mapping[str, str] | None = None
) -> dict[str, bytes]:
    """Return the configuration and tokenizer files, as a map from relative path to content.

    The result is cached until the configuration or the tokenizer object changes. texts: names and contents
    for files that describe the model; used instead of `config`. Runs on the calling thread, because two
    threads must not use a tokenizer at the same time. Entries of `config.auto_map` with the key None are left
    out.
    """
    tokenizer = getattr(getattr(engine, "checkpoint_manager", None), "processing_class", None)
    state = state_of(engine)
    key = (id(tokenizer), repr(texts) if texts else _fingerprint(config))
    if state.huggingface_files is None or state.huggingface_files[0] != key:

        def write(folder: str) -> None:
            if not texts:
                _save_config(config, folder)
            if tokenizer is not None:
                tokenizer.save_pretrained(folder)
                write_compatible_config(folder)

        content = {name: text.encode() for name, text in (texts or {}).items()}
        state.huggingface_files = (key, {**content, **files_of(write)})
    return state.huggingface_files[1]


def write_huggingface_files(directory: Path, tag: str, files: dict[str, bytes]) -> list[_C.FileDigest]:
    """Write files durably under temporary names, and make the folders for their final names."""
    written = []
    for relative, content in files.items():
        name = f"{_HUGGINGFACE}/{relative}"
        make_folders(directory, name)
        temporary = temporary_name(name, tag)
        with NewFile(directory / temporary) as file:
            file.write(content)
            file.sync()
        written.append(_C.FileDigest(name, len(content), _C.crc32c(content)))
    return written


def _save_config(config: object, folder: str) -> None:
    if config is None:
        return
    if isinstance(config, dict):
        Path(folder, "config.json").write_text(json_text(in_both_words(config)))
        return
    saved = copy.copy(cast("PretrainedConfig", config))  # assumed to be a configuration, whatever its class
    auto_map = getattr(saved, "auto_map", None) or {}
    if None in auto_map:
        saved.auto_map = {key: value for key, value in auto_map.items() if key is not None}
    saved.save_pretrained(folder)
    write_both_words(folder)


def _fingerprint(config: object) -> str:
    """Return a text that changes with every change to the configuration."""
    return repr(config.to_dict() if hasattr(config, "to_dict") else config)


_WAY_OUT = "something else changes files here: give every trainer a directory of its own, and save again"


class HeldFiles:
    """Keeps files open, so that their inode numbers are not reused.

    `check` can then detect that a link or another file has replaced a file at its path.
    """

    def __init__(self) -> None:
        self._descriptors: dict[str, int] = {}

    def hold(self, name: str, path: Path) -> None:
        """Open the file at `path`. RuntimeError unless it is a regular file.

        name: the file's final name.
        """
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:  # ELOOP if it is a symbolic link
            raise changed(path, error.strerror or str(error)) from error
        self._descriptors[name] = descriptor

    def check(self, name: str, path: Path) -> None:
        """Raise RuntimeError unless the file at `path` is still the file that is kept open as `name`."""
        check_same(self._descriptors[name], path)

    def close(self) -> None:
        """Close all files. A second call does nothing."""
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])


def check_same(descriptor: int, path: Path) -> None:
    """Raise RuntimeError unless `path` is the open file `descriptor` itself, rather than a link to it."""
    held = os.fstat(descriptor)
    try:
        status = os.lstat(path)
    except FileNotFoundError as error:
        raise changed(path, "nothing has this name") from error
    if not stat.S_ISREG(status.st_mode):
        raise changed(path, "a link" if stat.S_ISLNK(status.st_mode) else kind_of(status.st_mode))
    if (status.st_dev, status.st_ino) != (held.st_dev, held.st_ino):
        raise changed(path, "another one")


def changed(path: Path, found: str) -> RuntimeError:
    """Return the error for a path at which another file replaced the file that this save wrote.

    found: describes the present file.
    """
    return RuntimeError(f"{path}: expected the file that this save wrote, got: {found}; {_WAY_OUT}")


def check_free(directory: Path, names: Iterable[str]) -> None:
    """Raise ValueError if something other than a file or a link already has one of `names`.

    names: the files' final names.
    """
    for name in names:
        try:
            mode = os.lstat(directory / name).st_mode
        except (FileNotFoundError, NotADirectoryError):
            continue
        if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
            raise ValueError(
                f"{directory / name}: expected a file of a save, or nothing of this name, got "
                f"{kind_of(mode)}; it is left as it is: move it away and save again"
            )
