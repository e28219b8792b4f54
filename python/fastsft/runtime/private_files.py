"""Files that other libraries write by name: into a directory of their own, and from there by our writer."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from fastsft.runtime.full_disk import is_of_full_disk


def files_of(write: Callable[[str], object], within: Path | None = None) -> dict[str, bytes]:
    """Content by relative path of the files that `write` puts into the directory that it is given.

    The directory is in the system's place for temporary files, where nobody who writes into `within` sees its
    names; in `within`, for this user alone, if nothing can be written to that place.
    """
    try:
        return _files_of(write, None)
    except Exception as error:  # a library in Rust has types of its own
        if within is None or not (isinstance(error, OSError) or is_of_full_disk(error)):
            raise
    return _files_of(write, within)


def _files_of(write: Callable[[str], object], within: Path | None) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory(dir=within, prefix=".fastsft-private-") as folder:
        write(folder)
        files = [path for path in sorted(Path(folder).rglob("*")) if path.is_file()]
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
