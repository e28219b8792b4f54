"""Label once: rows of a data set in one mapped file that later runs and all ranks share.

File, safety and names: docs/data_files.md, "Token cache".
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fastsft import _C, __version__
from fastsft.data.cache_directory import digest_index, mark_used, only_writer, remove_forgotten
from fastsft.data.content_digest import file_digest
from fastsft.data.errors import DataError
from fastsft.runtime.messages import tell
from fastsft.sources.data_files import DataFile
from fastsft.tokenizer.kept_files import KeptFiles

# Raised with every change of what labelling makes of the same inputs.
_LABEL_VERSION = 10
FILE_CHANGED = "a data file changed while it was read; start again when nothing writes to it"


@dataclass
class Labelled:
    """Rows (_C.TokenDataset), their report (_C.DataReport), faults (_C.RecordError) and lines of --report_bad.

    bad_records: a view of the bytes, as many as there are bad records: written in place, not copied.
    cache: the file that the rows are mapped from and its key, if they are.
    """

    dataset: _C.TokenDataset
    report: _C.DataReport
    faults: list[_C.RecordError]
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
