"""Classes that FastChat's train() makes of a directory: a script's changes of them are refused by name."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import modeling_utils, tokenization_utils
from transformers.models.auto import configuration_auto, modeling_auto, tokenization_auto  # noqa: F401
from transformers.models.llama import configuration_llama, modeling_llama, tokenization_llama

import fastsft.train as train
from e2e.command_line import TRAINER
from fastsft.model import CausalLM
from fastsft.program.checked_names import check_directory
from fastsft.script_names.patched_libraries import refuse_patches

Patch = Callable[[pytest.MonkeyPatch], None]


def wrapped(function: Any) -> Any:
    @functools.wraps(function)
    def changed(*args: Any, **options: Any) -> Any:
        return function(*args, **options)

    return changed


def method(owner: type, name: str) -> Patch:
    def apply(patch: pytest.MonkeyPatch) -> None:
        found = vars(owner)[name]
        is_of_class = isinstance(found, classmethod)
        changed = wrapped(found.__func__ if is_of_class else found)
        patch.setattr(owner, name, classmethod(changed) if is_of_class else changed)

    return apply


def named(module: Any, name: str) -> Patch:
    """Another class in the place of a module's."""
    return lambda patch: patch.setattr(module, name, type(name, (getattr(module, name),), {"__init__": None}))


def registered(patch: pytest.MonkeyPatch) -> None:
    kind = type("Mine", (transformers.LlamaForCausalLM,), {})
    table = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING
    patch.setattr(table, "_extra_content", {})
    transformers.AutoModelForCausalLM.register(transformers.LlamaConfig, kind, exist_ok=True)


CASES: dict[str, tuple[Patch, str]] = {
    "tokenizer": (method(transformers.LlamaTokenizer, "_tokenize"), r"LlamaTokenizer\._tokenize"),
    "tokenizer's base": (
        method(transformers.PreTrainedTokenizer, "prepare_for_tokenization"),
        r"tokenization_utils\.PreTrainedTokenizer\.prepare_for_tokenization",
    ),
    "tokenizer's loader": (
        method(transformers.PreTrainedTokenizerBase, "from_pretrained"), r"TokenizerBase\.from_pretrained",
    ),
    "config": (method(transformers.LlamaConfig, "__init__"), r"configuration_llama\.LlamaConfig\.__init__"),
    "config's loader": (method(transformers.PretrainedConfig, "from_dict"), r"PretrainedConfig\.from_dict"),
    "model's loader": (
        method(transformers.PreTrainedModel, "from_pretrained"), r"PreTrainedModel\.from_pretrained",
    ),
    "function": (
        lambda patch: patch.setattr(modeling_utils, "load_state_dict", lambda *_: {}),
        r"transformers\.modeling_utils\.load_state_dict",
    ),
    "function of tokenizers": (
        lambda patch: patch.setattr(tokenization_utils, "_is_whitespace", lambda c: False),
        r"transformers\.tokenization_utils\._is_whitespace",
    ),
    "imported function": (
        lambda patch: patch.setattr(modeling_utils, "safe_open", lambda *_: None),
        r"transformers\.modeling_utils\.safe_open",
    ),
    "torch's module": (method(torch.nn.Module, "to"), r"torch\.nn\.modules\.module\.Module\.to"),
    "part of the tokenizer": (method(tokenization_utils.Trie, "split"), r"tokenization_utils\.Trie\.split"),
    "deleted": (
        lambda patch: patch.delattr(transformers.LlamaTokenizer, "build_inputs_with_special_tokens"),
        r"LlamaTokenizer\.build_inputs_with_special_tokens",
    ),
    "class of config": (named(configuration_llama, "LlamaConfig"), r"configuration_llama\.LlamaConfig"),
    "class of model": (named(modeling_llama, "LlamaForCausalLM"), r"modeling_llama\.LlamaForCausalLM"),
    "class of tokenizer": (named(tokenization_llama, "LlamaTokenizer"), r"zation_llama\.LlamaTokenizer"),
    "class of the package": (
        named(transformers.models.llama, "LlamaTokenizer"), r"models\.llama\.LlamaTokenizer",
    ),
    "registered class": (registered, r"AutoModelForCausalLM's class for llama"),
}  # fmt: skip


@pytest.fixture
def model() -> CausalLM:
    return CausalLM.from_pretrained(str(TRAINER / "model_untied"))


@pytest.mark.parametrize("name", CASES)
def test_a_change_is_refused(name: str, model: CausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    change, place = CASES[name]
    check_directory(model, trusts_code=False)
    with monkeypatch.context() as patch:
        change(patch)
        with pytest.raises(ValueError, match=rf"{place}.* was replaced by .*call fastsft\.Trainer"):
            check_directory(model, trusts_code=False)
    check_directory(model, trusts_code=False)


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [(transformers.PreTrainedTokenizerBase, "truncation_side", "left"),
     (transformers.LlamaConfig, "model_type", "mistral")],
)  # fmt: skip
def test_values_of_a_class(
    owner: type, name: str, value: str, model: CausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, value)
    with pytest.raises(ValueError, match=rf"{owner.__name__}\.{name} was set to '{value}'.*set it back"):
        check_directory(model, trusts_code=False)


def test_train_refuses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    method(transformers.LlamaTokenizer, "_tokenize")(monkeypatch)
    with pytest.raises(ValueError, match=r"LlamaTokenizer\._tokenize was replaced by"):
        train.train(
            model_name_or_path=str(TRAINER / "model_untied"), data_path=str(TRAINER / "data/first48.json"),
            output_dir=str(tmp_path / "out"), use_cpu=True, max_steps=1,
        )  # fmt: skip


def test_what_training_does_not_use(model: CausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another family's class, a helper under a new name, a question about the machine, generation."""
    monkeypatch.setattr(transformers.Qwen2Tokenizer, "_tokenize", lambda self, text: [])
    monkeypatch.setattr(transformers.LlamaTokenizer, "of_a_script", lambda self: 1, raising=False)
    monkeypatch.setattr(transformers.PreTrainedModel, "of_a_script", lambda self: 1, raising=False)
    monkeypatch.setattr(modeling_utils, "is_flash_attn_2_available", lambda: False, raising=False)
    monkeypatch.setattr(modeling_utils, "check_torch_load_is_safe", lambda: None, raising=False)
    monkeypatch.setattr(transformers.GenerationMixin, "generate", lambda self: None)
    monkeypatch.setattr(torch.nn.Module, "cuda", lambda self: self)
    monkeypatch.setattr(torch.nn.Linear, "reset_parameters", lambda self: None)
    check_directory(model, trusts_code=False)
    refuse_patches(uses_tokenizer=False)


def test_data_of_a_script_take_the_patched_tokenizer(
    model: CausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    method(transformers.LlamaTokenizer, "_tokenize")(monkeypatch)
    monkeypatch.setattr("fastsft.program.checked_names.rebound_data_names", lambda: ["preprocess"])
    check_directory(model, trusts_code=False)


@pytest.mark.parametrize(
    ("owner", "name"),
    [(transformers.TrainingArguments, "__post_init__"), (transformers.Trainer, "log")],
)
def test_classes_of_every_run(owner: type, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method(owner, name)(monkeypatch)
    with pytest.raises(ValueError, match=rf"transformers\.{owner.__name__}\.{name} was replaced by"):
        refuse_patches(uses_tokenizer=False)
