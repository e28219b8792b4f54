"""Convert a chat template for Ollama, or refuse with the reason and the way out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from fastsft.data.chat.labelling import CALL_STOP, LabelSettings, describe, make_labeller
from fastsft.data.chat.model_template import ModelTemplate
from fastsft.data.chat.ollama.calls import find_calls
from fastsft.data.chat.ollama.go_text import Parts
from fastsft.data.chat.ollama.marked import Jinja, call, turns, user
from fastsft.data.chat.ollama.thoughts import find_thoughts
from fastsft.data.chat.ollama.trial import EMPTY, PLAIN, THOUGHTS, TOOLS, differences
from fastsft.data.chat.ollama.turns import Refused, find_turns
from fastsft.data.chat.template_choice import template_source, tool_source
from fastsft.runtime.messages import collected
from fastsft.tokenizer.tokenizer import Tokenizer

_WAY_OUT = "fastsft export gguf, and llama-server --jinja, which runs the chat template itself"


@dataclass(frozen=True)
class OllamaTemplate:
    """A chat template for Ollama.

    text: the template for Go's text/template. stops: the texts that end generation. notes: messages about
    what Ollama does otherwise than the Jinja template.
    """

    text: str
    stops: tuple[str, ...]
    notes: tuple[str, ...]


def ollama_template(tokenizer: Tokenizer) -> OllamaTemplate:
    """Convert the tokenizer's chat template for Ollama.

    ValueError if Ollama's form of template cannot write the same text.
    """
    source = template_source(tokenizer)
    if source is None:
        raise ValueError("the tokenizer has no chat template; fastsft train saves the one it trained with")
    settings = LabelSettings(mask_policy="spans")
    with collected():  # the messages are about labels
        described = describe(make_labeller(tokenizer.native, 1 << 20, -1, settings, tokenizer=tokenizer))
        template = ModelTemplate(source, tokenizer, tokenizer.native)
    jinja = Jinja(template, getattr(tokenizer, "bos_token", None) or "")
    try:
        parts, lost = _find(jinja)
        parts, text, more = _tried(parts, jinja)
        notes = [*lost, *more, *_notes(parts, text, jinja)]
    except Refused as error:
        name = described["template"]
        raise ValueError(
            f"the chat template ({name}) cannot be written for Ollama: {error}; the way out: {_WAY_OUT}"
        ) from None
    finally:
        template.close()
    if tool_source(tokenizer) is not None:
        notes.append(_lost("tools", "they have a chat template of their own, tool_use"))
    stops = (described["stop_token"], described.get(CALL_STOP, ""))
    return OllamaTemplate(text, tuple(stop for stop in stops if stop), tuple(notes))


def _find(jinja: Jinja) -> tuple[Parts, list[str]]:
    """Return the template's texts, and notes about texts that cannot be found."""
    found, lost = find_turns(jinja), []
    calls = thoughts = None
    if found.takes_tools:
        try:
            calls = find_calls(jinja, found)
        except Refused as error:
            lost.append(_lost("tools", str(error)))
    elif found.tools_refused or _writes_calls(jinja):
        lost.append(_lost("tools", found.tools_refused or "the chat template writes calls, but no tools"))
    try:
        thoughts = find_thoughts(jinja, found, calls)
    except Refused as error:
        lost.append(_lost("thoughts", str(error)))
    empty = [{"role": "system", "content": ""}, *turns(1)]
    drops_empty = not found.takes_system or jinja.text(empty) == jinja.text(turns(1))
    parts = Parts(found, calls, thoughts, found.later is not None, drops_empty)
    return (parts if calls else _without_tools(parts)), lost


def _writes_calls(jinja: Jinja) -> bool:
    """Return True if the template writes a call in some form."""
    for content in ("", None):
        for as_text in (False, True):
            message = {"role": "assistant", "content": content, "tool_calls": [call(1, as_text)]}
            if call()["function"]["name"] in (jinja.text([user(), message], prompt=False) or ""):
                return True
    return False


def _tried(parts: Parts, jinja: Jinja) -> tuple[Parts, str, list[str]]:
    """Leave out what differs from the chat template; return the rest, its text, and notes. Refused if plain
    conversations differ."""
    notes: list[str] = []
    while True:
        text = parts.go_template()
        found = differences(parts, text, jinja)
        if PLAIN in found:
            raise Refused(found[PLAIN])
        if TOOLS in found:
            notes.append(_lost("tools", found[TOOLS]))
            parts = _without_tools(parts)
        elif THOUGHTS in found:
            notes.append(_lost("thoughts", found[THOUGHTS]))
            parts = replace(parts, thoughts=None)
        else:
            if EMPTY in found:
                notes.append(f"an empty system text: {found[EMPTY]}")
            return parts, text, notes


def _without_tools(parts: Parts) -> Parts:
    turns = parts.turns
    fronts = {key: text for key, text in turns.fronts.items() if not key[0]}
    users = {place: text for place, text in turns.before_user.items() if not place.has_tools}
    return replace(
        parts, calls=None, turns=replace(turns, fronts=fronts, before_user=users, takes_tools=False)
    )


def _lost(what: str, why: str) -> str:
    return f"{what} are left out: {why}; with them: {_WAY_OUT}"


def _notes(parts: Parts, text: str, jinja: Jinja) -> Iterator[str]:
    """Yield what Ollama does otherwise than the chat template."""
    if not parts.turns.takes_system:
        yield (
            "system texts: the chat template takes none; Ollama writes one before the first user's text, "
            "with a blank line between"
        )
    elif not parts.turns.later:
        yield "system messages after the first: the chat template takes none; Ollama joins all in front"
    apart = jinja.text([*turns(1), *turns(1)])
    joined = "\n\n".join([turns(1)[0]["content"]] * 2)
    if apart is not None and apart != jinja.text([{"role": "user", "content": joined}]):
        yield "consecutive messages of one role: Ollama joins them by a blank line"
    if parts.calls:
        yield (
            "tools: Ollama sorts the names of parameters and arguments, writes the fields of a tool in its "
            "own order, and drops those that it does not know"
        )
        if not parts.calls.takes_several:
            yield "tools: the chat template takes one call in a reply; Ollama does not refuse more"
    thought = {"role": "assistant", "content": "<think>\nb\n</think>\n\nc"}
    if "</think>\n\nc" not in (jinja.text([*turns(1), thought, *turns(1)]) or thought["content"]):
        yield "thoughts in a reply's content stay there; clients send them in the field thinking"
    if "currentDate" in text:
        yield "date: that of each request, written as the chat template does"
    if "currentDate" in text or "range $i := len" in text:
        yield "the file needs Ollama 0.11 or newer"
