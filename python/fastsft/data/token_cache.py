"""Label once: rows of a data set in one mapped file that later runs and all ranks share.

File, safety and names: docs/data_files.md, "Token cache".
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

# Raised with every change of what labelling makes of the same inputs.
_LABEL_VERSION = 10
FILE_CHANGED = "a data file changed while it was read; start again when nothing writes to it"


@dataclass
class Labelled:
    """Rows (_C.TokenDataset), their report (_C.DataReport), faults (_C.DataFault) and lines of --report_bad.

    bad_records: a view of the bytes, as many as there are bad records: written in place, not copied.
    cache: the file that the rows are mapped from and its key, if they are.
    """

    dataset: _C.TokenDataset
    report: _C.DataReport
    faults: list[_C.DataFault]
    num_faults: int
    bad_records: memoryview
    cache: tuple[str, str] | None = None

    @classmethod
    def of(cls, labelled: _C.LabelledData) -> Labelled:
        """From a native _C.LabelledData."""
        return cls(
            labelled.dataset, labelled.report, labelled.faults, labelled.num_faults, labelled.bad_records
        )


# Labels everything: into the given _C.TokenCacheWriter, or into memory for None.
LabelFunction = Callable[[_C.TokenCacheWriter | None], Labelled]


def tokenizer_digest(tokenizer: object) -> str | None:
    """A hash of all that decides a fastsft Tokenizer's ids; None for an object that it cannot be told of."""
    kept, native = getattr(tokenizer, "files", None), getattr(tokenizer, "native", None)
    if not isinstance(kept, KeptFiles) or not isinstance(native, _C.Tokenizer):
        return None
    files = kept.digests
    added = [getattr(tokenizer, name, None) for name in ("legacy", "add_bos_token", "add_eos_token")]
    named = native.named  # of what the files leave out the class decides, which config.json may name
    return _digest([files, added, native.vocab_size, [named.bos, named.eos, named.unk, named.pad]])


def cache_key(
    files: list[DataFile], directory: Path, tokenizer: str, options: object, streams: list[str] | None = None
) -> str:
    """The name of a cache: a hash of contents and weights of the files, the tokenizer, the label options.

    streams: hashes of what was read from streams, in their order; None where there are none.
    """
    hashes = iter(streams or [])
    contents = [
        [next(hashes) if file.is_stream else file_digest(file.path, digest_index(directory)), file.weight]
        for file in files
    ]
    return _digest([__version__, _LABEL_VERSION, contents, tokenizer, options])


def open_cache(directory: Path, key: str, *, verify: bool = True) -> Labelled | None:
    """The finished cache of `key`; None when there is none, or with a line when it is damaged."""
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
    """Rows from the cache, or labelled into it now; in memory, with a line, when it cannot be written.

    find_key: the cache's key. is_known_before: False when it is known only after reading (streams).
    """
    key = find_key() if is_known_before else None
    found = open_cache(directory, key) if key else None
    if found is not None:
        return found
    remove_forgotten(directory)
    if key is None:
        return _write_cache(directory, find_key, label)
    with only_writer(directory, key):
        return open_cache(directory, key) or _write_cache(directory, find_key, label, key)


def _write_cache(
    directory: Path, find_key: Callable[[], str], label: LabelFunction, expected: str | None = None
) -> Labelled:
    # expected: the key before reading; None for what can be read only once.
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
    found = open_cache(directory, key, verify=False)
    return found or label(None)


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


_LOCK_PAUSE = 0.2  # seconds
_DAY = 24 * 3600.0
_FORGOTTEN = _DAY  # temporary files and locks that nobody has written to for so long
_UNUSED = 30 * _DAY  # caches that no run has opened, hashes that none has written, for so long
_KEY = "[0-9a-f]" * 64
DIGESTS = "digests"


def cache_directory(choice: str | None) -> Path | None:
    """The directory that `--data_cache` names; else `$XDG_CACHE_HOME/fastsft` or `~/.cache/fastsft`.

    None for "none", and with a line that says so when the directory cannot be made or written to.
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
    """One run at a time labels for one key; others wait here, and find the cache when they come on.

    The lock goes with its process, its file with the end of the block. Where the file system knows no locks,
    runs label side by side, each leaving a whole cache; so they do, with a line, where something else than a
    regular file has the lock's name, which is left as it is.
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
            stack.callback(_remove_lock, path, file)  # while it is held
        except OSError:
            pass
        except ValueError as error:
            tell(f"the data is labelled without a lock: {error}")
        yield


def _close(file: FileIO) -> None:
    """Close the lock file, in which nothing was written that could be lost."""
    with contextlib.suppress(OSError):
        file.close()


def _open_lock(path: Path) -> FileIO:
    """The lock file, made when it is not there; its content is nobody's. ValueError for what is no regular
    file of one name. Never waits, follows no link."""
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
    """Until it is ours. To wait is to come on: the kernel gives the lock free when its holder ends."""
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            note_progress()
            time.sleep(_LOCK_PAUSE)


def mark_used(path: Path) -> None:
    """Note that a run opened the cache `path`, as far as that is possible: its time of change is now."""
    with contextlib.suppress(OSError):
        os.utime(path)


def remove_forgotten(directory: Path) -> None:
    """Remove what killed runs left a day ago and caches that no run opened for 30 days, where possible.

    Only names that fastsft gives; a run that has a removed cache mapped keeps it until it ends.
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
    """The file of the hashes of data files; None when something else, or a link, has that name."""
    path = directory / DIGESTS
    try:
        mode = path.lstat().st_mode
    except OSError:
        return path
    return path if stat.S_ISDIR(mode) else None


def _remove_lock(path: Path, file: FileIO) -> None:
    """Remove the lock's name, as long as it is that of the file."""
    with contextlib.suppress(OSError):
        if os.path.samestat(path.lstat(), os.fstat(file.fileno())):
            path.unlink()
