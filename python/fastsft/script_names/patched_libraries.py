"""Finds functions of transformers, FastChat and json that a script has replaced.

fastsft would never call the replacements, so a run with them is refused.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from types import ModuleType

from fastsft.originals.classes import is_class_of, replaced_methods, replaced_methods_of
from fastsft.originals.functions import described, is_defined_there
from fastsft.runtime.messages import warn_once

# Classes of transformers that FastChat's train() uses, except model classes.
_CLASSES = (
    "AutoConfig",
    "AutoModelForCausalLM",
    "AutoTokenizer",
    "HfArgumentParser",
    "Trainer",
    "TrainingArguments",
)
_TEMPLATE = {
    "system_message": "A chat between a curious user and an artificial intelligence assistant. The assistant "
    "gives helpful, detailed, and polite answers to the user's questions.",
    "roles": ("USER", "ASSISTANT"),
    "sep": " ",
    "sep2": "</s>",
    "messages": [],
    "offset": 0,
}
_FOR_LABELS = (
    "for which fastsft makes labels: give --mask_policy spans with --template, "
    "or set fastsft.train.preprocess"
)


def refuse_patches(*, uses_tokenizer: bool) -> None:
    """Raise ValueError if a script replaced a class or method of transformers that FastChat's train() uses.

    uses_tokenizer: True if the run passes transformers' tokenizer to the script's data functions;
    AutoTokenizer is then not checked.
    """
    transformers = sys.modules.get("transformers")
    if not isinstance(transformers, ModuleType):
        return
    for name in _CLASSES:
        owner = vars(transformers).get(name)
        if owner is None or (uses_tokenizer and name == "AutoTokenizer"):
            continue
        for where, value in _replaced_parts(name, owner):
            raise ValueError(
                f"transformers.{where} was replaced by {described(value)}, which FastChat's train() would "
                "use and fastsft's does not: take the patch away, or call fastsft.Trainer yourself"
            )


def refuse_template() -> None:
    """Raise ValueError if the imported FastChat has another vicuna template than fastsft uses for labels."""
    sources = [("conversation.conv_templates['vicuna_v1.1']", _registered_template())]
    adapters = sys.modules.get("fastchat.model.model_adapter")
    chosen = getattr(adapters, "get_conversation_template", None)
    if chosen is not None:  # a script may have replaced the function, or added an adapter
        sources.append(("model.model_adapter.get_conversation_template('vicuna')", chosen("vicuna")))
    for source, template in sources:
        if template is not None:
            _check_template(f"fastchat.{source}", template)


def _registered_template() -> object:
    return getattr(sys.modules.get("fastchat.conversation"), "conv_templates", {}).get("vicuna_v1.1")


def _check_template(source: str, template: object) -> None:
    for name, expected in _TEMPLATE.items():
        got = getattr(template, name, expected)
        if got != expected and not (name == "messages" and not got):
            raise ValueError(f"{source}.{name} was set to {got!r}, expected {expected!r}, {_FOR_LABELS}")
    for method in replaced_methods_of(template):
        raise ValueError(f"{method.where} was replaced by {described(method.value)}, {_FOR_LABELS}")


def refuse_reader() -> None:
    """Raise ValueError if a script replaced json.load or json.loads, with which FastChat reads data."""
    for name in ("load", "loads"):
        value = vars(json)[name]
        if not is_defined_there(value, "json", name):
            raise ValueError(
                f"json.{name} was replaced by {described(value)}, which FastChat would read data with, and "
                "fastsft does not: change the file, or set fastsft.train.make_supervised_data_module"
            )


def _replaced_parts(name: str, owner: object) -> Iterator[tuple[str, object]]:
    """Yield the name and new value of each replaced part:

    the class itself, or its own or inherited methods.
    """
    if not isinstance(owner, type) or not is_class_of(owner, "transformers"):
        yield name, owner
        return
    for method in replaced_methods(owner):
        where = method.where.removeprefix("transformers.")
        own = f"{owner.__module__}.{owner.__qualname__}.".removeprefix("transformers.")
        yield (f"{name}.{where.removeprefix(own)}" if where.startswith(own) else where), method.value


def replaced_nothing(name: str, kernel: str) -> None:
    """Warn once that FastChat's patch `name`, which would set attention to `kernel`, has no effect here."""
    warn_once(
        f"{name}: nothing was replaced. fastsft's engine computes exact attention without padding by itself; "
        f"a model of transformers that something else trains keeps its own: for {kernel} there, load "
        'it with attn_implementation="flash_attention_2" or "sdpa"'
    )
