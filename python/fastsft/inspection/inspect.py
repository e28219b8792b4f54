"""`fastsft.inspect`, which shows the targets in single conversations and counts them in the whole data set.

Labels are made by the same code as in training. Weights are not read.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from fastsft import _C
from fastsft.data.chat.labelling import (
    AUTO,
    LabelSettings,
    describe,
    describe_labels,
    make_labeller,
    parse_role_map,
)
from fastsft.data.chat.mask_policy import resolve_policy, set_pad_token
from fastsft.data.conversation_labels import check_tokenizer, detect_tools
from fastsft.data.errors import hinted_reading
from fastsft.data.interfaces import is_from_datasets
from fastsft.data.label_files import LabelProgress
from fastsft.inspection.inspected import InspectedData, InspectedRecord
from fastsft.inspection.inspection_page import frame, page
from fastsft.inspection.inspection_text import inspection_text
from fastsft.runtime.given_types import can_be_iterated, check_tokenizer_type
from fastsft.runtime.hub_models import tokenizer_directory
from fastsft.runtime.interactive import short_in_cells
from fastsft.runtime.near_names import nearest_text
from fastsft.sources.data_files import bytes_to_read, data_files
from fastsft.sources.json_lines import JsonArray, without_fills
from fastsft.sources.readers import MAX_RECORD_BYTES, open_input
from fastsft.tokenizer.json_tokenizer import NO_LIMIT, byte_tokenizer
from fastsft.tokenizer.tokenizer import Tokenizer
from fastsft.tokenizer.transformers_tokenizer import find_native_tokenizer

DEFAULT_MAX_LENGTH = 512  # default of TrainingArguments.model_max_length


@dataclass(frozen=True, repr=False)
class Inspection(InspectedData):
    """A data set as training would see it. A notebook shows the object as HTML; `print` shows text.

    records: the records that were chosen. report: _C.DataReport of the whole data set, with the numbers of
    data_report.json. lengths: row counts by token count. learned: row counts by target count. faults: errors
    that would stop training (the first thousand of num_faults). num_matching: how many records match
    `record` and `only`. unit: unit of lengths, "tokens", or "bytes" if no model was given.
    """

    def html(self) -> str:
        """Return the inspection as an HTML page that needs no other files."""
        return page(self)

    def _repr_html_(self) -> str:
        return frame(self)

    def __str__(self) -> str:
        return inspection_text(self)


@short_in_cells(ValueError)
def inspect(
    model: str | Path | Tokenizer,
    data: str | Path | Iterable[object],
    *,
    model_max_length: int | None = None,
    n: int = 5,
    record: str | int | None = None,
    only: str | None = None,
    random: bool = False,
    seed: int = 0,
    role_map: str | dict[str, str] | None = None,
    show_progress: bool = False,
    max_record_bytes: int = MAX_RECORD_BYTES,
    data_format: str = "auto",
    **settings: Any,
) -> Inspection:
    """Label `data` as training would, without reading weights, and explain up to `n` records.

    model: a model directory, of which only the tokenizer is read, or a fastsft Tokenizer.
    data: a value for --data_path (files, patterns, weights, "-"), or records in memory.
    model_max_length: by default 512, as in training; for a Tokenizer, its own.
    record: choose the record with this id, or with this number in its file.
    only: choose records with an outcome ("dropped", "truncated", "stopped", ...) or a reason ("embedded_eos",
    ...). random: True to choose records at random by `seed`, instead of the first records.
    role_map: additional role names, as {"alice": "user"} or "alice=user".
    show_progress: True to show a bar or lines on standard error while reading.
    max_record_bytes: the most bytes of a record in a file. data_format: by default detected. settings:
    mask_policy, template, chat_template_name, train_turns, learn, learn_tool_calls, learn_thoughts,
    default_system, role_aliases, on_bad_sample, overlong, boundary_tokens (labelling.LabelSettings).
    ValueError for options and data that cannot be used, and if no record is `record`.
    """
    if not isinstance(model, str | Path):
        check_tokenizer_type(model, "inspect: model")
    if not isinstance(data, Path) and not can_be_iterated(data):
        raise TypeError(f"inspect: data: expected a file or records, got {data!r:.60}; name the file")
    if not isinstance(n, int):
        raise TypeError(f"n: expected a number of records, got {n!r}; without it 5 are shown")
    chosen = _C.SurveyChoice(
        count=n, seed=seed if random else None, id=None if record is None else str(record), only=only
    )
    roles = role_map if isinstance(role_map, dict) else parse_role_map(role_map)
    known = [field.name for field in fields(LabelSettings)]
    if unknown := [name for name in settings if name not in known]:
        near = nearest_text(unknown[0], known)
        raise TypeError(f"inspect: unknown option {unknown[0]}; known: {', '.join(known)}{near}")
    setup = prepare(
        model, LabelSettings(**{"mask_policy": AUTO, "role_map": roles, **settings}), model_max_length, data
    )
    found = setup.survey(
        data, chosen, show_progress=show_progress, max_record_bytes=max_record_bytes, data_format=data_format
    )
    if record is not None and not found.num_matching:
        raise ValueError(f"inspect: {no_such_record(found.data, record)}")
    return found


def no_such_record(data: str, record: str | int) -> str:
    """Return the message for a record that the data do not have."""
    return (
        f"no record of {data} has the id or number {record}; numbers begin with 0, and without a choice some "
        "records are shown with theirs"
    )


@dataclass(frozen=True)
class InspectionSetup:
    """A tokenizer and its labeller. width: the most tokens in a row. unit: the unit for lengths."""

    model: str
    native: _C.Tokenizer
    labeller: _C.Labeller
    width: int
    unit: str = "tokens"
    why: str = ""  # reason for the mask policy

    def survey(
        self,
        data: str | Path | Iterable[object],
        choice: _C.SurveyChoice,
        *,
        show_progress: bool = False,
        max_record_bytes: int = MAX_RECORD_BYTES,
        data_format: str = "auto",
    ) -> Inspection:
        """Read and inspect `data` once. ValueError if there is no record, or if a record is too long."""
        name, seen = self.read(
            data, choice, show_progress=show_progress, max_record_bytes=max_record_bytes,
            data_format=data_format,
        )  # fmt: skip
        labelling = {**describe(self.labeller, self.why), "max_record_bytes": max_record_bytes}
        stop = self.native.find_token(str(labelling["stop_token"]))
        return Inspection(
            data=name,
            model=self.model,
            width=self.width,
            labelling=labelling,
            report=seen.report,
            faults=seen.faults,
            num_faults=seen.num_faults,
            lengths=seen.lengths,
            learned=seen.learned,
            num_matching=seen.num_matching,
            records=[InspectedRecord.of(record, self.native, stop) for record in seen.chosen],
            unit=self.unit,
        )

    def read(
        self,
        data: str | Path | Iterable[object],
        choice: _C.SurveyChoice,
        *,
        show_progress: bool = False,
        max_record_bytes: int = MAX_RECORD_BYTES,
        data_format: str = "auto",
    ) -> tuple[str, _C.Survey]:
        """Read `data` once, and return its name and survey. ValueError as in `survey`."""
        name, inputs, size = _inputs(data, max_record_bytes, data_format)
        progress = LabelProgress(size, shown=show_progress)
        try:
            with hinted_reading():
                return name, _C.survey_inputs(inputs, self.labeller, choice, progress)
        finally:
            progress.close()

    def described(self) -> str:
        """Describe the labels in a line: mask policy, template and limit."""
        return describe_labels(describe(self.labeller, self.why), f", at most {self.width:,} tokens")


def prepare(
    model: str | Path | Tokenizer,
    settings: LabelSettings,
    model_max_length: int | None = None,
    data: object = None,
) -> InspectionSetup:
    """Return the setup with the labeller that training with these settings uses. ValueError as in training.

    data: a value for --data_path, or records in memory. The model's chat template for tools is used only if
    the data files have tools.
    """
    tokenizer = _tokenizer(model, model_max_length)
    settings = resolve_policy(settings, tokenizer)
    set_pad_token(settings, tokenizer)
    width, pad_id = check_tokenizer(tokenizer, any_pad=settings.mask_policy == "spans")
    native = find_native_tokenizer(tokenizer)
    if native is None:
        raise ValueError(
            f"{type(tokenizer).__name__} has no native equal in fastsft; give the model's directory instead"
        )
    if isinstance(data, str | Path):
        settings = detect_tools(settings, tokenizer, str(data))
    labeller = make_labeller(native, width, pad_id, settings, tokenizer=tokenizer, self_test=True)
    where = str(getattr(tokenizer, "directory", model))
    return InspectionSetup(where, native, labeller, width, why=settings.why)


def prepare_without_model(settings: LabelSettings) -> InspectionSetup:
    """Return a setup without a model, in which lengths are in bytes and no row is too long.

    The mask policy is spans, because FastChat's policy needs token ids. The template is vicuna_v1.1 by
    default. ValueError for the template "model", and for unknown names.
    """
    if settings.template == "model":
        raise ValueError("--template model: no model is given; add --model, or name a template")
    template = settings.template or "vicuna_v1.1"
    chosen = replace(settings, mask_policy="spans", template=template)
    stop = str(_C.find_chat_template(template).stop_token)
    native = byte_tokenizer([stop])
    labeller = make_labeller(native, NO_LIMIT, -1, chosen, self_test=True)
    return InspectionSetup("none", native, labeller, NO_LIMIT, "bytes")


def _tokenizer(model: str | Path | Tokenizer, model_max_length: int | None) -> Tokenizer:
    if not isinstance(model, str | Path):
        own = copy.copy(model)  # a copy, so that the caller's tokenizer keeps its settings
        if model_max_length is not None:
            own.model_max_length = model_max_length
        return own
    length = DEFAULT_MAX_LENGTH if model_max_length is None else model_max_length
    if length < 1:
        raise ValueError(f"model_max_length: expected at least 1, got {length}")
    directory = tokenizer_directory(str(model), "--model")
    return Tokenizer.from_pretrained(directory, model_max_length=length)


def _inputs(
    data: str | Path | Iterable[object], max_record_bytes: int, data_format: str
) -> tuple[str, list[_C.DataInput], int | None]:
    if not isinstance(data, str | Path):
        records = map(without_fills, data) if is_from_datasets(data) else data
        return "records", [_C.DataInput("records", JsonArray(records).read, data_format=data_format)], None
    files = data_files(str(data))
    inputs = [open_input(file, None, max_record_bytes, data_format) for file in files]
    return str(data), inputs, bytes_to_read(files)
