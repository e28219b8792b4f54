"""Keep labelled rows in memory-mapped files, which all ranks and later runs read.

docs/data_files.md, "Token cache", describes the files, their names and their safety.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from fastsft import _C, __version__
from fastsft.data.digests import file_digest
from fastsft.data.errors import DataError
from fastsft.runtime.messages import tell
from fastsft.runtime.regular_files import check_name
from fastsft.runtime.timeouts import note_progress
from fastsft.sources.data_files import DataFile
from fastsft.tokenizer.files import KeptFiles

# This number is incremented whenever labelling changes its result for the same input.
_LABEL_VERSION = 10
FILE_CHANGED = "a data file changed while it was read; start again when nothing writes to it"


@dataclass
class Labelled:
    """The result of labelling: rows, their report, and the errors in records.

    faults: the first errors. num_faults: how many errors there are. bad_records: the lines for --report_bad,
    as a view of bytes that are written without a copy. cache: path and key of the mapped file, or None.
    """

    dataset: _C.TokenDataset
    report: _C.DataReport
    faults: list[_C.RecordError]
    num_faults: int
    bad_records: memoryview
    cache: tuple[str, str] | None = None

    @classmethod
    def from_native(cls, labelled: _C.LabelledData) -> Labelled:
        """Convert a _C.LabelledData of the core."""
        return cls(
            labelled.dataset, labelled.report, labelled.faults, labelled.num_faults, labelled.bad_records
        )


# A function that labels all files into the given _C.TokenCacheWriter, or, for None, in memory.
LabelFunction = Callable[[_C.TokenCacheWriter | None], Labelled]


def tokenizer_digest(tokenizer: object) -> str | None:
    """Return a hash of all that affects a fastsft Tokenizer's ids; None for other objects."""
    files_read, native = getattr(tokenizer, "files", None), getattr(tokenizer, "native", None)
    if not isinstance(files_read, KeptFiles) or not isinstance(native, _C.Tokenizer):
        return None
    files = files_read.digests
    added = [getattr(tokenizer, name, None) for name in ("legacy", "add_bos_token", "add_eos_token")]
    named = native.named  # special tokens that no file names depend on the class, which config.json may name
    return _digest([files, added, native.vocab_size, [named.bos, named.eos, named.unk, named.pad]])


def cache_key(
    files: list[DataFile], directory: Path, tokenizer: str, options: object, streams: list[str] | None = None
) -> str:
    """Return a cache's key: a hash of file contents, file weights, the tokenizer and label options.

    streams: the hashes of the data that was read from streams, in order; None if there are no streams.
    """
    hashes = iter(streams or [])
    contents = [
        [next(hashes) if file.is_stream else file_digest(file.path, digest_index(directory)), file.weight]
        for file in files
    ]
    return _digest([__version__, _LABEL_VERSION, contents, tokenizer, options])


def open_cache(directory: Path, key: str, *, verify: bool = True) -> Labelled | None:
    """Return the rows in the cache file of `key`; None if there is no file.

    If the file is damaged, print a message and return None. verify: check the content's checksums.
    """
    path = directory / f"{key}.tokens"
    if not path.exists():
        return None
    try:
        cache = _C.open_token_cache(str(path), key, verify)
        report = _C.DataReport.from_json(cache.report.decode())
    except (_C.DamagedCacheError, ValueError, RuntimeError) as error:
        tell(f"the token cache is damaged and made again: {error}")
        return None
    mark_used(path)
    return Labelled(cache.dataset, report, [], 0, cache.bad_records, (str(path), key))


def label_with_cache(
    directory: Path, find_key: Callable[[], str], label: LabelFunction, *, is_known_before: bool
) -> Labelled:
    """Return rows from the cache, or label them and write the cache now.

    If the cache cannot be written, print a message and label in memory. find_key: returns the key of the
    cache. is_known_before: False if the key is known only after the data was read, as with streams.
    """
    key = find_key() if is_known_before else None
    cached = open_cache(directory, key) if key else None
    if cached is not None:
        return cached
    remove_forgotten(directory)
    if key is None:
        return _write_cache(directory, find_key, label)
    with only_writer(directory, key):
        return open_cache(directory, key) or _write_cache(directory, find_key, label, key)


def _write_cache(
    directory: Path, find_key: Callable[[], str], label: LabelFunction, expected: str | None = None
) -> Labelled:
    # expected: the key that was computed before the data was read; None with streams.
    try:
        writer = _C.TokenCacheWriter(str(directory))
    except RuntimeError as error:
        tell(f"no token cache: {error}")
        return label(None)
    try:
        labelled = label(writer)
        if labelled.faults:
            return labelled
        key = find_key()
        if expected not in (None, key):
            raise DataError(FILE_CHANGED)
        writer.commit(key, labelled.report.to_json())
    except _C.CacheWriteError as error:
        del writer
        if expected is None:
            raise DataError(f"{error}; the data cannot be read twice: use --data_cache none") from None
        tell(f"the token cache cannot be written, the data is labelled in memory: {error}")
        return label(None)
    cached = open_cache(directory, key, verify=False)
    return cached or label(None)


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


