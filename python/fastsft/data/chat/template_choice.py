"""Choose a named template or the model's own template for a run (docs/spec/fastchat_labels.md, section 5).

A model may have two templates: `tool_use` for records with tools, as in transformers' `apply_chat_template`,
and a default template for all other records.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fastsft import _C
from fastsft.arguments.parsing.hints import slips
from fastsft.data.chat.jinja_form import jinja_form_of, without_bos
from fastsft.data.chat.model_template import Asked, ModelTemplate, Rendered
from fastsft.data.chat.rendering.conversation import has_tools
from fastsft.data.chat.rendering.probes import CALL_IDS
from fastsft.data.chat.template_check import probe_record
from fastsft.runtime.messages import tell, warn_once
from fastsft.tokenizer.files import TOOL_TEMPLATE, read_chat_template, read_tool_template


def choose_template(
    policy: str,
    name: str | None,
    chat_template_name: str | None,
    tokenizer: object,
    native: _C.Tokenizer,
    day: str | None = None,
    has_tools: bool = True,
) -> tuple[str, OwnTemplate | None]:
    """Return the name of the template and, if the name is "model", the model's own Jinja template.

    policy: "fastchat" or "spans". name: a named template, "model", or None for the policy's default
    (fastchat: vicuna_v1.1; spans: the model's own template). chat_template_name: the name of the model's
    template to use. day: the date that the template sees. has_tools: False if no record has tools.

    If `name` is None, C++ renders the model's own template natively, provided that its text is the known text
    of a named template and both give the same tokens for sample records. With "model", Jinja always renders
    the template, so that messages with the role tool are possible. The model's template tool_use is used for
    records with tools, as in transformers, unless `chat_template_name` is given or `has_tools` is False.

    ValueError if the name is unknown, or if the model has no template although the policy needs it.
    """
    if policy != "spans" or (name is not None and name != MODEL):
        if policy == "spans" and (line := namesake_line(name or "")):
            warn_once(line)
        return template_name(name or "vicuna_v1.1"), None
    source = template_source(tokenizer, chat_template_name)
    if source is None:
        raise ValueError(
            "--mask_policy spans: the model has no chat template; name one with --template: "
            f"{', '.join(_C.chat_templates())} (FastChat's, which auto takes, is vicuna_v1.1); plain text, "
            "which none writes, takes any that fits the tokenizer"
        )
    for_tools = tool_source(tokenizer) if has_tools and chat_template_name is None else None
    model = own_template(source, for_tools, tokenizer, native, day)
    if name != MODEL and isinstance(model, ModelTemplate):
        named = recognise(source, model, native)
        if named is not None:
            return named, None
    return MODEL, model


def template_source(tokenizer: object, chat_template_name: str | None = None) -> str | None:
    """Return a tokenizer's chat template: its attribute `chat_template` or the file in its directory."""
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
    """Return the tokenizer's chat template for conversations with tools; None if it has none."""
    held = getattr(tokenizer, "chat_template", None)
    if isinstance(held, dict):
        return held.get(TOOL_TEMPLATE)
    directory = getattr(tokenizer, "directory", None) or getattr(tokenizer, "name_or_path", None)
    if not directory or not Path(directory).is_dir():
        return None
    is_of_files = held is None or held == read_chat_template(directory)
    return read_tool_template(directory) if is_of_files else None


def digest_of(source: str) -> str:
    """Return the SHA-256 of a template's text.

    A line break and its escape sequence, which mean the same to Jinja, give the same digest.
    """
    return hashlib.sha256(source.strip().replace("\n", "\\n").encode()).hexdigest()


def recognise(source: str, model: ModelTemplate, native: _C.Tokenizer) -> str | None:
    """Return the named template that has this text and gives the same tokens for sample records, or None."""
    for name in _C.chat_templates():
        if is_published_as(source, name, native) and _agree(name, model, native):
            return str(name)
    return None


def is_published_as(source: str, name: str, native: _C.Tokenizer) -> bool:
    """True if published models, or models that fastsft saved, have `source` as the template `name`."""
    if digest_of(without_bos(source, native.adds_bos)) in _C.find_chat_template(name).jinja_digests:
        return True
    return source == jinja_form_of(name, native)


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


MODEL = "model"
_MOST_SLIPS = 2


def template_name(name: str) -> str:
    """Return the canonical name of a named template.

    If the name is unknown, ValueError suggests the most similar name.
    """
    try:
        return _C.canonical_template_name(name)
    except ValueError as error:
        reason, _, names = str(error).partition("; known: ")
        near = nearest_name(name, names.split(", "))
        nearest = "" if near is None else f"the nearest is {near}; "
        if name.endswith(".jinja"):
            nearest = "a file of your own counts as chat_template.jinja of the model directory, with "
        raise ValueError(
            f"--template: {reason}; {nearest}--template {MODEL} is the model's own template; known: {MODEL}, "
            f"{names}"
        ) from None


def nearest_name(name: str, names: list[str]) -> str | None:
    """Return the most similar of `names`; None if no name is similar.

    Two names are similar if their letters and digits are equal, if either begins with the other, or if their
    first words differ by at most two typing errors.
    """
    plain = _plain(name)
    by_plain = {_plain(other): other for other in reversed(names)}
    if plain in by_plain:
        return by_plain[plain]
    starts = [other for other in by_plain if other and (plain.startswith(other) or other.startswith(plain))]
    if starts and plain:
        nearest = max(starts, key=lambda other: (len(other) if plain.startswith(other) else 0, -len(other)))
        return by_plain[nearest]
    family = re.match(r"[a-z]*", plain)
    stem = family[0] if family else ""
    near = min((slips(stem, _stem(other), _MOST_SLIPS), index) for index, other in enumerate(names))
    return names[near[1]] if len(stem) > 3 and near[0] <= _MOST_SLIPS else None


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _stem(name: str) -> str:
    return re.split(r"[^a-z]", name.lower(), maxsplit=1)[0]


# Differences from LLaMA-Factory's templates with the same names. LLaMA-Factory's templates gemma, phi and
# chatml write the same text as fastsft's.
_DIFFERENCES = {
    "qwen": 'a record without a system text gets "You are Qwen, created by Alibaba Cloud. You are a helpful '
    'assistant." there, and "You are a helpful assistant." here',
    "mistral": "[INST] Hi[/INST] Ho there, [INST] Hi [/INST] Ho here, and a blank line follows a system "
    "text, here a line break",
    "zephyr": 'there no line break follows </s>, and a record without a system text gets "You are Zephyr, a '
    'helpful assistant."',
    "alpaca": "there texts begin on a line of their own, after ### Instruction: and ### Response:, as they "
    "do here in alpaca_stanford",
    "vicuna": "there no space is behind a system text and in front of replies; here it is FastChat's",
}


def namesake_line(name: str) -> str:
    """Return a warning if LLaMA-Factory's template of this name differs from fastsft's; otherwise ""."""
    if name not in _DIFFERENCES:
        return ""
    return (
        f"--template {name}: LLaMA-Factory's template of this name is another: {_DIFFERENCES[name]}; "
        "--template model is the model's own"
    )


Write = Callable[[Sequence[Asked]], list[Rendered]]
_CALLS, _NAME = '"tool_calls": ', f"--chat_template_name {TOOL_TEMPLATE}"
_NO_TOOLS = (
    "it calls tools and has none: as in transformers the template default writes it, which writes no calls; "
    f"{_NAME} takes that one for all records"
)


class TemplateWithTools:
    """Two templates of a model in a single object.

    tools: renders conversations with tools. default: renders all other conversations.
    """

    def __init__(self, default: ModelTemplate, tools: ModelTemplate) -> None:
        self.default, self.tools = default, tools
        self.stop_token, self.reply_ending = default.stop_token, default.reply_ending
        self.call_stop_token = tools.call_stop_token or default.call_stop_token
        self.date = default.date
        self.asks_for_date = default.asks_for_date or tools.asks_for_date

    @property
    def digest(self) -> str:
        """The SHA-256 of both templates' digests."""
        return hashlib.sha256(f"{self.default.digest} {self.tools.digest}".encode()).hexdigest()

    def __call__(self, dialogues: Sequence[Asked]) -> list[Rendered]:
        return self._each(dialogues, self.default, self.tools)

    def prompts(self, dialogues: Sequence[Asked]) -> list[Rendered]:
        return self._each(dialogues, self.default.prompts, self.tools.prompts)

    def _each(self, dialogues: Sequence[Asked], write: Write, write_with_tools: Write) -> list[Rendered]:
        chosen = [has_tools(tools) for _, _, tools, _ in dialogues]
        pairs = list(zip(dialogues, chosen, strict=True))
        with_tools = iter(write_with_tools([one for one, has in pairs if has]))
        others = iter(write([one for one, has in pairs if not has]))
        return [
            next(with_tools) if has else self._without_lost_calls(one, next(others)) for one, has in pairs
        ]

    def _without_lost_calls(self, dialogue: Asked, written: Rendered) -> Rendered:
        if "tool_calls" in self.default.fields or not any(_CALLS in more for *_, more in dialogue[1]):
            return written
        return [], False, True, _NO_TOOLS, "", -1, False

    @property
    def rewrites(self) -> bool:
        return self.default.rewrites or self.tools.rewrites

    @property
    def rewrites_thoughts(self) -> bool:
        return self.default.rewrites_thoughts or self.tools.rewrites_thoughts

    @property
    def marks_replies(self) -> bool:
        return self.default.marks_replies

    @property
    def fields(self) -> list[str]:
        """The traits of the two templates together (`ModelTemplate.fields`).

        Traits about tools and calls are those of `tools`; every other trait must be true of both templates.
        """
        both = set(self.default.fields) & set(self.tools.fields)
        of_tools = ("tools", "tool_calls", *CALL_IDS)
        return [name for name in self.tools.fields if name in of_tools or name in both]

    def close(self) -> None:
        self.default.close()
        self.tools.close()


OwnTemplate = ModelTemplate | TemplateWithTools


def own_template(
    source: str, tool_source: str | None, tokenizer: object, native: _C.Tokenizer, day: str | None
) -> OwnTemplate:
    """Return the model's template `source`, combined with its tool template if both can be trained together.

    tool_source: the text of the tool template, or None. If the tool template cannot be used, a message gives
    the reason. ValueError if `source` cannot be used.
    """
    plain = ModelTemplate(source, tokenizer, native, day=day)
    if tool_source is None:
        return plain
    try:
        tools = ModelTemplate(tool_source, tokenizer, native, day=day, for_tools=True)
        problem = _problem(plain, tools)
    except ValueError as error:
        problem = str(error)
    if problem:
        tell(f"chat template: {TOOL_TEMPLATE} is not taken for records with tools: {problem}")
        return plain
    return TemplateWithTools(plain, tools)


def _problem(plain: ModelTemplate, tools: ModelTemplate) -> str:
    if tools.stop_token != plain.stop_token:
        return f"it ends replies with {tools.stop_token}, the default one with {plain.stop_token}"
    if "tools" not in tools.fields:
        return "it writes no tools"
    calls = {template.call_stop_token for template in (plain, tools) if "tool_calls" in template.fields}
    return "it ends calls otherwise than the default one" if len(calls) > 1 else ""
