"""Records with tools in a data set: without any, a model's template `tool_use` changes nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from fastsft.data.chat.labelling import LabelSettings
from fastsft.data.chat.template_choice import tool_source
from fastsft.data.chat.template_names import MODEL
from fastsft.sources.data_files import DataFile, data_files, open_reader

# A field `tools` with a list or a text that is neither empty nor null. In a text its last quote is escaped.
_TOOLS = re.compile(rb'"tools"\s*:\s*(?:\[\s*[^\]\s]|"\s*(?!null\s*"|\[\s*\]\s*")[^"\s])')
_BLOCK = 1 << 20
_KEPT = 1 << 10  # of a block, where a field may begin that ends in the next one
_AHEAD = 64  # bytes that must follow a match, which looks ahead


def settings_for(
    settings: LabelSettings, tokenizer: object, spec: str, *, fetch: bool = True
) -> LabelSettings:
    """With `has_tools` False where the model has a template for tools and no record of the data has any.

    Reads the files of such a model once. spec, fetch: as `data_files`. What is a stream, or cannot be read,
    may have tools: labelling it says what is wrong.
    """
    is_own = settings.mask_policy == "spans" and settings.template in (None, MODEL)
    if not is_own or settings.chat_template_name is not None or tool_source(tokenizer) is None:
        return settings
    try:
        return replace(settings, has_tools=may_have_tools(data_files(spec, fetch)))
    except (ValueError, OSError):
        return settings


def may_have_tools(files: Iterable[DataFile]) -> bool:
    """False if no field `tools` of these files holds a tool."""
    return any(file.is_stream or _has_tools(file) for file in files)


def _has_tools(file: DataFile) -> bool:
    read, kept = open_reader(file), b""
    while True:
        block = read(_BLOCK)
        text = kept + block
        found = _TOOLS.search(text)
        if found and (not block or found.end() + _AHEAD <= len(text)):
            return True
        if not block:
            return False
        kept = text[-_KEPT:]
