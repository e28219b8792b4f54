"""FastChat's data functions: `preprocess`, the two data sets and `make_supervised_data_module`.

Rules and shapes: docs of `fastchat.train.train` as pinned in the project's label specification. Labels are
computed natively; padded tensors are made only for those who ask for them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch.utils.data import Dataset

from fastsft import _C
from fastsft.chat.labelling import LabelSettings, describe, make_labeller
from fastsft.dataset.called_rows import CalledRows, called_columns, refuse_label_flags
from fastsft.dataset.errors import DataError, raise_first
from fastsft.dataset.json_lines import write_conversations
from fastsft.dataset.label_files import FileOptions, label_files
from fastsft.dataset.sources import data_files, read_records
from fastsft.notices import rank0_print, tell, warn_once
from fastsft.script_names.patched_libraries import refuse_reader, refuse_template
from fastsft.script_names.rebound import current, is_rebound, refuse_unused, remember_own
from fastsft.tokenizers.native_tokenizer import called_tokenizer, native_of

IGNORE_TOKEN_ID = -100
Tensors = dict[str, torch.Tensor]

_CACHED_ROWS = 256
_MAX_MATERIALISED = 1 << 20


class LabelledRows:
    """Labelled conversations: `native` (_C.TokenDataset, a row a conversation), `report` (_C.DataReport).

    `width`: model_max_length, the padded length of a row. `pad_id`: what fills it up. `mask_by_length`: the
    attention mask covers the row's tokens, whatever their ids; else, as FastChat's, all ids but `pad_id`.
    `labelling`: policy, template, stop token, and the size that a record may have.
    """

    def __init__(
        self,
        labelled: Any,
        width: int,
        pad_id: int,
        mask_by_length: bool = False,
        labelling: dict[str, Any] | None = None,
    ) -> None:
        self.native = labelled.dataset
        self.report = labelled.report
        self.width = width
        self.pad_id = pad_id
        self.mask_by_length = mask_by_length
        self.native.masked_id = -1 if mask_by_length else pad_id  # what the rows' masks say
        self.labelling = labelling or {}

    def __len__(self) -> int:
        return len(self.native)

    def tensors(self, begin: int, end: int) -> Tensors:
        """Rows [begin, end): input_ids and labels int64, attention_mask bool, each [end - begin, width]."""
        arrays = _C.padded_rows(
            self.native, begin, end, self.width, self.pad_id, mask_by_length=self.mask_by_length
        )
        names = ("input_ids", "labels", "attention_mask")
        return {name: torch.from_numpy(array) for name, array in zip(names, arrays, strict=True)}

    def row(self, index: int | slice) -> Tensors:
        """One row, each tensor [width], or those of a slice, each [rows, width]; negative indices count back.

        IndexError for a row outside the data set, ValueError for a slice that goes backwards.
        """
        size = len(self.native)
        if isinstance(index, slice):
            begin, end, step = index.indices(size)
            return {key: value[::step] for key, value in self.tensors(begin, max(begin, end)).items()}
        at = index + size if index < 0 else index
        if not 0 <= at < size:
            raise IndexError(f"row {index} is not in a data set of {size} rows")
        return {key: value[0] for key, value in self.tensors(at, at + 1).items()}


def preprocess(sources: Sequence[Any], tokenizer: Any) -> Tensors:
    """Ids, labels and mask of conversations (lists of messages), exactly as FastChat makes them.

    tokenizer: a fastsft Tokenizer or a Hugging Face tokenizer object. Returns `input_ids` and `labels`
    (int64) and `attention_mask` (bool), each [len(sources), tokenizer.model_max_length]; labels are not
    shifted and -100 where nothing is learned. Prints FastChat's line for each dropped conversation on rank 0.
    Raises DataError for a faulty conversation (also a KeyError, IndexError, TypeError, AssertionError or
    RuntimeError, as FastChat would raise), ValueError for left padding, left truncation or no pad token.
    """
    rows = _label_sources(sources, tokenizer)
    for line in rows.report.warnings:
        _say(line)
    return rows.tensors(0, len(rows))


class SupervisedDataset(Dataset[Tensors]):
    """All conversations of `raw_data` (records with "conversations"), labelled at once.

    Items: `input_ids`, `labels` (int64) and `attention_mask` (bool), each [model_max_length]. The attributes
    of the same names hold all rows and are made when first asked for. `native`, `report`: see LabelledRows.
    """

    def __init__(self, raw_data: Sequence[Any], tokenizer: Any) -> None:
        super().__init__()
        _say("Formatting inputs...")
        self._rows: LabelledRows | CalledRows
        if is_rebound("preprocess"):
            self._rows = CalledRows(current("preprocess"), _sources(raw_data), tokenizer)
            return
        self._rows = _label_sources(_sources(raw_data), tokenizer)
        for line in self._rows.report.warnings:
            _say(line)

    @classmethod
    def from_rows(cls, rows: LabelledRows) -> SupervisedDataset:
        """A data set over rows that are labelled already."""
        dataset = cls.__new__(cls)
        dataset._rows = rows
        return dataset

    @property
    def native(self) -> Any:
        return self._rows.native

    @property
    def report(self) -> Any:
        return self._rows.report

    @property
    def labelling(self) -> dict[str, str]:
        return self._rows.labelling

    @cached_property
    def _all(self) -> Tensors:
        return self._rows.tensors(0, len(self))

    @property
    def input_ids(self) -> torch.Tensor:
        return self._all["input_ids"]

    @property
    def labels(self) -> torch.Tensor:
        return self._all["labels"]

    @property
    def attention_mask(self) -> torch.Tensor:
        return self._all["attention_mask"]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, i: int | slice) -> Tensors:
        return self._rows.row(i)


class LazySupervisedDataset(Dataset[Tensors]):
    """The same items, each labelled when it is asked for; the latest stay in `cached_data_dict`.

    `native` and `report` label all records, once.
    """

    def __init__(self, raw_data: Sequence[Any], tokenizer: Any) -> None:
        super().__init__()
        _say("Formatting inputs...Skip in lazy mode")
        self.tokenizer = tokenizer
        self.cached_data_dict: OrderedDict[int, Tensors] = OrderedDict()
        self._raw_data: Callable[[], Sequence[Any]] | Sequence[Any] = raw_data

    @classmethod
    def from_rows(
        cls, rows: LabelledRows, tokenizer: Any, read_raw_data: Callable[[], Sequence[Any]]
    ) -> LazySupervisedDataset:
        """A data set over labelled rows; `raw_data` is read when somebody asks for it."""
        dataset = cls(read_raw_data, tokenizer)  # type: ignore[arg-type]
        dataset.__dict__["_rows"] = rows
        return dataset

    @property
    def raw_data(self) -> Sequence[Any]:
        if callable(self._raw_data):
            self._raw_data = self._raw_data()
        return self._raw_data

    @cached_property
    def _rows(self) -> LabelledRows:
        return _label_sources(_sources(self.raw_data), self.tokenizer)

    @property
    def native(self) -> Any:
        return None if is_rebound("preprocess") else self._rows.native

    @property
    def report(self) -> Any:
        return None if is_rebound("preprocess") else self._rows.report

    @property
    def labelling(self) -> dict[str, str]:
        return {} if is_rebound("preprocess") else self._rows.labelling

    def __len__(self) -> int:
        return len(self._rows) if callable(self._raw_data) else len(self.raw_data)

    def __getitem__(self, i: int) -> Tensors:
        if i in self.cached_data_dict:
            return self.cached_data_dict[i]
        if is_rebound("preprocess"):
            sources = _sources([self.raw_data[i]])
            batch = called_columns(current("preprocess"), sources, self.tokenizer)
            item = {key: value[0] for key, value in batch.items()}
        elif "_rows" in self.__dict__:
            item = self._rows.row(i)
        else:
            batch = preprocess(_sources([self.raw_data[i]]), self.tokenizer)
            item = {key: value[0] for key, value in batch.items()}
        self.cached_data_dict[i] = item
        if len(self.cached_data_dict) > _CACHED_ROWS:
            self.cached_data_dict.popitem(last=False)
        return item


def make_supervised_data_module(tokenizer: Any, data_args: Any) -> dict[str, Any]:
    """`train_dataset` and `eval_dataset` (None without `eval_data_path`) from FastChat's JSON files.

    data_args: `data_path`, `eval_data_path`, `lazy_preprocess`; of fastsft also `max_dropped` (fraction of
    conversations without a label above which DataError is raised) and `legacy_warnings`. The report of what
    was dropped is printed on rank 0. Every file is labelled here, once, with `lazy_preprocess` too; padded
    tensors are made when rows are asked for.
    """
    _say("Loading data...")
    train = _load_dataset(data_args.data_path, tokenizer, data_args)
    path = getattr(data_args, "eval_data_path", None)
    return {
        "train_dataset": train,
        "eval_dataset": _load_dataset(path, tokenizer, data_args) if path else None,
    }


def _load_dataset(path: str, tokenizer: Any, data_args: Any) -> Any:
    kind = "LazySupervisedDataset" if data_args.lazy_preprocess else "SupervisedDataset"
    for name in (kind, "preprocess"):
        if is_rebound(name):
            refuse_label_flags(data_args, name)
            return current(kind)(read_records(data_files(str(path))), tokenizer=tokenizer)
    settings = LabelSettings.from_arguments(data_args)
    options = FileOptions.from_arguments(data_args)
    rows = _label_file(path, tokenizer, settings, options)
    if getattr(data_args, "legacy_warnings", False):
        for line in rows.report.warnings:
            _say(line)
    tell(f"{path}: {rows.report.summary()}")
    check_dropped(path, rows.report, getattr(data_args, "max_dropped", 1.0))
    if data_args.lazy_preprocess:
        files, limit = data_files(str(path)), options.max_record_bytes
        return LazySupervisedDataset.from_rows(rows, tokenizer, lambda: read_records(files, limit))
    return SupervisedDataset.from_rows(rows)


def check_dropped(path: str, report: Any, max_dropped: float) -> None:
    """DataError when nothing is learned, or more than the fraction `max_dropped` has no label."""
    missing, total = report.num_without_labels, report.num_records
    if report.num_learned > 0 and missing <= max_dropped * total:
        return
    if total == 0:
        raise DataError(f"{path}: expected conversations, got none")
    reason = f"{missing} of {total} conversations have no label, --max_dropped {max_dropped:g} allows fewer"
    if report.num_learned == 0:
        reason = "nothing in this file is learned"
    raise DataError(f"{path}: {reason}; {report.summary()}")


def _label_file(path: str, tokenizer: Any, settings: LabelSettings, options: FileOptions) -> LabelledRows:
    refuse_unused()
    native = native_of(tokenizer)
    spans = settings.mask_policy == "spans"
    refuse_reader()
    if not spans:
        refuse_template()
    if native is None and not spans:
        return _label_sources(
            _sources(read_records(data_files(str(path)), options.max_record_bytes)), tokenizer
        )
    if native is None:
        raise ValueError(
            f"--mask_policy spans: {type(tokenizer).__name__} has no native equal in fastsft; load the "
            "tokenizer with fastsft.Tokenizer.from_pretrained(directory)"
        )
    width, pad_id = check_tokenizer(tokenizer, any_pad=spans)
    labeller = make_labeller(native, width, pad_id, settings, tokenizer=tokenizer, self_test=True)
    labelled = label_files(str(path), tokenizer, labeller, options)
    labelling = {**describe(labeller), "max_record_bytes": options.max_record_bytes}
    return LabelledRows(labelled, width, pad_id, mask_by_length=spans, labelling=labelling)


def _label_sources(sources: Sequence[Any], tokenizer: Any) -> LabelledRows:
    refuse_unused()
    refuse_template()
    native = native_of(tokenizer)
    width, pad_id = check_tokenizer(tokenizer)
    if native is None:
        warn_once(
            f"{type(tokenizer).__name__} has no native equal in fastsft yet: the object itself is called, "
            "as FastChat does, which is slow"
        )
        labeller = make_labeller(called_tokenizer(tokenizer), width, pad_id, num_threads=1)
    else:
        labeller = make_labeller(native, width, pad_id)
    labelled = None if native is None else _C.label_lists(sources, labeller)
    if labelled is None:
        labelled = _C.label_text(write_conversations(sources), labeller)
    raise_first(labelled.faults)
    return LabelledRows(labelled, width, pad_id)


def check_tokenizer(tokenizer: Any, any_pad: bool = False) -> tuple[int, int]:
    """model_max_length and the pad id, refused where FastChat's labels would be wrong or impossible.

    any_pad: EOS, or 0, fills rows up where there is no pad token (fastchat_labels.md, 7.2).
    """
    if getattr(tokenizer, "padding_side", "right") != "right":
        raise ValueError("labels need right padding, got padding_side left; use --padding_side right")
    if getattr(tokenizer, "truncation_side", "right") != "right":
        raise ValueError(
            "labels need conversations cut on the right, got truncation_side left; set "
            'tokenizer.truncation_side = "right"'
        )
    width, pad_id = tokenizer.model_max_length, tokenizer.pad_token_id
    if not 0 < width <= _MAX_MATERIALISED:
        raise ValueError(
            f"model_max_length must lie between 1 and {_MAX_MATERIALISED}, got {width}; "
            "give --model_max_length, or model_max_length= to from_pretrained"
        )
    if pad_id is None and any_pad:
        pad_id = tokenizer.eos_token_id or 0
    if pad_id is None:
        raise ValueError(
            "the tokenizer has no pad token; FastChat pads with unk (pad_token = unk_token). "
            "--mask_policy spans needs neither"
        )
    return int(width), int(pad_id)


def _sources(raw_data: Sequence[Any]) -> list[Any]:
    sources = []
    for number, record in enumerate(raw_data):
        try:
            sources.append(record["conversations"])
        except (KeyError, TypeError, IndexError) as error:
            kind = type(error).__name__
            reason = 'no "conversations"' if kind == "KeyError" else "record is not an object"
            raise_first([_RecordFault(kind, f"record {number}: {reason}")])
    return sources


class _RecordFault:
    def __init__(self, kind: str, text: str) -> None:
        self.kind = kind
        self._text = text

    def __str__(self) -> str:
        return self._text


def _say(*words: Any) -> None:
    """FastChat's lines, through `rank0_print` or what a script bound to that name."""
    current("rank0_print")(*words)


remember_own(
    preprocess=preprocess,
    SupervisedDataset=SupervisedDataset,
    LazySupervisedDataset=LazySupervisedDataset,
    make_supervised_data_module=make_supervised_data_module,
    rank0_print=rank0_print,
)
