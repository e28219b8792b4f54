"""Write chat templates for other programs: Jinja text for a saved model, and a Go template for Ollama."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastsft.data.chat.jinja_form import gap_after_bos, with_bos
from fastsft.data.chat.labelling import LabelSettings, describe, make_labeller
from fastsft.data.chat.mask_policy import jinja_form_for
from fastsft.data.chat.model_template import Asked, ModelTemplate, Rendered
from fastsft.data.chat.rendering.marks import common_length
from fastsft.data.chat.template_choice import MODEL, is_published_as, recognise, template_source, tool_source
from fastsft.runtime.messages import collected, tell
from fastsft.tokenizer.files import BASE_NAME, TOOL_TEMPLATE, TrainedTemplate
from fastsft.tokenizer.tokenizer import Tokenizer
from fastsft.tokenizer.transformers_tokenizer import require_native_tokenizer


def set_saved_template(
    tokenizer: object, settings: LabelSettings, labelling: Mapping[str, Any], choice: str
) -> None:
    """Make `tokenizer` save the template of the labels. Print a message if the base model's differs.

    labelling: the result of `describe` for the rows; empty if a script made the rows. In that case, and for a
    transformers tokenizer, nothing changes, and the base model's template is saved. choice: the value of
    --save_chat_template.
    """
    if not isinstance(tokenizer, Tokenizer) or "template" not in labelling:
        return
    trained, base = trained_source(tokenizer, settings, labelling["template"]), template_source(tokenizer)
    tools = _tools_with_bos(tokenizer, settings)
    if trained == base and tools is None:
        if choice == "base":
            tokenizer.trained_template = None
        return
    name = labelling["template"]
    if choice == "base":
        tokenizer.trained_template = None
        if trained == base or _is_base_with_bos(trained, base):
            which = f" {TOOL_TEMPLATE}" if trained == base else ""
            tell(
                f"chat template{which}: it writes no BOS, and labels have the tokenizer's in front; the "
                "saved model's writes none either (--save_chat_template)"
            )
            return
        saved = "the base model's, which is another" if base is not None else "none, as the base model"
        tell(f"chat template: labels are those of {name}; the saved model has {saved} (--save_chat_template)")
        return
    tokenizer.trained_template = TrainedTemplate(trained, base if trained != base else None, tools)
    if trained == base:
        tell(
            f"chat template {TOOL_TEMPLATE}: it writes no BOS, and labels have the tokenizer's in front; the "
            "saved model's writes it (--save_chat_template base leaves the base model's in place)"
        )
    elif _is_base_with_bos(trained, base):
        tell(
            "chat template: it writes no BOS, and labels have the tokenizer's in front; the saved model's "
            f"writes it, the base model's is kept in {BASE_NAME} (--save_chat_template base leaves it in "
            "place)"
        )
    elif base is not None:
        tell(
            f"chat template: the saved model gets that of its labels, {name}; the base model's is another, "
            f"kept in {BASE_NAME} (--save_chat_template base leaves it in place)"
        )


def trained_source(tokenizer: object, settings: LabelSettings, name: str) -> str:
    """Return the Jinja text of the labels' template, with a BOS if necessary.

    name: the name of the labels' template. The model's own template is returned if it writes the same text.
    """
    own = template_source(tokenizer)
    chosen = template_source(tokenizer, settings.chat_template_name)
    is_own = settings.mask_policy == "spans" and settings.template in (None, MODEL)
    if is_own and chosen is not None:
        return _begun(chosen, tokenizer, name)
    if own is not None and _is_published(own, name, tokenizer):
        return _begun(own, tokenizer, name)
    return jinja_form_for(name, tokenizer)


def _tools_with_bos(tokenizer: object, settings: LabelSettings) -> str | None:
    """Return the model's tool template with a BOS in front, if it lacks one; None if nothing changes."""
    source = tool_source(tokenizer)
    if source is None or settings.mask_policy != "spans" or settings.template not in (None, MODEL):
        return None
    try:
        begun = _begun(source, tokenizer, TOOL_TEMPLATE, for_tools=True)
    except ValueError:  # the template cannot be used for labels; a message has said so
        return None
    return begun if begun != source else None


