"""The chat template of a run: by name, or the model's own (docs/spec/fastchat_labels.md, section 5)."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from fastsft import _C
from fastsft.data.chat.front_bos import without_bos
from fastsft.data.chat.jinja_form import jinja_form
from fastsft.data.chat.namesakes import namesake_line
from fastsft.data.chat.template import ModelTemplate
from fastsft.data.chat.template_check import probe_record
from fastsft.data.chat.template_names import MODEL, template_name
from fastsft.data.chat.tool_template import OwnTemplate, own_template
from fastsft.runtime.messages import warn_once
from fastsft.tokenizer.settings import read_chat_template, read_tool_template
from fastsft.tokenizer.trained_template import TOOL_TEMPLATE


def choose_template(
    policy: str,
    name: str | None,
    chat_template_name: str | None,
    tokenizer: object,
    native: _C.Tokenizer,
    day: str | None = None,
    has_tools: bool = True,
) -> tuple[str, OwnTemplate | None]:
    """The template's name, and the Jinja template to render with when it is "model".

    policy: "fastchat" or "spans". name: a template, "model", or None for the policy's default: vicuna_v1.1,
    with spans the model's own. By default a model's own template that is published as one of the named ones,
    and renders probes to the same tokens, is rendered natively; "model" renders it with Jinja, messages of
    role tool included. A template of the name tool_use is taken for records with tools, as transformers does,
    unless `chat_template_name` names one, or no record has tools (`has_tools` False). day: the date that the
    template is told. ValueError for an unknown name, and when the model has no chat template but one is
    needed.
    """
    if policy != "spans" or (name is not None and name != MODEL):
        if policy == "spans" and (line := namesake_line(name or "")):
            warn_once(line)
        return template_name(name or "vicuna_v1.1"), None
    source = template_source(tokenizer, chat_template_name)
    if source is None:
        raise ValueError(
            "--mask_policy spans: the model has no chat template; name one with --template: "
            f"{', '.join(_C.chat_templates())}; plain text, which none writes, takes any that fits the "
            "tokenizer"
        )
    for_tools = tool_source(tokenizer) if has_tools and chat_template_name is None else None
    model = own_template(source, for_tools, tokenizer, native, day)
    if name != MODEL and isinstance(model, ModelTemplate):
        known = recognise(source, model, native)
        if known is not None:
            return known, None
    return MODEL, model


def template_source(tokenizer: object, chat_template_name: str | None = None) -> str | None:
    """The Jinja text of a tokenizer: its attribute `chat_template`, else its directory's file."""
    held = getattr(tokenizer, "chat_template", None)
    if isinstance(held, dict):
        held = held.get(chat_template_name or "default")
    if isinstance(held, str) and chat_template_name in (None, "default"):
        return held
    directory = getattr(tokenizer, "directory", None) or getattr(tokenizer, "name_or_path", None)
    if not directory or not Path(directory).is_dir():
        return None
    return read_chat_template(directory, chat_template_name)


def tool_source(tokenizer: object) -> str | None:
    """The Jinja text of the tokenizer's template for chats with tools, next to its default one; or None."""
    held = getattr(tokenizer, "chat_template", None)
    if isinstance(held, dict):
        return held.get(TOOL_TEMPLATE)
    directory = getattr(tokenizer, "directory", None) or getattr(tokenizer, "name_or_path", None)
    if not directory or not Path(directory).is_dir():
        return None
    is_of_files = held is None or held == read_chat_template(directory)
    return read_tool_template(directory) if is_of_files else None


def digest_of(source: str) -> str:
    """SHA-256 of a template's text; a line break counts as its escape, which Jinja reads as the same."""
    return hashlib.sha256(source.strip().replace("\n", "\\n").encode()).hexdigest()


def recognise(source: str, model: ModelTemplate, native: _C.Tokenizer) -> str | None:
    """The named template that is published with this very text and makes the same tokens of all probes."""
    for name in _C.chat_templates():
        if is_published_as(source, name, native) and _agree(name, model, native):
            return str(name)
    return None


def is_published_as(source: str, name: str, native: _C.Tokenizer) -> bool:
    """True if the text is one that models with the template `name` have, or that fastsft saves for it."""
    if digest_of(without_bos(source, native.adds_bos)) in _C.find_chat_template(name).jinja_digests:
        return True
    return source == jinja_form(name, native.adds_bos, native.named.bos >= 0)


def _agree(name: str, model: ModelTemplate, native: _C.Tokenizer) -> bool:
    options: dict[str, Any] = {"mask_policy": "spans", "max_length": 1 << 16, "on_bad_sample": "skip"}
    one = _C.Labeller(native, _C.LabelOptions(chat_template=name, **options))
    other = _C.Labeller(native, _C.LabelOptions(chat_template=MODEL, **options), model)
    try:
        return all(
            _labels(_C.explain_record(record, one)) == _labels(_C.explain_record(record, other))
            for record in map(json.dumps, _probes())
        )
    except ValueError:
        return False
    finally:
        model.close()


def _labels(seen: _C.Explanation) -> tuple[str, list[tuple[int, bool]]]:
    return seen.outcome, [(token, learned) for token, _, _, learned in seen.tokens]


def _probes() -> list[dict[str, Any]]:
    texts = [" a ", "\nb\n", "c  d\t", "e</s> <|im_end|>", "é你😀", "{{ f }}"]
    turns = [{"from": role, "value": f"{text}{role}"} for text in texts for role in ("human", "gpt")]
    spaced = [{"from": role, "value": f" {role}\n"} for role in ("human", "gpt")]
    records = [{"conversations": turns}, {"conversations": spaced}]
    systems = [{**record, "system": system} for record in records for system in ("S", " S\n")]
    return [probe_record(), probe_record(system=True), *records, *systems]
