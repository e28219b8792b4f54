"""Patches of transformers and FastChat that their train() would follow are refused by name."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fastchat.model.model_adapter
import pytest
import transformers
from fastchat.conversation import conv_templates
from transformers import AutoModelForCausalLM, AutoTokenizer, HfArgumentParser, Trainer

import fastsft.train as train
from fastsft.arguments.from_transformers import as_arguments
from fastsft.script_names.patched_libraries import refuse_patches, refuse_template


def test_the_libraries_as_they_are_pass() -> None:
    assert HfArgumentParser and AutoModelForCausalLM
    refuse_patches(uses_tokenizer=False)
    refuse_template()


def patched(function: Any) -> Any:
    """A function that says that it is the old one."""

    @functools.wraps(function)
    def changed(*args: Any, **options: Any) -> Any:
        return function(*args, **options)

    return changed


@pytest.mark.parametrize(
    "place", [(AutoTokenizer, "from_pretrained"), (Trainer, "compute_loss"), (Trainer, "log")]
)
def test_a_patched_method(place: tuple[Any, str], monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name = place
    monkeypatch.setattr(owner, name, patched(getattr(owner, name)))
    with pytest.raises(ValueError, match=rf"transformers\.{owner.__name__}\.{name} was replaced by"):
        train.train(["--output_dir", "unused"])


def test_a_patched_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train.transformers, "AutoModelForCausalLM", type("Mine", (), {}))
    with pytest.raises(ValueError, match=r"transformers\.AutoModelForCausalLM was replaced by .*Mine"):
        train.train(["--output_dir", "unused"])


def test_data_of_a_script_take_the_tokenizer_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", patched(AutoTokenizer.from_pretrained))
    refuse_patches(uses_tokenizer=True)


def test_another_template_in_fastchat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conv_templates["vicuna_v1.1"], "system_message", "Be brief.")
    tokenizer = transformers.PreTrainedTokenizerBase()
    with pytest.raises(
        ValueError, match=r"conv_templates\['vicuna_v1.1'\]\.system_message was set to 'Be brief.'"
    ):
        train.preprocess([[{"from": "human", "value": "x"}, {"from": "gpt", "value": "y"}]], tokenizer)


SOURCES = [[{"from": "human", "value": "x"}, {"from": "gpt", "value": "y"}]]


def test_another_choice_of_template(monkeypatch: pytest.MonkeyPatch) -> None:
    adapters = fastchat.model.model_adapter
    other = adapters.get_conversation_template("zero_shot")
    monkeypatch.setattr(adapters, "get_conversation_template", lambda path: other)
    with pytest.raises(ValueError, match=r"get_conversation_template\('vicuna'\)\.system_message was set to"):
        train.preprocess(SOURCES, transformers.PreTrainedTokenizerBase())


def test_another_prompt_of_the_template(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = type(conv_templates["vicuna_v1.1"])
    monkeypatch.setattr(kind, "get_prompt", patched(kind.get_prompt))
    with pytest.raises(
        ValueError, match=r"Conversation\.get_prompt was replaced by .*fastsft\.train\.prepro"
    ):
        train.preprocess(SOURCES, transformers.PreTrainedTokenizerBase())


def test_another_reader_of_json(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(json, "load", lambda file: json.loads(file.read())[:8])
    (tmp_path / "d.json").write_text("[]")
    with pytest.raises(ValueError, match=r"json\.load was replaced by .*<lambda>, which FastChat would read"):
        train.make_supervised_data_module(None, train.DataArguments(data_path=str(tmp_path / "d.json")))


def test_a_method_that_a_class_of_arguments_changes(tmp_path: Path) -> None:
    @dataclass
    class Mine(transformers.TrainingArguments):
        more: int = 0

        def get_warmup_steps(self, num_training_steps: int) -> int:
            return self.more

    with pytest.raises(ValueError, match=r"Mine\.get_warmup_steps would never be called: fastsft takes over"):
        as_arguments(Mine(str(tmp_path), use_cpu=True))
