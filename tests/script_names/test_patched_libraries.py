"""Patches of transformers and FastChat that their train() would follow are refused by name."""

from __future__ import annotations

import functools
from typing import Any

import fastchat.model.model_adapter  # noqa: F401  imports transformers and much else
import pytest
import transformers
from fastchat.conversation import conv_templates
from transformers import AutoModelForCausalLM, AutoTokenizer, HfArgumentParser, Trainer

import fastsft.train as train
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
