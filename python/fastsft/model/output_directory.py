"""The output directory: it is prepared for saves and recovered after a crash, and model files are installed
in it.

A save writes a file set, which is a folder with a manifest. After the set is committed, its files are moved
to their names in the directory. If a protected file has such a name, the set stays a folder.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fastsft.planning.devices import size_text
from fastsft.ranks.exchange import AllOrNone
from fastsft.ranks.output_directory import check_still_held, holds_lock
from fastsft.runtime.file_calls import removed, warn_unremoved
from fastsft.runtime.messages import tell, tell_once
from fastsft.runtime.output_files import (
    ARGUMENTS,
    archive_changed,
    archive_foreign,
    is_written,
    record_written,
    recorded_files,
)
from fastsft.runtime.regular_files import kind_of
from fastsft.tokenizer.files import is_tokenizer_file

if TYPE_CHECKING:
    from fastsft import _C

# Longest path below --output_dir [bytes]: three names, two of which other libraries choose.
_BYTES_BELOW = 600
_kept_apart: set[str] = set()  # output directories in which the newest model stayed in a folder


def check_output_directory(source: str | Path, directory: str | Path) -> None:
    """Raise ValueError if a save to `directory` would overwrite the model that is being fine-tuned."""
    if Path(source).exists() and Path(directory).exists() and os.path.samefile(source, directory):
        raise ValueError(
            f"{directory}: the output directory is that of the model that is fine-tuned, whose files are "
            "never overwritten, choose another --output_dir"
        )


def prepare_output_directory(source: str | Path, directory: str | Path) -> None:
    """Check and make the output directory, and try to write into it, on rank 0. Collective.

    ValueError if the directory cannot be made or is not writable.
    """
    agreement = AllOrNone(f"preparing {directory}")
    agreement.attempt_on_rank0(lambda: check_output_directory(source, directory))
    agreement.attempt_on_rank0(lambda: _try_writing(Path(directory)))
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
        got = error.strerror
        if os.path.islink(directory) and not os.path.exists(directory):
            got = f"a link to {os.readlink(directory)}, which is not there"
        if os.path.exists(directory) and not os.path.isdir(directory):
            got = "a file" if os.path.isfile(directory) else kind_of(os.stat(directory).st_mode)
        raise ValueError(
            f"--output_dir: {directory}: expected a directory to write into, got: {got}; choose another "
            "--output_dir"
        ) from error


def check_free_space(directory: Path, needed: int) -> None:
    """Raise RuntimeError if `needed` bytes do not fit on the directory's disk."""
    from fastsft import _C

    free = _C.available_bytes(str(directory))
    if free < needed:
        raise _C.FileError(
            f"{directory}: a save needs {size_text(needed)}, {size_text(free)} are free; free some space or "
            "choose another --output_dir"
        )


def recover_directory(directory: str | Path) -> list[str]:
    """Finish, restore or remove files that a crash left half written. Return the removed files' names.

    RuntimeError if this process no longer holds the directory's lock.
    """
    from fastsft import _C

    check_still_held(directory)

    finish_file_sets(directory)
    unremoved: list[str] = []
    names = list(_C.remove_leftovers(str(directory), unremoved))
    warn_unremoved(unremoved)
    return names


def finish_file_sets(directory: str | Path) -> None:
    """Install file sets that a crash left half installed.

    If a set cannot be finished, a notice names it. Such a set is removed if it holds no intact file from its
    manifest, and this process holds the directory's lock (ranks/output_directory.py).
    """
    from fastsft import _C

    for broken in _C.finish_file_sets(str(directory), remove_useless=holds_lock(directory)):
        path = Path(directory) / broken.name
        done = "removed" if broken.removed else "left as it is: take from it what you need, and remove it"
        tell_once(f"{path}, which a save of a model left, cannot be finished: {broken.problem}; {done}")


def is_kept_apart(directory: str | Path) -> bool:
    """Return True if this process's last save to `directory` stayed in a folder there."""
    return os.path.realpath(directory) in _kept_apart


def note_file_set(directory: str | Path, files: Iterable[_C.FileDigest]) -> None:
    """Record, before a file set is committed, that fastsft wrote its files.

    If a crash comes between the commit and `install_file_set`, the next start uses the record to install the
    files. If the directory has another program's model, training_args.json is not recorded, because it would
    mark the directory as fastsft's.
    """
    digests = {file.name: (file.size, file.crc32c) for file in files}
    if ARGUMENTS not in recorded_files(Path(directory)):
        digests.pop(ARGUMENTS, None)
    record_written(Path(directory), digests)


def install_file_set(directory: str | Path, name: str) -> None:
    """Move a committed set's files to their names in `directory`.

    Other programs' files with the same names are moved away, and a notice names their folder. If a protected
    file has such a name, the set stays a folder, with a notice.
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


def _remove_old_tokenizer(directory: Path, files: Mapping[str, object]) -> None:
    """Remove an earlier tokenizer's files that the new one lacks, because readers would prefer them."""
    if "tokenizer_config.json" not in files:
        return
    present = [path for path in directory.iterdir() if path.is_file() and is_tokenizer_file(path.name)]
    for path in sorted(path for path in present if path.name not in files):
        if path.is_symlink() or is_written(path):
            removed(path.unlink, path)
        else:
            archive_foreign(path)
