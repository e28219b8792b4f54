"""The chat template that a trained model is saved with: the one that its labels were made with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastsft.data.chat.front_bos import with_bos
from fastsft.data.chat.labelling import LabelSettings
from fastsft.data.chat.policy_choice import jinja_form_for
from fastsft.data.chat.template import ModelTemplate
from fastsft.data.chat.template_choice import is_published_as, recognise, template_source, tool_source
from fastsft.data.chat.template_names import MODEL
from fastsft.runtime.messages import collected, tell
from fastsft.tokenizer.native_tokenizer import needed_native
from fastsft.tokenizer.tokenizer import Tokenizer
from fastsft.tokenizer.trained_template import BASE_NAME, TOOL_TEMPLATE, TrainedTemplate


def keep_trained_template(
    tokenizer: object, settings: LabelSettings, labelling: Mapping[str, Any], choice: str
) -> None:
    """Saves of `tokenizer` get the template of the labels; a line says so where the base's was another.

    labelling: of the rows (`describe`), empty where a script made them: then the base's files stay as they
    are, and so they do for a tokenizer of transformers. choice: --save_chat_template.
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
        kept = "the base model's, which is another" if base is not None else "none, as the base model"
        tell(f"chat template: labels are those of {name}; the saved model has {kept} (--save_chat_template)")
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
    """The Jinja text that renders what labels were made of. The model's own wherever it renders the same,
    with BOS in front where the tokenizer put it there.

    name: of the template that the labels have.
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
    """The model's own template for tools with the BOS that it lacks; None where nothing changes."""
    source = tool_source(tokenizer)
    if source is None or settings.mask_policy != "spans" or settings.template not in (None, MODEL):
        return None
    try:
        begun = _begun(source, tokenizer, TOOL_TEMPLATE, for_tools=True)
    except ValueError:  # it is not taken for labels; a line has said so
        return None
    return begun if begun != source else None


def _begun(source: str, tokenizer: object, name: str, for_tools: bool = False) -> str:
    """A model's own template, with the BOS that it lacks."""
    native = needed_native(tokenizer, f"the chat template {name}")
    if not native.adds_bos or native.named.bos < 0:
        return source
    with collected():  # labels were made with it: what it says of itself has been said
        model = ModelTemplate(source, tokenizer, native, for_tools=for_tools)
    try:
        return with_bos(source) if model.lacks_bos else source
    finally:
        model.close()


def _is_base_with_bos(trained: str, base: str | None) -> bool:
    return base is not None and trained == with_bos(base)


def _is_published(source: str, name: str, tokenizer: object) -> bool:
    native = needed_native(tokenizer, f"the chat template {name}")
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
