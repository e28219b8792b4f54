"""Choose the chat template that a saved model gets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastsft.data.chat.jinja_form import gap_after_bos, with_bos
from fastsft.data.chat.labelling import LabelSettings
from fastsft.data.chat.mask_policy import jinja_form_for
from fastsft.data.chat.model_template import ModelTemplate
from fastsft.data.chat.template_choice import MODEL, is_published_as, recognise, template_source, tool_source
from fastsft.runtime.messages import collected, tell
from fastsft.tokenizer.files import BASE_NAME, TOOL_TEMPLATE, TrainedTemplate
from fastsft.tokenizer.tokenizer import Tokenizer
from fastsft.tokenizer.transformers_tokenizer import require_native_tokenizer


def set_saved_template(
    tokenizer: object, settings: LabelSettings, labelling: Mapping[str, Any], choice: str
) -> None:
    """Make `tokenizer` save the labels' template. Print a message if the base model's differs.

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
