"""Label the conversations in a data file, or in records that a script passes."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fastsft import _C
from fastsft.data.chat.labelling import LIMIT, LabelSettings, describe, make_labeller
from fastsft.data.chat.template_choice import MODEL, tool_source
from fastsft.data.errors import raise_first
from fastsft.data.label_files import FileOptions, label_files
from fastsft.data.labelled_rows import LabelledRows
from fastsft.runtime.given_types import check_records, check_tokenizer_type
from fastsft.runtime.messages import warn_once
from fastsft.script_names.module_names import refuse_unused
from fastsft.script_names.patched_libraries import refuse_reader, refuse_template
from fastsft.sources.data_files import DataFile, data_files
from fastsft.sources.json_lines import write_conversations, write_line
from fastsft.sources.readers import open_reader, read_records
from fastsft.tokenizer.interfaces import ChatTokenizer
from fastsft.tokenizer.state import digest_model
from fastsft.tokenizer.transformers_tokenizer import (
    called_tokenizer,
    find_native_tokenizer,
    require_native_tokenizer,
    why_not_native,
)

_MAX_MATERIALISED = 1 << 20


def label_conversation_file(
    path: str, tokenizer: ChatTokenizer, settings: LabelSettings, options: FileOptions
) -> LabelledRows:
    """Read a data file and return its labelled rows.

    DataError if a record is faulty. ValueError as in `check_tokenizer`.
    """
    refuse_unused()
    digest_model(tokenizer)
    native = find_native_tokenizer(tokenizer)
    spans = settings.mask_policy == "spans"
    refuse_reader()
    if not spans:
        refuse_template()
    check_tokenizer_type(tokenizer)
    if native is None and not spans:
        if settings.overlong != "truncate":
            raise ValueError(
                f"--overlong {settings.overlong}: {type(tokenizer).__name__} has no native equal in fastsft; "
                "load the tokenizer with fastsft.Tokenizer.from_pretrained(directory)"
            )
        records = read_records(data_files(str(path)), options.max_record_bytes, options.data_format)
        return label_sources(learned_sources(records), tokenizer)
    native = native or require_native_tokenizer(tokenizer, "--mask_policy spans")
    width, pad_id = check_tokenizer(tokenizer, any_pad=spans)
    settings = detect_tools(settings, tokenizer, str(path))
    labeller = make_labeller(native, width, pad_id, settings, tokenizer=tokenizer, self_test=True)
    labelled = label_files(str(path), tokenizer, labeller, options)
    labelling = {**describe(labeller, settings.why), LIMIT: options.max_record_bytes}
    alike = dataclasses.replace(
        settings, template_date=labeller.options.template_date or None
    )  # rows that are labelled after midnight must see the same date
    rows = LabelledRows(
        labelled, width, pad_id, spans, labelling, label_alike=functools.partial(_label_by, alike)
    )
    rows.settings, rows.data_format = alike, options.data_format
    return rows


def _label_by(settings: LabelSettings, sources: Sequence[Any], tokenizer: ChatTokenizer) -> LabelledRows:
    """Label conversations like `label_conversation_file`, with the settings that a file was labelled with."""
    native, spans = find_native_tokenizer(tokenizer), settings.mask_policy == "spans"
    if native is None and not spans:
        return label_sources(sources, tokenizer)
    native = native or require_native_tokenizer(tokenizer, "--mask_policy spans")
    width, pad_id = check_tokenizer(tokenizer, any_pad=spans)
    labeller = make_labeller(native, width, pad_id, settings, tokenizer=tokenizer)
    labelled = _C.label_lists(sources, labeller) or _C.label_text(write_conversations(sources), labeller)
    raise_first(labelled.faults)
    alike = functools.partial(_label_by, settings)
    return LabelledRows(labelled, width, pad_id, spans, describe(labeller), alike)


def label_sources(sources: Sequence[Any], tokenizer: ChatTokenizer) -> LabelledRows:
    """Label conversations like FastChat's `preprocess`. Errors are as in `label_conversation_file`."""
    refuse_unused()
    refuse_template()
    check_records(sources, "preprocess: sources")
    check_tokenizer_type(tokenizer)
    if len(sources) > 1:
        digest_model(tokenizer)
    native = find_native_tokenizer(tokenizer)
    width, pad_id = check_tokenizer(tokenizer)
    if native is None:
        warn_once(
            f"{why_not_native(tokenizer)}: the object itself is called, as FastChat does, which is slow"
        )
        labeller = make_labeller(called_tokenizer(tokenizer), width, pad_id, num_threads=1)
    else:
        labeller = make_labeller(native, width, pad_id)
    labelled = None if native is None else _C.label_lists(sources, labeller)
    if labelled is None:
        labelled = _C.label_text(write_conversations(sources), labeller)
    raise_first(labelled.faults)
    return LabelledRows(labelled, width, pad_id)


