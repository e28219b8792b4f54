"""Make the data sets of a run from the files that its arguments name (`make_supervised_data_module`).

Rules and shapes are in docs/spec/fastchat_labels.md, sections 2 and 3.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

from fastsft import _C
from fastsft.arguments.data import DataArguments, check_eval_split, check_lazy_split
from fastsft.arguments.given import was_given
from fastsft.arguments.support import default_of
from fastsft.data.chat.labelling import EACH, LabelSettings
from fastsft.data.chat.mask_policy import resolve_script_policy
from fastsft.data.conversation_labels import label_conversation_file
from fastsft.data.eval_split import DEFAULT_SEED, SEED_NAME, split_line, split_rows
from fastsft.data.interfaces import ScriptDataArguments, SizedDataset
from fastsft.data.label_files import FileOptions
from fastsft.data.label_report import check_dropped, format_lines, result_lines, shared_line
from fastsft.data.supervised import LazySupervisedDataset, SupervisedDataset, say
from fastsft.runtime.given_types import check_has, check_path
from fastsft.runtime.launch import launch
from fastsft.runtime.messages import tell
from fastsft.script_names.module_names import code_of, current, is_rebound, remember_own
from fastsft.sources.data_files import DataFile, data_files
from fastsft.sources.readers import read_content, read_records
from fastsft.tokenizer.interfaces import ChatTokenizer

# The arguments that have an effect even if a script's own `preprocess` makes the rows.
_OF_ANY_ROWS = (
    "data_path",
    "eval_data_path",
    "lazy_preprocess",
    "check_data",
    "dump_masked",
    "data_cache",
    "data_format",
    "save_chat_template",
)


def make_supervised_data_module(tokenizer: ChatTokenizer, data_args: ScriptDataArguments) -> dict[str, Any]:
    """Load and label the data files. Return {"train_dataset": ..., "eval_dataset": ...}.

    data_args: an object with `data_path`, `eval_data_path` and `lazy_preprocess`, and optionally fastsft's
    further arguments. With `eval_split`, eval_dataset is a part of the data, drawn with `eval_split_seed`,
    which a run sets to --data_seed or --seed (eval_split.py). Without `eval_data_path` and `eval_split`,
    eval_dataset is None. DataError if a larger fraction of the conversations than `max_dropped` has no label.
    Rank 0 prints a report of dropped records. Every file is
    labelled here, once, even with `lazy_preprocess`; padded tensors are made on access.
    """
    check_has(
        data_args, ("data_path",), "make_supervised_data_module: data_args", "an object with data_path",
        'write DataArguments(data_path="FILE")',
    )  # fmt: skip
    share = getattr(data_args, "eval_split", 0)
    check_eval_split(share, getattr(data_args, "eval_data_path", None))
    say("Loading data...")
    train = _load_dataset(data_args.data_path, tokenizer, data_args)
    if share:
        seed = getattr(data_args, SEED_NAME, DEFAULT_SEED)
        return _split(data_args.data_path, train, share, seed)
    path = getattr(data_args, "eval_data_path", None)
    evaluated = _load_dataset(path, tokenizer, data_args) if path else None
    if evaluated is not None:
        _note_shared(str(path), evaluated, train)
    return {"train_dataset": train, "eval_dataset": evaluated}


def _split(path: str, dataset: SizedDataset, share: float, seed: int) -> dict[str, Any]:
    """Return the data sets of `make_supervised_data_module`, and print a line about the split."""
    assert isinstance(dataset, SupervisedDataset)  # `_load_dataset` refuses --eval_split for others
    train, evaluated = split_rows(path, dataset._rows, share, seed)
    if launch().rank == 0 and train.eval_split:
        tell(split_line(path, train.eval_split))
    return {
        "train_dataset": SupervisedDataset.from_rows(train),
        "eval_dataset": SupervisedDataset.from_rows(evaluated),
    }


def _note_shared(path: str, evaluated: SizedDataset, trained: SizedDataset) -> None:
    """Print a line on rank 0 if rows of the evaluation data are also in the training data."""
    rows, others = (getattr(dataset, "native", None) for dataset in (evaluated, trained))
    if launch().rank != 0 or not isinstance(rows, _C.TokenDataset) or not isinstance(others, _C.TokenDataset):
        return
    if line := shared_line(path, rows, others):
        tell(line)


def _records_for(name: str, files: list[DataFile], data_format: str) -> Any:
    """Return the content of the data files for the object that a script has assigned to `name`.

    A class of the script gets the parsed content of the file, as in FastChat, unless --data_format names a
    format. `preprocess`, and classes derived from fastsft's data sets, get ShareGPT records.
    """
    if name == "preprocess" or data_format != "auto" or _labels_by_ours(current(name)):
        return read_records(files, data_format=data_format)
    return read_content(files)


def _labels_by_ours(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, (SupervisedDataset, LazySupervisedDataset))


def _load_dataset(path: str, tokenizer: ChatTokenizer, data_args: ScriptDataArguments) -> SizedDataset:
    check_path(path, "data_path", 'write the names of files as one text, as in "a.json,b.json"')
    kind = "LazySupervisedDataset" if data_args.lazy_preprocess else "SupervisedDataset"
    for name in (kind, "preprocess"):
        if is_rebound(name) or (name == kind and _has_other_constructor(kind)):
            refuse_label_flags(data_args, name)
            records = _records_for(name, data_files(str(path)), getattr(data_args, "data_format", "auto"))
            made: SizedDataset = current(kind)(records, tokenizer=tokenizer)
            return made
    settings = resolve_script_policy(LabelSettings.from_arguments(data_args))
    options = FileOptions.from_arguments(data_args)
    check_lazy_split(data_args.lazy_preprocess, settings.overlong)
    rows = label_conversation_file(path, tokenizer, settings, options)
    if getattr(data_args, "legacy_warnings", False):
        for line in rows.report.warnings:
            say(line)
    for line in format_lines(data_files(str(path)), rows.report):
        tell(line)
    template = rows.labelling.get("template", "")
    check_dropped(path, rows.report, getattr(data_args, "max_dropped", 1.0), template)
    for line in result_lines(rows.report, tokenizer.model_max_length, template):
        tell(f"{path}: {line}")
    is_divided = rows.labelling.get("train_turns") == EACH or "split" in rows.report.entries
    if data_args.lazy_preprocess and getattr(data_args, "eval_split", 0) != 0:
        tell(f"{path}: --lazy_preprocess has no effect with --eval_split")
    elif data_args.lazy_preprocess and is_divided:
        tell(f"{path}: --lazy_preprocess has no effect: a record has a row for each of its replies")
    elif data_args.lazy_preprocess:
        read = partial(read_records, data_files(str(path)), options.max_record_bytes, options.data_format)
        return LazySupervisedDataset.from_rows(rows, tokenizer, read)
    return SupervisedDataset.from_rows(rows)


def refuse_label_flags(data_args: object, name: str) -> None:
    """Raise ValueError if a label flag is set although the script's object `name` makes the rows."""
    for field in dataclasses.fields(DataArguments):
        value = getattr(data_args, field.name, field.default)
        is_asked = was_given(data_args, field.name) or value != default_of(field)
        if field.name not in _OF_ANY_ROWS and is_asked:
            raise ValueError(
                f"--{field.name} {value} has no effect: train.{name} was set by the script and makes the "
                "rows; leave the flag out"
            )


def _constructor_of(kind: Any) -> tuple[Any, ...]:
    return kind.__init__, kind.__new__, code_of(kind.__init__)


_CONSTRUCTORS = {kind.__name__: _constructor_of(kind) for kind in (SupervisedDataset, LazySupervisedDataset)}


def _has_other_constructor(kind: str) -> bool:
    own = current(kind)
    return _constructor_of(own) != _CONSTRUCTORS[kind]


remember_own(make_supervised_data_module=make_supervised_data_module)
