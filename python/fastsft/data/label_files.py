"""Files of conversations to labelled rows: formats, token cache, ranks, progress, list of bad records."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fastsft import _C
from fastsft.data.cache_directory import cache_directory, digest_index
from fastsft.data.content_digest import file_digest
from fastsft.data.errors import DataError, hinted_reading, raise_first
from fastsft.data.label_progress import LabelProgress
from fastsft.data.token_cache import (
    FILE_CHANGED,
    Labelled,
    cache_key,
    label_with_cache,
    open_cache,
    tokenizer_digest,
)
from fastsft.ranks.rank0_first import relay
from fastsft.runtime.output_files import check_output_file, write_for_flag
from fastsft.runtime.place import launch
from fastsft.sources.data_files import MAX_RECORD_BYTES, DataFile, data_files, open_input


@dataclass(frozen=True)
class FileOptions:
    """`data_cache`: where labelled rows are kept. `report_bad`: where bad records are listed.

    `max_record_bytes`: how long a record may be. `data_format`: a name of `_C.data_formats()`, or "auto" for
    what the records of each file say.
    """

    data_cache: str | None = None
    report_bad: str | None = None
    show_progress: bool = True
    max_record_bytes: int = MAX_RECORD_BYTES
    data_format: str = "auto"

    @classmethod
    def from_arguments(cls, data_args: object) -> FileOptions:
        """From DataArguments. An object of FastChat's own class has no cache."""
        return cls(
            getattr(data_args, "data_cache", "none"),
            getattr(data_args, "report_bad", None),
            max_record_bytes=getattr(data_args, "max_record_bytes", MAX_RECORD_BYTES),
            data_format=getattr(data_args, "data_format", "auto"),
        )


def label_files(spec: str, tokenizer: object, labeller: _C.Labeller, options: FileOptions) -> Labelled:
    """Rows of the files that `spec` names (sources/data_files.py), from the token cache where it can be.

    Every rank calls it: rank 0 labels into the cache, the others wait without any collective and map its
    file. Faults raise DataError, after --report_bad is written.
    """
    files = data_files(spec)
    if options.report_bad:
        check_output_file(options.report_bad, "--report_bad")
    digest = tokenizer_digest(tokenizer)
    directory = cache_directory(options.data_cache) if digest else None
    if directory is None:
        labelled = _label(files, labeller, None, options)
    else:
        job = _CachedJob(files, directory, str(digest), labeller, options)
        labelled = relay(job.label, job.open) if launch().world_size > 1 else job.label()
    if options.report_bad and launch().rank == 0:
        write_for_flag(options.report_bad, labelled.bad_records, "--report_bad")
    raise_first(labelled.faults, labelled.num_faults, labelled.report.num_records)
    return labelled


class _CachedJob:
    def __init__(
        self,
        files: list[DataFile],
        directory: Path,
        tokenizer: str,
        labeller: _C.Labeller,
        options: FileOptions,
    ) -> None:
        self._files, self._directory, self._tokenizer = files, directory, tokenizer
        self._labeller, self._options = labeller, options
        self._streams = [hashlib.sha256() for file in files if file.is_stream]

    def label(self) -> Labelled:
        """From the cache, or now."""
        before = self._contents() if self._streams else []

        def find_key() -> str:
            if self._streams and self._contents() != before:
                raise DataError(FILE_CHANGED)
            return self._key()

        return label_with_cache(
            self._directory,
            find_key,
            lambda writer: _label(self._files, self._labeller, writer, self._options, self._streams),
            is_known_before=not self._streams,
        )

    def open(self, key: str) -> Labelled | None:
        """The labels that another rank made; None where its file cannot be seen."""
        return open_cache(self._directory, key, verify=False)

    def _contents(self) -> list[str]:
        index = digest_index(self._directory)
        return [file_digest(file.path, index) for file in self._files if not file.is_stream]

    def _key(self) -> str:
        streams = [digest.hexdigest() for digest in self._streams]
        options = [self._labeller.options.fingerprint, self._options.data_format]
        return cache_key(self._files, self._directory, self._tokenizer, options, streams)


def _label(
    files: list[DataFile],
    labeller: _C.Labeller,
    writer: _C.TokenCacheWriter | None,
    options: FileOptions,
    streams: Sequence[hashlib._Hash] | None = None,
) -> Labelled:
    _check_streams(files, writer)
    watches, limit = iter(streams or []), options.max_record_bytes
    inputs = [
        open_input(
            file, next(watches).update if streams and file.is_stream else None, limit, options.data_format
        )
        for file in files
    ]
    total = None if any(file.is_stream for file in files) else sum(map(_size, files))
    shown = options.show_progress and launch().rank == 0
    progress = LabelProgress(total, shown=shown)
    try:
        with hinted_reading():
            return Labelled.of(_C.label_inputs(inputs, labeller, writer, progress))
    finally:
        progress.close()


def _check_streams(files: list[DataFile], writer: object) -> None:
    place = launch()
    if place.world_size > 1 and any(file.is_stream for file in files) and (place.rank or not writer):
        raise DataError(
            "standard input and pipes can be read once, by one rank; the others take the rows from the token "
            "cache: use --data_cache with a directory that all ranks share, or a file"
        )


def _size(file: DataFile) -> int:
    return os.path.getsize(file.path)