def check_tokenizer(tokenizer: ChatTokenizer, any_pad: bool = False) -> tuple[int, int]:
    """Return model_max_length and the pad id. ValueError if labels would be wrong or impossible.

    any_pad: allow a tokenizer without a pad token. The pad id is then EOS or, without EOS, 0
    (docs/spec/fastchat_labels.md, section 7.2).
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
            f"model_max_length must be between 1 and {_MAX_MATERIALISED}, got {width}; "
            "give --model_max_length, or model_max_length= to from_pretrained"
        )
    if pad_id is None and any_pad:
        pad_id = tokenizer.eos_token_id or 0
    if pad_id is None:
        raise ValueError(
            "the tokenizer has no unk token, with which FastChat pads, and so no pad token. --mask_policy "
            'spans needs neither; in a script: DataArguments(mask_policy="spans") of fastsft.train'
        )
    return int(width), int(pad_id)


def sources_of(raw_data: Sequence[Any]) -> list[Any]:
    """Return `record["conversations"]` of each record. DataError names a record without this field."""
    check_records(raw_data, "raw_data")
    return [_source_of(record, number) for number, record in enumerate(raw_data)]


def learned_sources(raw_data: Sequence[Any]) -> list[Any]:
    """Return the records' conversations, after a check that every reply in them may be learned.

    DataError if a field of a record excludes a reply from learning: only the conversation is labelled, so
    that the field would be lost.
    """
    check_records(raw_data, "raw_data")
    sources, plain = [], {"conversations", "id"}  # fields that never exclude a reply from learning
    for number, record in enumerate(raw_data):
        sources.append(_source_of(record, number))
        if isinstance(record, Mapping) and not record.keys() <= plain:
            _check_fields(record, number, plain)
    return sources


def _source_of(record: Any, number: int) -> Any:
    try:
        return record["conversations"]
    except (KeyError, TypeError, IndexError) as error:
        kind = type(error).__name__
        reason = 'no "conversations"' if kind == "KeyError" else "record is not an object"
        form = '{"conversations": [{"from": "human", "value": ...}, {"from": "gpt", "value": ...}]}'
        got = f", got {record!r:.40}; expected {form}"
        raise_first([_RecordFault(kind, f"record {number}: {reason}{got}")])
        raise


def _check_fields(record: Mapping[object, object], number: int, plain: set[str]) -> None:
    for name in record.keys() - plain:
        value = record[name]
        if not isinstance(name, str):
            continue
        if not isinstance(value, Mapping) and not _C.is_train_mark(name):
            plain.add(name)
            continue
        problem = _C.judge_train_mark(name, write_line(value).decode("utf-8", "replace").strip())
        if problem:
            raise_first([_RecordFault("ValueError", f"record {number}: {problem}")])


class _RecordFault:
    remark = ""
    always_stops = False

    def __init__(self, kind: str, text: str) -> None:
        self.kind = kind
        self._text = text

    def __str__(self) -> str:
        return self._text


# Matches a field `tools` whose value is a list or a text that is neither empty nor null. Inside a JSON string
# the quote after `tools` would be escaped, so a mention in a message does not match.
_TOOLS = re.compile(rb'"tools"\s*:\s*(?:\[\s*[^\]\s]|"\s*(?!null\s*"|\[\s*\]\s*")[^"\s])')
_BLOCK = 1 << 20
_KEPT = 1 << 10  # bytes kept from a block's end, because a field may extend into the next block
_AHEAD = 64  # bytes that must follow a match in the block, because the pattern looks ahead


def detect_tools(
    settings: LabelSettings, tokenizer: object, spec: str, *, fetch: bool = True
) -> LabelSettings:
    """Return `settings`, with `has_tools` False if the model has a tool template and no record has tools.

    The files are read only if the model has a tool template. spec, fetch: see `data_files`. A stream or an
    unreadable file counts as having tools; errors of an unreadable file are reported when it is labelled.
    """
    is_own = settings.mask_policy == "spans" and settings.template in (None, MODEL)
    if not is_own or settings.chat_template_name is not None or tool_source(tokenizer) is None:
        return settings
    try:
        return replace(settings, has_tools=may_have_tools(data_files(spec, fetch)))
    except (ValueError, OSError):
        return settings


def may_have_tools(files: Iterable[DataFile]) -> bool:
    """True unless the files show that no field `tools` contains a tool. Streams are not read."""
    return any(file.is_stream or _has_tools(file) for file in files)


def _has_tools(file: DataFile) -> bool:
    read, kept = open_reader(file), b""
    while True:
        block = read(_BLOCK)
        text = kept + block
        match = _TOOLS.search(text)
        if match and (not block or match.end() + _AHEAD <= len(text)):
            return True
        if not block:
            return False
        kept = text[-_KEPT:]
