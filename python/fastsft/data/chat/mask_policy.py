"""Resolve `--mask_policy auto`: FastChat's policy if it works with the tokenizer, otherwise spans."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TypeVar

from fastsft import _C
from fastsft.data.chat.jinja_form import jinja_form_of
from fastsft.data.chat.labelling import AUTO, LEARNED, PROBE_LENGTH, LabelSettings, make_labeller
from fastsft.data.chat.template_choice import MODEL, template_name, template_source
from fastsft.tokenizer.files import TrainedTemplate
from fastsft.tokenizer.interfaces import NamedTokens
from fastsft.tokenizer.tokenizer import Tokenizer
from fastsft.tokenizer.transformers_tokenizer import find_native_tokenizer, require_native_tokenizer

T = TypeVar("T")
_FASTCHAT, _STOP = "vicuna_v1.1", "</s>"
# Named templates for models without a chat template, with the special tokens that such a tokenizer has.
_MARKS = {
    "llama-3": ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    "chatml": ("<|im_start|>", "<|im_end|>"),
}


def resolve_policy(settings: LabelSettings, tokenizer: NamedTokens) -> LabelSettings:
    """Replace the policy "auto" in `settings` by a policy that fits the tokenizer, with the reason.

    FastChat's policy is chosen, unless a flag needs spans or a probe shows that FastChat's token counts fail.
    With spans, the template is the first of these that exists: the template named by --template, the model's
    own template, a template whose special tokens the tokenizer has, and FastChat's template with the
    tokenizer's EOS. A named template that ends replies with </s> ends them with the tokenizer's EOS if the
    tokenizer has no </s>. ValueError, with advice, if there is no such template.
    """
    return _with_eos(_with_policy(settings, tokenizer), tokenizer)


def _with_policy(settings: LabelSettings, tokenizer: NamedTokens) -> LabelSettings:
    if settings.mask_policy != AUTO:
        return settings
    flag = _spans_flag(settings)
    if flag is not None:
        return replace(settings, mask_policy="spans", why=f"{flag} is of this policy")
    problem = fastchat_problem(tokenizer)
    if problem is None:
        why = "FastChat's labels hold with this tokenizer" + _other_template(tokenizer)
        return replace(settings, mask_policy="fastchat", why=why)
    named, whose = _template_of(settings, tokenizer, problem)
    return replace(settings, mask_policy="spans", template=named, why=f"{problem}; {whose}")


def resolve_label_arguments(data_args: T, tokenizer: NamedTokens) -> T:
    """Return `data_args` or a copy with the policy and the template that `resolve_policy` chooses."""
    given = LabelSettings.from_arguments(data_args)
    settled = resolve_policy(given, tokenizer)
    if settled == given:
        return data_args
    chosen = copy.copy(data_args)
    for name, value in (
        ("mask_policy", settled.mask_policy),
        ("template", settled.template),
        ("mask_policy_reason", settled.why),
    ):
        setattr(chosen, name, value)
    return chosen


def resolve_script_policy(settings: LabelSettings) -> LabelSettings:
    """Resolve "auto" for a script that calls FastChat's functions.

    The result is "spans" if a flag needs it, and otherwise "fastchat".
    """
    if settings.mask_policy != AUTO:
        return settings
    return replace(settings, mask_policy="spans" if _spans_flag(settings) else "fastchat")


def set_pad_token(settings: LabelSettings, tokenizer: NamedTokens) -> None:
    """Set the pad token to the unknown token, as FastChat does.

    With the spans policy the pad token is not changed.
    """
    if settings.mask_policy == "fastchat" and tokenizer.pad_token != tokenizer.unk_token:
        tokenizer.pad_token = tokenizer.unk_token


def fastchat_problem(tokenizer: NamedTokens) -> str | None:
    """Return the reason why FastChat's script cannot label with this tokenizer; None if it can."""
    if tokenizer.unk_token_id is None:
        return "the tokenizer has no unk token, with which FastChat pads"
    native = find_native_tokenizer(tokenizer)
    if native is None:
        return None  # labels are then made by calls of the tokenizer itself, as in FastChat
    if native.find_token("</s>") < 0:
        return "the tokenizer has no token </s>, with which FastChat ends replies"
    fastchat = LabelSettings(mask_policy="fastchat")
    try:
        make_labeller(native, PROBE_LENGTH, int(tokenizer.unk_token_id), fastchat, self_test=True)
    except ValueError:
        return "FastChat's counts of tokens fail on a probe with this tokenizer"
    return None


