"""Checks a run's data: opens every file, and labels its first records as training would."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Callable
from typing import Any

from fastsft import _C
from fastsft.data.errors import DataError, raise_first
from fastsft.data.label_report import check_dropped
from fastsft.data.token_rows import TokenRows
from fastsft.doctor.check import ExaminedRun, NotCheckedError, ProblemError
from fastsft.runtime.regular_files import open_regular
from fastsft.sources.data_files import DataFile, data_files
from fastsft.sources.hub_files import is_hub_path
from fastsft.sources.readers import MAX_RECORD_BYTES, open_reader

_SECONDS = 3.0
_MOST_CUT = 0.1  # if a larger share of rows is truncated, the check warns
_FILES = "files, patterns such as data/*.jsonl, several with commas between them"


def check_data(run: ExaminedRun) -> str:
    """Check the files of --data_path."""
    path = run.need("data_args", "the configuration").data_path
    if path is None:
        raise ProblemError("--data_path: expected a file of conversations, got none", "name one")
    labelled, is_all, text = _label(run, "data_path", path)
    run.rows, run.has_all_rows = TokenRows(labelled.dataset, run.resolved_args.model_max_length), is_all
    run.rows.check_for(run.opened_model, run.opened_model.vocab_size())
    if labelled.report.num_truncated > _MOST_CUT * labelled.report.num_records:
        max_length = run.resolved_args.model_max_length
        raise ProblemError(text, f"rows end at {max_length} tokens: --model_max_length says more", "warning")
    return text


def check_eval_data(run: ExaminedRun) -> str:
    """Check the files of --eval_data_path."""
    data_args = run.need("data_args", "the configuration")
    if data_args.eval_split:
        return f"--eval_split {data_args.eval_split:g} takes it from --data_path"
    path = data_args.eval_data_path
    if path is None:
        return "none is named, none is needed"
    labelled, _, text = _label(run, "eval_data_path", path)
    rows = TokenRows(labelled.dataset, run.resolved_args.model_max_length)
    rows.check_for(run.opened_model, run.opened_model.vocab_size(), training=False)
    return text


def _label(run: ExaminedRun, flag: str, path: str) -> tuple[_C.LabelledData, bool, str]:
    """Label the first records in `path`; return the data, whether all records were read, and a summary."""
    try:
        files = data_files(path, fetch=False)
    except ValueError as error:
        way = (
            f"let the run download it, or correct --{flag}"
            if is_hub_path(path)
            else f"correct --{flag}: {_FILES}"
        )
        raise ProblemError(f"--{flag}: {error}", way) from None
    if any(file.is_stream for file in files):
        raise NotCheckedError(f"--{flag} {path}: standard input and pipes can be read once, by the run")
    heads = _heads(files, run)
    labeller = run.need("labeller", "a tokenizer and a chat template")
    labelled = _C.label_inputs([head for head, _ in heads], labeller)
    raise_first(labelled.faults, labelled.num_faults, labelled.report.num_records)
    is_all = len(heads) == len(files) and all(whole for _, whole in heads)
    text = _text(run, files, heads, labelled)
    try:
        check_dropped(
            path, labelled.report, run.resolved_data_args.max_dropped, labeller.options.chat_template
        )
    except DataError as error:
        if is_all:
            raise
        raise ProblemError(
            f"of the records looked at: {error}", "fastsft inspect --only dropped shows them", "warning"
        ) from None
    return labelled, is_all, text


def _heads(files: list[DataFile], run: ExaminedRun) -> list[tuple[Any, bool]]:
    """Read the first records of each file until the time limit; only open the files that remain."""
    heads, end = [], time.monotonic() + _SECONDS
    for file in files:
        if time.monotonic() < end:
            heads.append(head_of(file, run.records, run.resolved_data_args.data_format))
        else:
            with open_regular(file.path, "a file of data") as opened:
                opened.read(1)
    return heads


def _text(run: ExaminedRun, files: list[DataFile], heads: list[Any], labelled: _C.LabelledData) -> str:
    kinds = ", ".join(dict.fromkeys(use.title for use in labelled.report.formats if use.title))
    count = f"{len(files)} file{'' if len(files) == 1 else 's'} of {kinds or 'no records'}"
    left = len(files) - len(heads)
    whole = all(is_whole for _, is_whole in heads)
    first = f"the first {run.records} records{' of each' if len(files) > 1 else ''}"
    looked = "all records" if whole and not left else first
    rest = f", {left} files opened only" if left else ""
    total = max(labelled.report.num_records, 1)
    cut = labelled.report.num_truncated / total
    return f"{count}, {looked}{rest}, {cut:.1%} of them cut off: {labelled.report.summary()}"


_BLOCK = 1 << 20
_MOST_BYTES = 1 << 26
_BOM = b"\xef\xbb\xbf"
# Matches a JSON string, which may be cut off at the end, or a bracket or a comma.
_PART = re.compile(rb'"(?:[^"\\]|\\.?)*+(?:"|\Z)|[\[\]{},]', re.S)


def head_of(file: DataFile, records: int, data_format: str = "auto") -> tuple[Any, bool]:
    """Return an input with a file's first `records` records, and whether these are all.

    Error messages have positions in the file. DataError if the first 64 MiB contain no whole record.
    """
    data, is_all = _read_head(open_reader(file), records, file.path)
    head = _C.DataInput(file.path, io.BytesIO(data).read, file.weight, MAX_RECORD_BYTES, data_format)
    return head, is_all


def _read_head(read: Callable[[int], bytes], records: int, name: str) -> tuple[bytes, bool]:
    data, size = b"", _BLOCK
    while True:
        while len(data) < size and (block := read(size - len(data))):
            data += block
        is_all = len(data) < size
        cut, count = cut_records(data, records)
        if count == records and cut < len(data):
            return data[:cut] + _end(data), not data[cut:].strip(b" \n\r\t,]")
        if is_all:
            return data, True
        if size >= _MOST_BYTES:
            if not count:
                raise DataError(f"{name}: its first 64 MiB hold no whole record; expected JSON records")
            return data[:cut] + _end(data), False
        size *= 4


def cut_records(data: bytes, records: int) -> tuple[int, int]:
    """Return the offset at which the first `records` records in JSON text end, and how many were found."""
    if not _is_array(data):
        return _cut_lines(data, records)
    depth = count = cut = 0
    for part in _PART.finditer(data):
        sign = part[0][:1]
        depth += (sign in b"[{") - (sign in b"]}")
        if depth == 1 and sign == b",":
            count, cut = count + 1, part.start()
            if count == records:
                break
    return cut, count


def _cut_lines(data: bytes, records: int) -> tuple[int, int]:
    count = cut = begin = 0
    while count < records and (end := data.find(b"\n", begin)) >= 0:
        if data[begin:end].strip():
            count, cut = count + 1, end + 1
        begin = end + 1
    return cut, count


def _is_array(data: bytes) -> bool:
    return data.removeprefix(_BOM).lstrip(b" \n\r\t")[:1] == b"["


def _end(data: bytes) -> bytes:
    return b"]" if _is_array(data) else b""