def _begun(source: str, tokenizer: object, name: str, for_tools: bool = False) -> str:
    """Return a model's own template, with a BOS added if the tokenizer adds it and the template does not."""
    native = require_native_tokenizer(tokenizer, f"the chat template {name}")
    if not native.adds_bos or native.named.bos < 0:
        return source
    with collected():  # ModelTemplate's messages were already printed when labels were made
        model = ModelTemplate(source, tokenizer, native, for_tools=for_tools)
    try:
        return with_bos(source, gap_after_bos(native, model.first_text)) if model.lacks_bos else source
    finally:
        model.close()


def _is_base_with_bos(trained: str, base: str | None) -> bool:
    return base is not None and trained in (with_bos(base), with_bos(base, " "))


def _is_published(source: str, name: str, tokenizer: object) -> bool:
    native = require_native_tokenizer(tokenizer, f"the chat template {name}")
    if not is_published_as(source, name, native):
        return False
    try:
        model = ModelTemplate(source, tokenizer, native)
    except ValueError:
        return False
    try:
        return recognise(source, model, native) == name
    finally:
        model.close()


_SYSTEM, _ASKED, _REPLIED = (
    "\ue010s\ue011",
    ("\ue010a\ue011", "\ue010c\ue011"),
    ("\ue010b\ue011", "\ue010d\ue011"),
)


@dataclass(frozen=True)
class TurnTexts:
    """The texts that a chat template writes around the contents of messages.

    first: the text before the first user content if there is no system text. before_system, after_system: the
    texts before and after a system text. to_reply: the text between a user content and the reply. to_user:
    the text between a reply and the next user content. lead: the end of `to_reply` that the generation prompt
    lacks. rest: the text that the generation prompt has in place of `lead`.
    """

    first: str
    before_system: str
    after_system: str
    to_reply: str
    to_user: str
    lead: str
    rest: str

    def prompt(self, system: str | None, turns: Sequence[str]) -> str:
        """Return the text before a reply that the conversation contains.

        turns: the contents of user, assistant, user and so on.
        """
        front = self.first if system is None else self.before_system + system + self.after_system
        ends = (self.to_reply, self.to_user)
        return front + "".join(text + ends[i % 2] for i, text in enumerate(turns))

    def asked(self, system: str | None, turns: Sequence[str]) -> str:
        """Return the prompt for a reply to generate."""
        return self.prompt(system, turns).removesuffix(self.lead) + self.rest

    def go_template(self) -> str:
        """Return the text for the field `TEMPLATE` of a Modelfile. Ollama sets .System to system messages."""
        return (
            f"{{{{ $begun := false }}}}{{{{ if .System }}}}{_literal(self.before_system)}{{{{ .System }}}}"
            f"{_literal(self.after_system)}{{{{ else }}}}{_literal(self.first)}{{{{ end }}}}"
            '{{ range .Messages }}{{ if eq .Role "user" }}'
            f"{{{{ if $begun }}}}{_literal(self.to_user)}{{{{ end }}}}{{{{ $begun = true }}}}"
            "{{ .Content }}"
            f'{_literal(self.to_reply.removesuffix(self.lead))}{{{{ else if eq .Role "assistant" }}}}'
            f"{_literal(self.lead)}{{{{ .Content }}}}"
            f"{{{{ end }}}}{{{{ end }}}}{_literal(self.rest)}"
        )


@dataclass(frozen=True)
class OllamaTemplate:
    """A chat template for Ollama.

    text: the template for Go's text/template. stop: the text that ends generation. notes: messages about
    differences from the Jinja template.
    """

    text: str
    stop: str
    notes: tuple[str, ...]