def _spans_flag(settings: LabelSettings) -> str | None:
    """Return the first flag in `settings` that needs the spans policy; None if there is none."""
    name = settings.template
    if name is not None and (name == MODEL or template_name(name) != _FASTCHAT):
        return f"--template {name}"
    if settings.chat_template_name is not None:
        return f"--chat_template_name {settings.chat_template_name}"
    for name, default in {"train_turns": "all", **LEARNED}.items():
        if (value := getattr(settings, name)) != default:
            return f"--{name} {value}"
    if settings.default_system:
        return "--default_system"
    if settings.boundary_tokens != "merge":
        return f"--boundary_tokens {settings.boundary_tokens}"
    return "--on_bad_sample repair" if settings.on_bad_sample == "repair" else None


def _template_of(settings: LabelSettings, tokenizer: NamedTokens, problem: str) -> tuple[str | None, str]:
    """Return the value for --template, and a text with the reason for this choice.

    None: the model's own template.
    """
    if settings.template is not None:
        return settings.template, "the template is named by --template"
    if template_source(tokenizer) is not None:
        return None, "the template is the model's own"
    native = find_native_tokenizer(tokenizer)
    for name, marks in _MARKS.items():
        if native is not None and all(_is_special(native, mark) for mark in marks):
            return name, f"the model has no chat template, and its tokenizer the tokens of {name}"
    if native is not None and (end := _special_eos(tokenizer, native)) is not None:
        return _FASTCHAT, f"the model has no chat template: FastChat's, with replies that end with {end}"
    raise ValueError(
        f"{_where(tokenizer)}: {problem}, and the model has no chat template; name the one to train with: "
        f"--template {{{', '.join(_C.chat_templates())}}}"
    )


def _with_eos(settings: LabelSettings, tokenizer: NamedTokens) -> LabelSettings:
    """Return the settings with the tokenizer's EOS for a named template's </s>, if it has no such token.

    </s> is the EOS of Llama and Llama 2, and the trainers from which these templates come write the
    tokenizer's EOS. The template is then set as the tokenizer's chat template, with which the model is saved.
    """
    name = settings.template
    if settings.mask_policy != "spans" or name in (None, MODEL):
        return settings
    native = find_native_tokenizer(tokenizer)
    named = template_name(name)
    if native is None or _C.find_chat_template(named).stop_token != _STOP or native.find_token(_STOP) >= 0:
        return settings
    end = _special_eos(tokenizer, native)
    if end is None:
        return settings
    source = jinja_form_for(named, tokenizer).replace(_STOP, "' ~ eos_token ~ '")
    tokenizer.chat_template = source
    if isinstance(tokenizer, Tokenizer):
        tokenizer.trained_template = TrainedTemplate(source, None)
    said = f"replies that end with {end}"
    if said in settings.why:
        return replace(settings, template=None)
    why = f"{settings.why}; {named} with {said}".removeprefix("; ")
    return replace(settings, template=None, why=why)


def _special_eos(tokenizer: NamedTokens, native: _C.Tokenizer) -> str | None:
    """Return the text of the tokenizer's EOS; None if it has none or EOS is not special."""
    end = tokenizer.eos_token
    return str(end) if end is not None and _is_special(native, str(end)) else None


def _is_special(native: _C.Tokenizer, text: str) -> bool:
    token = native.find_token(text)
    return bool(token >= 0 and native.is_special(token))


def _other_template(tokenizer: object) -> str:
    """Return a note if the model has a chat template that FastChat's labels do not use; else ""."""
    source = template_source(tokenizer)
    if (
        source is None
        or find_native_tokenizer(tokenizer) is None
        or source == jinja_form_for(_FASTCHAT, tokenizer)
    ):
        return ""
    return "; the model's own chat template is another: --mask_policy spans trains with that"


def jinja_form_for(name: str, tokenizer: object) -> str:
    """Return the Jinja text of the named template for a tokenizer, with the same BOS as in training."""
    native = require_native_tokenizer(tokenizer, f"the chat template {name}")
    return jinja_form_of(name, native)


def _where(tokenizer: object) -> str:
    return str(getattr(tokenizer, "directory", None) or getattr(tokenizer, "name_or_path", "the tokenizer"))
