"""Gives the files of a committed model their names in a directory, or keeps them whole."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fastsft.runtime.file_calls import removed
from fastsft.runtime.messages import tell
from fastsft.runtime.output_files import (
    ARGUMENTS,
    archive_changed,
    archive_foreign,
    is_written,
    record_written,
    recorded_files,
)
from fastsft.tokenizer.files import is_tokenizer_file

if TYPE_CHECKING:
    from fastsft import _C


def _remove_old_tokenizer(directory: Path, files: Mapping[str, object]) -> None:
    """Files of an earlier tokenizer that the new one has not, and which would be read instead of its own."""
    if "tokenizer_config.json" not in files:
        return
    there = [path for path in directory.iterdir() if path.is_file() and is_tokenizer_file(path.name)]
    for path in sorted(path for path in there if path.name not in files):
        if path.is_symlink() or is_written(path):
            removed(path.unlink, path)
        else:
            archive_foreign(path)


_kept_apart: set[str] = set()  # directories whose newest model is in a folder of its own


def is_kept_apart(directory: str | Path) -> bool:
    """True if the model that this process saved to `directory` last is in a folder of its own there."""
    return os.path.realpath(directory) in _kept_apart


def note_file_set(directory: str | Path, files: Iterable[_C.FileDigest]) -> None:
    """Put the files of a set on record as fastsft's before it is committed.

    Where a run ends between its commit and `install_file_set`, the next start gives them their names. In a
    directory with the model of another program, not the file by which one of fastsft's is known.
    """
    digests = {file.name: (file.size, file.crc32c) for file in files}
    if ARGUMENTS not in recorded_files(Path(directory)):
        digests.pop(ARGUMENTS, None)
    record_written(Path(directory), digests)


def install_file_set(directory: str | Path, name: str) -> None:
    """Give the files of a committed set their names; a line says where files of other programs went.

    Where something protected has one of these names, the model stays whole in a folder of its own, with a
    line.
    """
    from fastsft import _C

    if why := _C.file_set_obstacle(str(directory), name):
        kept = _C.keep_file_set(str(directory), name)
        tell(f"the model is in {kept}, as {directory} cannot take its files: {why}")
        _kept_apart.add(os.path.realpath(directory))
        return
    _kept_apart.discard(os.path.realpath(directory))
    files = _C.read_manifest(str(Path(directory) / name)).files
    digests = {file.name: (file.size, file.crc32c) for file in files}
    archive_changed(Path(directory), digests)
    record_written(Path(directory), digests)
    _remove_old_tokenizer(Path(directory), digests)
    if kept := _C.install_file_set(str(directory), name):
        tell(
            f"{directory}: files that fastsft did not write had the names of the model's; they are in {kept}"
        )
