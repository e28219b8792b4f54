"""Files of a save: written at offsets, under temporary names, in folders that are no links."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import struct
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch

from fastsft import _C
from fastsft.model.config import json_text
from fastsft.model.words.both import in_both_words
from fastsft.model.words.files import write_both_words
from fastsft.tokenizer.both_words import write_tokenizer_words
from fastsft.weight_sync.engine import state_of
from fastsft.weight_sync.held_files import changed, check_same
from fastsft.weight_sync.interfaces import Engine, Message

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    pass


TEMPORARY = ".fastsft-tmp-"  # how names of files begin that no save has committed


# What a rank has written: its own files, and its ranges of files that several ranks write.
Written = tuple[list[_C.FileDigest], list[_C.RangeDigest]]


def temporary_name(name: str, tag: str) -> str:
    """Of a file that is renamed when all ranks have written theirs; in no folder, whatever `name` is in."""
    return f"{TEMPORARY}{name.replace('/', '--')}-{tag}"


def written_file(directory: Path, name: str, tag: str, size: int, crc32c: int) -> _C.FileDigest:
    """A durable file of this rank alone. RuntimeError unless the disk has the bytes that were written."""
    path = directory / temporary_name(name, tag)
    found = _C.digest_file(str(path))
    if (found.size, found.crc32c) != (size, crc32c):
        raise changed(path, f"{found.size} bytes of other content, where {size} were written")
    return _C.FileDigest(name, size, crc32c)


_METADATA = "__metadata__"
_SAFETENSORS = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "float8_e5m2": "F8_E5M2", "float8_e4m3fn": "F8_E4M3",
    "float8_e8m0fnu": "F8_E8M0", "int16": "I16", "uint16": "U16", "float16": "F16", "bfloat16": "BF16",
    "int32": "I32", "uint32": "U32", "float32": "F32", "float64": "F64", "int64": "I64",
}  # fmt: skip


_DTYPES = {name: dtype for dtype, name in _SAFETENSORS.items()}


def dtype_of(name: str, where: str) -> torch.dtype:
    """The dtype that a safetensors header calls `name`. ValueError for one that no save writes."""
    if name not in _DTYPES:
        raise ValueError(f"{where}: expected one of {', '.join(_DTYPES)}, got {name}")
    dtype: torch.dtype = getattr(torch, _DTYPES[name])
    return dtype


def header(
    tensors: Sequence[tuple[str, str, Sequence[int]]], sizes: Sequence[int], metadata: dict[str, str]
) -> tuple[bytes, list[int]]:
    """The first bytes of a file with these tensors, and where in the file each begins.

    Computed once from the real layout: the data begins where the header ends, whatever its length. ValueError
    for a tensor with the name that the format keeps for itself.
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
        entries[name] = {"dtype": _SAFETENSORS[dtype], "shape": list(shape), "data_offsets": offsets}
        begins.append(begin)
        begin += size
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    prefix = struct.pack("<Q", len(text)) + text
    return prefix, [len(prefix) + each for each in begins]