def ollama_template(tokenizer: Tokenizer) -> OllamaTemplate:
    """Convert the tokenizer's chat template for Ollama.

    ValueError if Ollama's form of template cannot write the same text.
    """
    source = template_source(tokenizer)
    if source is None:
        raise ValueError("the tokenizer has no chat template; fastsft train saves the one it trained with")
    settings = LabelSettings(mask_policy="spans")
    labeller = make_labeller(tokenizer.native, 1 << 20, -1, settings, tokenizer=tokenizer)
    described = describe(labeller)
    name, stop = described["template"], described["stop_token"]
    template = ModelTemplate(source, tokenizer, tokenizer.native)
    bos = getattr(tokenizer, "bos_token", None) or ""
    try:
        if template.rewrites:
            raise _refused(name, "it writes earlier replies otherwise than the last")
        texts = _turn_texts(template, bos, name)
        _check(texts, template, bos, name)
        trims = _rendered(template, bos, None, ("  a  ", "b")) != texts.prompt(None, ["  a  "]) + _end(
            template, bos, texts
        )
    finally:
        template.close()
    notes = (
        ("the chat template trims white space around contents, Ollama's template does not",) if trims else ()
    )
    return OllamaTemplate(texts.go_template(), stop, notes)


def _turn_texts(template: ModelTemplate, bos: str, name: str) -> TurnTexts:
    contents = (_ASKED[0], _REPLIED[0], _ASKED[1], _REPLIED[1])
    plain = _cut(_rendered(template, bos, None, contents), contents, name)
    with_system = _cut(_rendered(template, bos, _SYSTEM, contents), (_SYSTEM, *contents), name)
    prompt = _asked(template, bos, None, _ASKED[:1]).partition(_ASKED[0])[2]
    both = common_length(plain[1], prompt)
    return TurnTexts(
        plain[0], with_system[0], with_system[1], plain[1], plain[2], plain[1][both:], prompt[both:]
    )


def _cut(text: str, contents: Sequence[str], name: str) -> list[str]:
    """Return the parts of `text` before, between and after `contents`."""
    texts = []
    for content in contents:
        before, mark, text = text.partition(content)
        if not mark:
            raise _refused(name, "it changes or leaves out what messages say")
        texts.append(before)
    return [*texts, text]


def _check(texts: TurnTexts, template: ModelTemplate, bos: str, name: str) -> None:
    """Raise ValueError if `texts` do not give the template's text for sample conversations and prompts."""
    end = _end(template, bos, texts)
    for system in (None, "Be kind."):
        for count in (2, 4, 6):
            turns = tuple(f"text {i}" for i in range(count))
            made = texts.prompt(system, turns[:-1]) + turns[-1] + end
            prompt = texts.asked(system, turns[:-1])
            written = _rendered(template, bos, system, turns), _asked(template, bos, system, turns[:-1])
            if written != (made, prompt):
                raise _refused(name, "what it writes around a message depends on more than the role")
    whole = texts.prompt("", [""])
    if '"""' in whole + texts.to_user:
        raise _refused(name, 'it writes """, which ends a template in a Modelfile')


def _end(template: ModelTemplate, bos: str, texts: TurnTexts) -> str:
    return _rendered(template, bos, None, ("x", "y")).removeprefix(texts.prompt(None, ["x"]) + "y")


def _rendered(template: ModelTemplate, bos: str, system: str | None, turns: Sequence[str]) -> str:
    """Return the text of a conversation without its first BOS, which Ollama's tokenizer adds."""
    return _text(template, bos, system, turns)


def _asked(template: ModelTemplate, bos: str, system: str | None, turns: Sequence[str]) -> str:
    """Return the text of the prompt for the reply to the last turn, without BOS."""
    return _text(template.prompts, bos, system, [*turns, ""])


def _text(
    write: Callable[[Sequence[Asked]], list[Rendered]], bos: str, system: str | None, turns: Sequence[str]
) -> str:
    roles = ("user", "assistant")
    chat = [(roles[i % 2], text, i % 2 == 1, "") for i, text in enumerate(turns)]
    pieces, _, _, failure, *_ = write([(system, chat, "", "")])[0]
    if failure:
        raise ValueError(f"the chat template cannot be exported: {failure}")
    return "".join(text for text, _, _ in pieces).removeprefix(bos)


def _refused(name: str, why: str) -> ValueError:
    return ValueError(f"the chat template ({name}) cannot be written for Ollama: {why}")


def _literal(text: str) -> str:
    """Return `text` with double braces escaped for Go's text/template."""
    return text.replace("{{", '{{ "{{" }}')
