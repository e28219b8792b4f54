"""Gives the files of a committed model their names in a directory, or keeps them whole."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fastsft.planning.device_memory import size_text
from fastsft.ranks.agreement import Agreement
from fastsft.ranks.run_lock import check_still_held, holds_lock
from fastsft.runtime.messages import tell, tell_once
from fastsft.runtime.output_files import ARGUMENTS, keep_aside, keep_changed, note_written
from fastsft.runtime.protected import removed, tell_unremoved
from fastsft.runtime.written_files import is_written, written_in
from fastsft.tokenizer.kept_files import is_tokenizer_file

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
            keep_aside(path)


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
    if ARGUMENTS not in written_in(Path(directory)):
        digests.pop(ARGUMENTS, None)
    note_written(Path(directory), digests)


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
    keep_changed(Path(directory), digests)
    note_written(Path(directory), digests)
    _remove_old_tokenizer(Path(directory), digests)
    if kept := _C.install_file_set(str(directory), name):
        tell(
            f"{directory}: files that fastsft did not write had the names of the model's; they are in {kept}"
        )


_BYTES_BELOW = 600  # of the longest path below --output_dir: three names, two of them of others


def check_output_directory(source: str | Path, directory: str | Path) -> None:
    """ValueError when a save to `directory` would overwrite the model that training starts from."""
    if Path(source).exists() and Path(directory).exists() and os.path.samefile(source, directory):
        raise ValueError(
            f"{directory}: the output directory is that of the model that is fine-tuned, whose files are "
            "never overwritten, choose another --output_dir"
        )


def prepare_output_directory(source: str | Path, directory: str | Path) -> None:
    """`check_output_directory`, and make the directory and write into it once; by rank 0, collective.

    ValueError when the directory cannot be made or takes no files.
    """
    agreement = Agreement(f"preparing {directory}")
    agreement.attempt_on_first(lambda: check_output_directory(source, directory))
    agreement.attempt_on_first(lambda: _try_writing(Path(directory)))
    agreement.settle(None)


def _try_writing(directory: Path) -> None:
    length, most = len(os.fsencode(os.path.abspath(directory))), os.pathconf("/", "PC_PATH_MAX")
    if length + _BYTES_BELOW > most:
        raise ValueError(
            f"--output_dir: expected a path of at most {most - _BYTES_BELOW} bytes, as files of checkpoints "
            f"are below it and a path may have {most}; got {length}: {str(directory)[:80]}...; choose a "
            "shorter --output_dir"
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        got = "a file" if os.path.isfile(directory) else error.strerror
        raise ValueError(
            f"--output_dir: {directory}: expected a directory to write into, got: {got}; choose another "
            "--output_dir"
        ) from error


def check_free_space(directory: Path, needed: int) -> None:
    """RuntimeError with the path, the bytes needed and the bytes free when `needed` bytes do not fit."""
    from fastsft import _C

    free = _C.available_bytes(str(directory))
    if free < needed:
        raise _C.FileError(
            f"{directory}: a save needs {size_text(needed)}, {size_text(free)} are free; free some space or "
            "choose another --output_dir"
        )


def recover_directory(directory: str | Path) -> list[str]:
    """Finish, give back or remove what a crash left in `directory`; the names of what was removed.

    RuntimeError when it is no longer the directory that this process holds.
    """
    from fastsft import _C

    check_still_held(directory)

    finish_file_sets(directory)
    unremoved: list[str] = []
    names = list(_C.remove_leftovers(str(directory), unremoved))
    tell_unremoved(unremoved)
    return names


def finish_file_sets(directory: str | Path) -> None:
    """Give files of a model that a crash left half installed their names.

    A set that cannot be finished is named in a line. It is removed where nothing in it is of use and this
    process holds the directory (ranks/run_lock.py), and left where it is otherwise.
    """
    from fastsft import _C

    for found in _C.finish_file_sets(str(directory), remove_useless=holds_lock(directory)):
        path = Path(directory) / found.name
        done = "removed" if found.removed else "left as it is: take from it what you need, and remove it"
        tell_once(f"{path}, which a save of a model left, cannot be finished: {found.problem}; {done}")