_LOCK_PAUSE = 0.2  # seconds between two tries to lock
_DAY = 24 * 3600.0
_FORGOTTEN = _DAY  # temporary files and locks are removed this long after their last write
_UNUSED = (
    30 * _DAY
)  # caches are removed this long after a run has opened them, digests after their last write
_KEY = "[0-9a-f]" * 64
DIGESTS = "digests"


def cache_directory(choice: str | None) -> Path | None:
    """Return the directory of `--data_cache`, by default `$XDG_CACHE_HOME/fastsft` or `~/.cache/fastsft`.

    None for "none". If the directory cannot be made or written to, print a message and return None.
    """
    if choice == "none":
        return None
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    directory = Path(choice or f"{home}/fastsft").expanduser()
    check_name(directory, "--data_cache")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if os.access(directory, os.W_OK):
            return directory
        reason = "it cannot be written to"
    except OSError as error:
        reason = str(error)
    tell(f"no token cache in {directory}: {reason}; --data_cache names another directory, or none")
    return None


@contextlib.contextmanager
def only_writer(directory: Path, key: str) -> Iterator[None]:
    """Let a single run at a time label the data of `key`. Other runs wait here, and then find the cache.

    The kernel releases the lock when the process ends. The lock file is removed after the block. If the file
    system has no locks, or if something other than a regular file has the lock's name (with a message), runs
    label concurrently, and each writes a complete cache.
    """
    path = directory / f"{key}.lock"
    with contextlib.ExitStack() as stack:
        try:
            file = _open_lock(path)
            stack.callback(_close, file)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                tell(f"another run labels the same data; waiting for {directory / key}.tokens")
                _wait_for_lock(file)
            stack.callback(_remove_lock, path, file)  # runs before `_close`, while the lock is still held
        except OSError:
            pass
        except ValueError as error:
            tell(f"the data is labelled without a lock: {error}")
        yield


def _close(file: FileIO) -> None:
    """Close the lock file. Errors are ignored, because the file has no content."""
    with contextlib.suppress(OSError):
        file.close()


def _open_lock(path: Path) -> FileIO:
    """Open or create the lock file without following links.

    ValueError unless it is a regular file without further hard links.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if os.path.lexists(path):
            raise ValueError(f"{path}: expected a regular file: {error.strerror}") from error
        raise
    file = os.fdopen(descriptor, "r+b", buffering=0)
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        file.close()
        raise ValueError(f"{path}: expected a regular file with one name")
    return file


def _wait_for_lock(file: FileIO) -> None:
    """Wait for the lock. Waiting counts as progress: the kernel releases the lock of an ended process."""
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            note_progress()
            time.sleep(_LOCK_PAUSE)


def mark_used(path: Path) -> None:
    """Set the modification time of the cache file `path` to now, to record that a run has opened the file.

    Errors are ignored.
    """
    with contextlib.suppress(OSError):
        os.utime(path)


def remove_forgotten(directory: Path) -> None:
    """Remove leftovers of killed runs after a day, and caches that no run has opened for 30 days.

    Only files with fastsft's names are removed. A run that has mapped a removed cache can still read the
    cache until the run ends.
    """
    ages = {
        f"{_C.cache_temporary_prefix}[0-9a-f]*-[0-9]": _FORGOTTEN,
        f"{_KEY}.lock": _FORGOTTEN,
        f"{_KEY}.tokens": _UNUSED,
        f"{DIGESTS}/{'[0-9a-f]' * 32}.json": _UNUSED,
    }
    now = time.time()
    for pattern, age in ages.items():
        if digest_index(directory) is None and pattern.startswith(DIGESTS):
            continue
        for path in directory.glob(pattern):
            with contextlib.suppress(OSError):
                status = path.lstat()
                if stat.S_ISREG(status.st_mode) and status.st_mtime < now - age:
                    path.unlink()


def digest_index(directory: Path) -> Path | None:
    """Return the path of the directory with file digests; None if a file or a link has its name."""
    path = directory / DIGESTS
    try:
        mode = path.lstat().st_mode
    except OSError:
        return path
    return path if stat.S_ISDIR(mode) else None


def _remove_lock(path: Path, file: FileIO) -> None:
    """Remove the lock file, unless another file has its name by now."""
    with contextlib.suppress(OSError):
        if os.path.samestat(path.lstat(), os.fstat(file.fileno())):
            path.unlink()
