"""Label conversation files. Rank 0 writes the rows to the token cache, and other ranks read them there."""

from __future__ import annotations

import contextlib
import hashlib
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from tqdm import tqdm  # type: ignore[import-untyped]

from fastsft import _C
from fastsft.data.digests import file_digest
from fastsft.data.errors import DataError, hinted_reading, raise_first
from fastsft.data.token_cache import (
    FILE_CHANGED,
    Labelled,
    cache_directory,
    cache_key,
    digest_index,
    label_with_cache,
    open_cache,
    tokenizer_digest,
)
from fastsft.ranks.rank0_first import relay
from fastsft.runtime.launch import launch
from fastsft.runtime.output_files import check_output_file, write_for_flag
from fastsft.runtime.timeouts import note_progress
from fastsft.sources.data_files import DataFile, bytes_to_read, data_files
from fastsft.sources.readers import MAX_RECORD_BYTES, open_input


@dataclass(frozen=True)
class FileOptions:
    """The options for reading and labelling files.

    data_cache: the directory of the token cache; None for the default directory, "none" for no cache.
    report_bad: the file to which bad records are written. show_progress: show a bar or lines.
    max_record_bytes: the most bytes of a record. data_format: a name in `_C.data_formats()`, or "auto" to
    detect each file's format.
    """

    data_cache: str | None = None
    report_bad: str | None = None
    show_progress: bool = True
    max_record_bytes: int = MAX_RECORD_BYTES
    data_format: str = "auto"

    @classmethod
    def from_arguments(cls, data_args: object) -> FileOptions:
        """Read the options from DataArguments.

        An object without the field `data_cache`, such as that of FastChat's class, gives no token cache.
        """
        return cls(
            getattr(data_args, "data_cache", "none"),
            getattr(data_args, "report_bad", None),
            max_record_bytes=getattr(data_args, "max_record_bytes", MAX_RECORD_BYTES),
            data_format=getattr(data_args, "data_format", "auto"),
        )


def label_files(spec: str, tokenizer: object, labeller: _C.Labeller, options: FileOptions) -> Labelled:
    """Return the labelled rows of the files that `spec` names, from the token cache if possible.

    spec: see sources/data_files.py. Every rank calls this function. Rank 0 writes the rows to the cache; the
    other ranks wait, without a collective, and map the cache file. DataError if records are faulty, after the
    file of --report_bad is written.
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
    """A labelling job: rank 0 writes rows to the token cache, and other ranks open the cache file."""

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
        """Return the rows from the cache, or label them now."""
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
        """Return the rows that rank 0 has labelled; None if this rank does not see the cache file."""
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
    total = bytes_to_read(files)
    shown = options.show_progress and launch().rank == 0
    progress = LabelProgress(total, shown=shown)
    try:
        with hinted_reading():
            return Labelled.from_native(_C.label_inputs(inputs, labeller, writer, progress))
    finally:
        progress.close()


def _check_streams(files: list[DataFile], writer: object) -> None:
    place = launch()
    if place.world_size > 1 and any(file.is_stream for file in files) and (place.rank or not writer):
        raise DataError(
            "standard input and pipes can be read once, by one rank; the others take the rows from the token "
            "cache: use --data_cache with a directory that all ranks share, or a file"
        )


_SILENT_SECONDS = 2.0  # shorter jobs print no progress
_SECONDS_BETWEEN_LINES = 10.0
_SECONDS_BETWEEN_MOVES = 0.1


class LabelProgress:
    """A progress display for labelling, with bytes and records: a bar on a terminal, otherwise plain lines.

    total_bytes: the size of all files; None if unknown. shown: False to print nothing. stream: the output
    stream, stderr by default.
    """

    def __init__(self, total_bytes: int | None, *, shown: bool = True, stream: TextIO | None = None) -> None:
        self._total = total_bytes
        self._shown = shown
        self._stream = stream or sys.stderr
        self._bar: tqdm[Any] | None = None
        self._started = self._last = time.monotonic()
        self._said = False
        self._done = (0, 0)

    def __call__(self, num_bytes: int, num_records: int) -> None:
        if (num_bytes, num_records) != self._done:
            self._done = (num_bytes, num_records)
            note_progress()
        now = time.monotonic()
        passed = now - self._started
        if not self._shown or passed < _SILENT_SECONDS:
            return
        if self._stream.isatty():
            if now - self._last >= _SECONDS_BETWEEN_MOVES:
                self._move_bar(num_bytes, num_records, passed)
                self._last = now
        elif not self._said or now - self._last >= _SECONDS_BETWEEN_LINES:
            with contextlib.suppress(OSError, ValueError):
                line = self.line(num_bytes, num_records, passed)
                print(f"labelling: {line}", file=self._stream, flush=True)
            self._said, self._last = True, now

    def line(self, num_bytes: int, num_records: int, passed: float) -> str:
        """Return the text of a plain line. passed: seconds since the start."""
        speed = num_bytes / max(passed, 1e-9)
        rate = num_records / max(passed, 1e-9)
        text = f"{num_records:,} records, {rate:,.0f} records/s, {speed / 1e6:.1f} MB/s"
        if self._total is None:
            return text
        left = max(self._total - num_bytes, 0) / max(speed, 1e-9)
        return f"{text}, {100 * num_bytes / max(self._total, 1):.0f} %, {left:.0f} s left"

    def close(self) -> None:
        """Remove the bar from the terminal."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _move_bar(self, num_bytes: int, num_records: int, passed: float) -> None:
        if self._bar is None:
            self._bar = tqdm(
                total=self._total,
                desc="labelling",
                unit="B",
                unit_scale=True,
                file=self._stream,
                dynamic_ncols=True,
                leave=False,
            )
            self._bar.start_t -= passed
        self._bar.set_postfix_str(f"{num_records / passed:,.0f} records/s", refresh=False)
        self._bar.n = num_bytes
        self._bar.refresh()
