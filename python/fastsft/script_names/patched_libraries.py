"""What a script changed inside transformers or FastChat: their train() would use it, ours never calls it."""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from collections.abc import Iterator
from types import ModuleType
from typing import Any

# What FastChat's train() takes from transformers. Its models: models/, by class.
_CLASSES = ("AutoConfig", "AutoModelForCausalLM", "AutoTokenizer", "HfArgumentParser", "Trainer")
_TEMPLATE = {
    "system_message": "A chat between a curious user and an artificial intelligence assistant. The assistant "
    "gives helpful, detailed, and polite answers to the user's questions.",
    "roles": ("USER", "ASSISTANT"),
    "sep": " ",
    "sep2": "</s>",
    "messages": [],
    "offset": 0,
}


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
                f"transformers.{where} was replaced by {_described(value)}, which FastChat's train() would "
                "use and fastsft's does not: take the patch away, or call fastsft.Trainer yourself"
            )


def refuse_template() -> None:
    """ValueError when the vicuna template of an imported FastChat is not the one that labels are made for."""
    template = getattr(sys.modules.get("fastchat.conversation"), "conv_templates", {}).get("vicuna_v1.1")
    for name, expected in _TEMPLATE.items() if template is not None else ():
        got = getattr(template, name, expected)
        if got != expected and not (name == "messages" and not got):
            raise ValueError(
                f"fastchat.conversation.conv_templates['vicuna_v1.1'].{name} was set to {got!r}, expected "
                f"{expected!r}, for which fastsft makes labels: give --mask_policy spans with --template, "
                "or set fastsft.train.preprocess"
            )


def refuse_reader() -> None:
    """ValueError when json.load, by which FastChat reads data, is a script's function."""
    code = getattr(json.load, "__code__", None)
    if code is None or not _is_of_libraries(code.co_filename):
        raise ValueError(
            f"json.load was replaced by {_described(json.load)}, which FastChat would read data with, and "
            "fastsft does not: change the file, or set fastsft.train.make_supervised_data_module"
        )


def _foreign_parts(name: str, found: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(found, type) or not found.__module__.startswith("transformers."):
        yield name, found
        return
    for attribute, value in vars(found).items():
        function = getattr(value, "__func__", value)
        code = getattr(function, "__code__", None)
        if code is not None and not _is_of_libraries(code.co_filename):
            yield f"{name}.{attribute}", function


def _is_of_libraries(file: str) -> bool:
    """Whether code stands in transformers, torch or the standard library."""
    homes = [sysconfig.get_path("stdlib")]
    loaded = [sys.modules[name] for name in ("transformers", "torch") if name in sys.modules]
    homes += [os.path.dirname(module.__file__ or "/") for module in loaded]
    return file.startswith(tuple(f"{home}{os.sep}" for home in homes)) and not _is_of_site(file)


def _is_of_site(file: str) -> bool:
    """Whether the file is of another installed package; the standard library's folder holds theirs."""
    site = sysconfig.get_path("purelib") + os.sep
    package = file.removeprefix(site).split(os.sep)[0]
    return file.startswith(site) and package not in ("transformers", "torch")


def _described(value: Any) -> str:
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", type(value).__name__)
    return f"{module}.{name}" if module else name
