"""What counts as a library's own: by code and default values, whatever names say."""

from __future__ import annotations

import functools
import importlib
import json
import types
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
import transformers
from transformers.data import data_collator
from transformers.models.auto import modeling_auto, tokenization_auto  # noqa: F401
from transformers.models.llama import modeling_llama, tokenization_llama

from fastsft.originals.classes import (
    is_own_object,
    methods_of,
    replaced_functions,
    replaced_methods,
    replaced_methods_of,
)
from fastsft.originals.functions import is_defined_there, is_written_in

LOSS = "transformers.loss.loss_utils"
KINDS = (
    "AutoConfig", "AutoModelForCausalLM", "AutoTokenizer", "HfArgumentParser", "Trainer", "TrainingArguments",
    "LlamaConfig", "LlamaForCausalLM", "LlamaTokenizer", "LlamaTokenizerFast", "MistralForCausalLM",
    "Qwen2ForCausalLM", "Qwen2Tokenizer", "Qwen3ForCausalLM", "Qwen3Config", "PreTrainedTokenizerFast",
    "DataCollatorForSeq2Seq", "DataCollatorWithPadding", "OPTConfig", "OPTForCausalLM", "GPT2LMHeadModel",
    "MixtralForCausalLM", "Gemma2ForCausalLM", "Phi3ForCausalLM", "BloomForCausalLM",
)  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_the_library_as_it_is(name: str) -> None:
    kind = getattr(transformers, name)
    found = [method.where for method in replaced_methods(kind)]
    assert [where for where in found if not where.startswith("transformers.generation.")] == []
    homes = {owner.__module__ for owner in kind.__mro__ if owner.__module__.startswith("transformers.")}
    assert [list(replaced_functions(home)) for home in homes] == [[]] * len(homes)


def test_reloaded_modules_are_the_library() -> None:
    before = modeling_llama.LlamaForCausalLM
    kept = dict(vars(modeling_llama))
    try:
        importlib.reload(modeling_llama)
        assert modeling_llama.LlamaForCausalLM is not before
        assert replaced_methods(before) == replaced_methods(modeling_llama.LlamaForCausalLM) == []
    finally:
        vars(modeling_llama).update(kept)


def changed(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any, **options: Any) -> Any:
        return function(*args, **options)

    return wrapper


def names(kind: type) -> list[str]:
    return [method.where.removeprefix("transformers.") for method in replaced_methods(kind)]


def test_methods_of_a_class_and_its_bases(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = transformers.LlamaTokenizer
    own, base = "models.llama.tokenization_llama.LlamaTokenizer", "tokenization_utils_base"
    state = methods_of(kind)
    with monkeypatch.context() as patch:
        patch.setattr(kind, "_tokenize", changed(kind._tokenize))
        assert names(kind) == [f"{own}._tokenize"]
        assert methods_of(kind) != state
    with monkeypatch.context() as patch:
        patch.setattr(transformers.PreTrainedTokenizerBase, "pad", lambda self: None)
        assert names(kind) == [f"{base}.PreTrainedTokenizerBase.pad"]
    with monkeypatch.context() as patch:
        patch.setattr(kind, "pad", lambda self: None, raising=False)
        patch.setattr(kind, "__getattribute__", object.__getattribute__, raising=False)
        patch.setattr(kind, "of_a_script", lambda self: None, raising=False)
        assert names(kind) == [f"{own}.pad", f"{own}.__getattribute__"]
    with monkeypatch.context() as patch:
        patch.delattr(kind, "_tokenize")
        assert names(kind) == [f"{own}._tokenize"]
        assert replaced_methods(kind)[0].value is None
    with monkeypatch.context() as patch:
        patch.setattr(transformers.LlamaConfig.__init__, "__defaults__", (1,))
        assert names(transformers.LlamaConfig) == ["models.llama.configuration_llama.LlamaConfig.__init__"]
    assert names(kind) == names(transformers.LlamaConfig) == [] and methods_of(kind) == state


def test_classes_of_a_script_under_the_librarys_name() -> None:
    class LlamaTokenizer(transformers.LlamaTokenizer):
        def pad(self, *_: Any) -> Any:
            return None

    LlamaTokenizer.__module__ = tokenization_llama.__name__
    LlamaTokenizer.__qualname__ = "LlamaTokenizer"
    assert "pad" in [method.name for method in replaced_methods(LlamaTokenizer)]


def test_objects() -> None:
    collator: Any = transformers.DataCollatorWithPadding(tokenizer=None)
    assert is_own_object(collator, ["DataCollatorWithPadding"]) and not is_own_object(collator, ["Other"])
    collator.torch_call = collator.numpy_call = types.MethodType(lambda self, rows: rows, collator)
    assert not replaced_methods_of(collator)  # it has no such methods
    collator.__call__ = lambda rows: rows
    assert [method.name for method in replaced_methods_of(collator)] == ["__call__"]
    assert not is_own_object(collator, ["DataCollatorWithPadding"])


def test_default_values_count(monkeypatch: pytest.MonkeyPatch) -> None:
    function = vars(importlib.import_module(LOSS))["fixed_cross_entropy"]
    assert is_defined_there(function, LOSS, "fixed_cross_entropy") and is_written_in(function, "transformers")
    ignored = tuple(5 if value == -100 else value for value in function.__defaults__)
    with monkeypatch.context() as patch:
        patch.setattr(function, "__defaults__", ignored)
        assert not is_defined_there(function, LOSS, "fixed_cross_entropy")
        assert not is_written_in(function, "transformers")
    for value, passes in (({"indent": 1}, False), (None, False)):
        with monkeypatch.context() as patch:
            patch.setattr(json.dumps, "__kwdefaults__", value)
            assert is_defined_there(json.dumps, "json", "dumps") is passes
    assert is_defined_there(json.dumps, "json", "dumps")
    collator = data_collator.default_data_collator
    monkeypatch.setattr(collator, "__defaults__", ("np",))
    assert not is_written_in(collator, "transformers")


def test_what_a_wrapper_holds_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The function inside of a decorator's closure is replaced: the wrapper's own code is untouched."""
    function = modeling_llama.LlamaRotaryEmbedding.forward
    home, name = modeling_llama.__name__, "LlamaRotaryEmbedding.forward"
    assert is_defined_there(function, home, name)
    while not (
        cells := [c for c in function.__closure__ or () if isinstance(c.cell_contents, types.FunctionType)]
    ):
        function = function.__wrapped__
    inner = cells[0].cell_contents
    cells[0].cell_contents = lambda self, x, position_ids: (x, x)
    try:
        assert not is_defined_there(modeling_llama.LlamaRotaryEmbedding.forward, home, name)
    finally:
        cells[0].cell_contents = inner


def test_a_name_whose_origin_was_changed_is_still_the_librarys(monkeypatch: pytest.MonkeyPatch) -> None:
    """`torch.utils.checkpoint.checkpoint` set by a script: who imported it before has torch's."""
    home = "transformers.modeling_utils"
    checkpoint = torch.utils.checkpoint.checkpoint
    monkeypatch.setattr(
        torch.utils.checkpoint, "checkpoint", functools.partial(checkpoint, use_reentrant=False)
    )
    assert vars(importlib.import_module(home))["checkpoint"] is checkpoint
    assert list(replaced_functions(home)) == []
    monkeypatch.setattr(f"{home}.checkpoint", lambda function, *given, **_: function(*given))
    assert [method.where for method in replaced_functions(home)] == [f"{home}.checkpoint"]
