"""Changes of a script inside transformers or FastChat: their train() would use it, ours never calls it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from types import ModuleType

from fastsft.originals.classes import is_class_of, replaced_methods, replaced_methods_of
from fastsft.originals.functions import described, is_defined_there

# What FastChat's train() takes from transformers. Its models: models/, by class.
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
    """ValueError for a class or method of transformers that is not its own, when transformers is imported.

    uses_tokenizer: whether the run takes transformers' tokenizer as it is, for data that a script makes.
    """
    transformers = sys.modules.get("transformers")
    if not isinstance(transformers, ModuleType):
        return
    for name in _CLASSES:
        found = vars(transformers).get(name)
        if found is None or (uses_tokenizer and name == "AutoTokenizer"):
            continue
        for where, value in _foreign_parts(name, found):
            raise ValueError(
                f"transformers.{where} was replaced by {described(value)}, which FastChat's train() would "
                "use and fastsft's does not: take the patch away, or call fastsft.Trainer yourself"
            )


def refuse_template() -> None:
    """ValueError when the vicuna template of an imported FastChat is not the one that labels are made for."""
    places = [("conversation.conv_templates['vicuna_v1.1']", _registered_template())]
    adapters = sys.modules.get("fastchat.model.model_adapter")
    chosen = getattr(adapters, "get_conversation_template", None)
    if chosen is not None:  # of who has changed it, or added an adapter
        places.append(("model.model_adapter.get_conversation_template('vicuna')", chosen("vicuna")))
    for place, template in places:
        if template is not None:
            _check_template(f"fastchat.{place}", template)


def _registered_template() -> object:
    return getattr(sys.modules.get("fastchat.conversation"), "conv_templates", {}).get("vicuna_v1.1")


def _check_template(place: str, template: object) -> None:
    for name, expected in _TEMPLATE.items():
        got = getattr(template, name, expected)
        if got != expected and not (name == "messages" and not got):
            raise ValueError(f"{place}.{name} was set to {got!r}, expected {expected!r}, {_FOR_LABELS}")
    for method in replaced_methods_of(template):
        raise ValueError(f"{method.where} was replaced by {described(method.value)}, {_FOR_LABELS}")


def refuse_reader() -> None:
    """ValueError when json.load, by which FastChat reads data, is a script's function."""
    for name in ("load", "loads"):
        value = vars(json)[name]
        if not is_defined_there(value, "json", name):
            raise ValueError(
                f"json.{name} was replaced by {described(value)}, which FastChat would read data with, and "
                "fastsft does not: change the file, or set fastsft.train.make_supervised_data_module"
            )


def _foreign_parts(name: str, found: object) -> Iterator[tuple[str, object]]:
    """The parts that are not transformers' own: the class itself, or methods of it and its bases."""
    if not isinstance(found, type) or not is_class_of(found, "transformers"):
        yield name, found
        return
    for method in replaced_methods(found):
        where = method.where.removeprefix("transformers.")
        own = f"{found.__module__}.{found.__qualname__}.".removeprefix("transformers.")
        yield (f"{name}.{where.removeprefix(own)}" if where.startswith(own) else where), method.value
