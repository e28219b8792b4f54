"""The data: every file opens, and its first records become labels as in training."""

from __future__ import annotations

import time
from typing import Any

from fastsft import _C
from fastsft.data.errors import DataError, raise_first
from fastsft.data.label_report import check_dropped
from fastsft.data.token_rows import TokenRows
from fastsft.doctor.data_head import head_of
from fastsft.doctor.result import NotCheckedError, ProblemError
from fastsft.doctor.run import Run
from fastsft.runtime.regular_files import open_regular
from fastsft.sources.data_files import DataFile, data_files
from fastsft.sources.hub_files import is_hub_path

_SECONDS = 3.0
_MOST_CUT = 0.1  # of the rows, before it is a warning
_FILES = "files, patterns such as data/*.jsonl, several with commas between them"


def check_data(run: Run) -> str:
    """Of --data_path."""
    path = run.need("data_args", "the configuration").data_path
    if path is None:
        raise ProblemError("--data_path: expected a file of conversations, got none", "name one")
    labelled, is_all, text = _label(run, "data_path", path)
    run.rows, run.has_all_rows = TokenRows(labelled.dataset, run.settled_args.model_max_length), is_all
    run.rows.check_for(run.opened_model, run.opened_model.vocab_size())
    if labelled.report.num_truncated > _MOST_CUT * labelled.report.num_records:
        longest = run.settled_args.model_max_length
        raise ProblemError(text, f"rows end at {longest} tokens: --model_max_length says more", "warning")
    return text


def check_eval_data(run: Run) -> str:
    """Of --eval_data_path."""
    path = run.need("data_args", "the configuration").eval_data_path
    if path is None:
        return "none is named, none is needed"
    labelled, _, text = _label(run, "eval_data_path", path)
    rows = TokenRows(labelled.dataset, run.settled_args.model_max_length)
    rows.check_for(run.opened_model, run.opened_model.vocab_size(), training=False)
    return text


def _label(run: Run, flag: str, path: str) -> tuple[_C.LabelledData, bool, str]:
    """The labelled records, whether they are all, and what they came to."""
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
            path, labelled.report, run.settled_data_args.max_dropped, labeller.options.chat_template
        )
    except DataError as error:
        if is_all:
            raise
        raise ProblemError(
            f"of the records looked at: {error}", "fastsft inspect --only dropped shows them", "warning"
        ) from None
    return labelled, is_all, text


def _heads(files: list[DataFile], run: Run) -> list[tuple[Any, bool]]:
    """Of every file while there is time, the rest is opened only."""
    heads, end = [], time.monotonic() + _SECONDS
    for file in files:
        if time.monotonic() < end:
            heads.append(head_of(file, run.records, run.settled_data_args.data_format))
        else:
            with open_regular(file.path, "a file of data") as opened:
                opened.read(1)
    return heads


def _text(run: Run, files: list[DataFile], heads: list[Any], labelled: _C.LabelledData) -> str:
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