class RangeFile:
    """A file of which this process writes some ranges. Made when it is not there, and never truncated.

    name: what it will be called.
    """

    def __init__(self, path: Path, name: str) -> None:
        self._path, self._name = path, name
        self._ranges: list[_C.RangeDigest] = []
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def write_tensor(self, offset: int, tensor: torch.Tensor) -> None:
        """The memory of a contiguous tensor on the host, without a copy."""
        data = tensor.reshape(-1).view(torch.uint8)
        self._write(offset, data.numpy().data, _C.buffer_checksum(data, data.numel()))

    def write_at(self, offset: int, data: bytes) -> None:
        """All of `data`."""
        self._write(offset, memoryview(data), _C.crc32c(data))

    def _write(self, offset: int, left: memoryview, crc32c: int) -> None:
        if len(left):
            self._ranges.append(_C.RangeDigest(self._name, offset, len(left), crc32c))
        while len(left):
            try:
                written = os.pwrite(self._descriptor, left[: 1 << 28], offset)
            except OSError as error:
                raise OSError(error.errno, f"cannot write: {error.strerror}", str(self._path)) from error
            left, offset = left[written:], offset + written

    def finish(self) -> list[_C.RangeDigest]:
        """Its ranges, durable on return. RuntimeError when something else has the file's name by then."""
        os.fsync(self._descriptor)
        check_same(self._descriptor, self._path)
        self.close()
        return self._ranges

    def close(self) -> None:
        """Without a promise about the disk; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> RangeFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def make_folders(directory: Path, name: str) -> None:
    """The folders that the file `name` below `directory` needs. ValueError where one is a link or a file."""
    with opened_folder(directory, name, make=True):
        pass


def rename_into(directory: Path, temporary: str, name: str) -> None:
    """`temporary`, which is in `directory` itself, becomes `name`, which may be in a folder; durable.

    A link of that name is replaced, and what it leads to stays. ValueError as `make_folders`.
    """
    with opened_folder(directory, name) as folder:
        os.replace(directory / temporary, name.rpartition("/")[2], dst_dir_fd=folder)
        os.fsync(folder)


def remove_file(directory: Path, name: str) -> None:
    """The file `name` below `directory`, where it is there; of a link the link, never its target."""
    with contextlib.suppress(FileNotFoundError, ValueError), opened_folder(directory, name) as folder:
        os.unlink(name.rpartition("/")[2], dir_fd=folder)


@contextlib.contextmanager
def opened_folder(directory: Path, name: str, make: bool = False) -> Iterator[int]:
    """A descriptor of the folder that the file `name` is in. `directory` itself may be a link."""
    folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in name.split("/")[:-1]:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, dir_fd=folder)
            inner = _open(directory, name, part, folder)
            os.close(folder)
            folder = inner
        yield folder
    finally:
        os.close(folder)


def _open(directory: Path, name: str, part: str, folder: int) -> int:
    try:
        return os.open(part, _FOLDER, dir_fd=folder)
    except FileNotFoundError:
        raise
    except OSError as error:  # ELOOP or ENOTDIR
        raise ValueError(
            f"{directory / name}: {part} is a link or a file: expected a folder; it is left as it is: "
            "move it away and save again"
        ) from error


_HUGGINGFACE = "huggingface"


def huggingface_files(
    engine: Engine, config: object, texts: Mapping[str, str] | None = None
) -> dict[str, bytes]:
    """relative path -> content. Made once while configuration and tokenizer stay the same objects.

    texts: name -> content of files that describe the model, in place of those of `config`. On the calling
    thread: a tokenizer may not be used by two at a time. Entries of `config.auto_map` whose key is None are
    left out.
    """
    tokenizer = getattr(getattr(engine, "checkpoint_manager", None), "processing_class", None)
    state = state_of(engine)
    key = (id(tokenizer), repr(texts) if texts else _fingerprint(config))
    if state.huggingface_files is None or state.huggingface_files[0] != key:
        with tempfile.TemporaryDirectory() as folder:
            if texts:
                _write_texts(texts, folder)
            else:
                _save_config(config, folder)
            if tokenizer is not None:
                tokenizer.save_pretrained(folder)
                write_tokenizer_words(folder)
            files = [path for path in sorted(Path(folder).rglob("*")) if path.is_file()]
            content = {str(path.relative_to(folder)): path.read_bytes() for path in files}
        state.huggingface_files = (key, content)
    return state.huggingface_files[1]


def write_huggingface_files(directory: Path, tag: str, files: dict[str, bytes]) -> list[_C.FileDigest]:
    """Durable under temporary names; their folders are there on return."""
    written = []
    for relative, content in files.items():
        name = f"{_HUGGINGFACE}/{relative}"
        make_folders(directory, name)
        temporary = temporary_name(name, tag)
        (directory / temporary).write_bytes(content)
        _C.sync_file(str(directory / temporary))
        written.append(_C.FileDigest(name, len(content), _C.crc32c(content)))
    return written


def _write_texts(texts: Mapping[str, str], folder: str) -> None:
    for name, text in texts.items():
        path = Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _save_config(config: object, folder: str) -> None:
    if config is None:
        return
    if isinstance(config, dict):
        Path(folder, "config.json").write_text(json_text(in_both_words(config)))
        return
    saved = copy.copy(cast("PretrainedConfig", config))  # by its methods, whatever its class
    auto_map = getattr(saved, "auto_map", None) or {}
    if None in auto_map:
        saved.auto_map = {key: value for key, value in auto_map.items() if key is not None}
    saved.save_pretrained(folder)
    write_both_words(folder)


def _fingerprint(config: object) -> str:
    """Changes when somebody edits the configuration."""
    return repr(config.to_dict() if hasattr(config, "to_dict") else config)
