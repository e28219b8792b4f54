"""Every public name of FastChat's train.py, of all its releases, can be imported from fastsft.train."""

from __future__ import annotations

import ast
import importlib
import json
import math
import pathlib
import subprocess
import sys
import typing
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import fastsft.train as module
from fastsft.script_names import module_names

# At module level in the releases 0.1.10 to 0.2.36, as `git log -- fastchat/train/train.py` has them.
OF_ALL_RELEASES = """
    copy dataclass field json logging math pathlib Dict Optional Sequence np torch transformers Dataset
    Trainer LabelSmoother SeparatorStyle get_conversation_template conversation_lib
    IGNORE_TOKEN_ID IGNORE_INDEX DEFAULT_PAD_TOKEN DEFAULT_EOS_TOKEN DEFAULT_BOS_TOKEN DEFAULT_UNK_TOKEN
    ModelArguments DataArguments TrainingArguments local_rank rank0_print
    safe_save_model_for_hf_trainer trainer_save_model_safe smart_tokenizer_and_embedding_resize
    _tokenize_fn _mask_targets _add_speaker_and_signal preprocess SupervisedDataset LazySupervisedDataset
    DataCollatorForSupervisedDataset make_supervised_data_module train
""".split()  # noqa: SIM905


@pytest.mark.parametrize("name", OF_ALL_RELEASES)
def test_the_name_is_there(name: str) -> None:
    assert hasattr(module, name) and name in dir(module)


def test_names_are_the_objects_of_fastchats_module() -> None:
    original = importlib.import_module("fastchat.train.train")
    names = {name for name in vars(original) if not name.startswith("__")}
    assert names <= set(OF_ALL_RELEASES)
    for name in names & module_names.NAMES:
        assert module_names.is_original(name, getattr(original, name)), name
    assert module.IGNORE_TOKEN_ID == original.IGNORE_TOKEN_ID == module.IGNORE_INDEX


def test_early_imports() -> None:
    assert (module.Dict, module.Optional, module.Sequence) == tuple(
        getattr(typing, name) for name in ("Dict", "Optional", "Sequence")
    )
    assert (module.np, module.torch, module.transformers.__file__) == (np, torch, transformers.__file__)
    assert (module.json, module.math, module.pathlib) == (json, math, pathlib)


@pytest.mark.thorough
def test_a_star_brings_them_and_the_import_alone_is_light() -> None:
    code = """
import sys
import fastsft.train
assert "transformers" not in sys.modules and "fastchat" not in sys.modules
from fastsft.train import *
print(sorted(name for name in globals() if name[0] != "_"))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names = set(eval(done.stdout.splitlines()[-1])) - {"sys", "fastsft"}
    assert names == {name for name in OF_ALL_RELEASES if name[0] != "_"}


def test_without_transformers_the_message_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(
        ImportError, match=r"fastsft\.train\.transformers is .* not installed .*pip install trans"
    ):
        from fastsft.train import transformers  # noqa: F401


def test_a_name_that_the_installed_fastchat_has_no_more() -> None:
    with pytest.raises(
        ImportError, match=r"installed fschat has no fastchat\.conversation\.get_default_conv_templ"
    ):
        _ = module.get_default_conv_template


@pytest.mark.parametrize("name", ["train_mem", "train_xformers"])
def test_the_other_two_modules_have_their_names(name: str) -> None:
    ours = importlib.import_module(f"fastsft.{name}")
    text = Path(importlib.import_module("fastchat.train").__path__[0], f"{name}.py").read_text()
    imported = {
        alias.name
        for node in ast.parse(text).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert set(ours.__all__) == imported and ours.train is module.train


def test_another_name_is_none() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = module.nothing


PATCHES = {
    "llama_flash_attn_monkey_patch": "replace_llama_attn_with_flash_attn",
    "llama2_flash_attn_monkey_patch": "replace_llama_attn_with_flash_attn",
    "llama_xformers_attn_monkey_patch": "replace_llama_attn_with_xformers_attn",
}


@pytest.mark.parametrize("name", PATCHES)
def test_attention_patches_change_nothing_and_say_so_once(
    name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.models.llama import modeling_llama

    from fastsft.runtime import messages as notices

    monkeypatch.setattr(notices, "_said", set())
    before = {
        key: dict(vars(value)) for key, value in vars(modeling_llama).items() if isinstance(value, type)
    }
    replace = getattr(importlib.import_module(f"fastsft.{name}"), PATCHES[name])
    replace(), replace()
    said = [record.message for record in caplog.records]
    assert len(said) == 1 and said[0].startswith(f"{PATCHES[name]}: nothing was replaced")
    after = {key: dict(vars(value)) for key, value in vars(modeling_llama).items() if isinstance(value, type)}
    assert before == after


def test_the_page_names_fastchats_modules_that_are_not_there() -> None:
    modules = {path.stem for path in Path(importlib.import_module("fastchat.train").__path__[0]).glob("*.py")}
    ours = {path.stem for path in Path(module.__file__ or "").parent.glob("*.py")}
    page = (Path(__file__).parents[2] / "docs" / "migrating_from_fastchat.md").read_text(encoding="utf-8")
    absent = modules - ours - {"__init__"}
    assert absent and not [name for name in absent if f"`{name}`" not in page]
