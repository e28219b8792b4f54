"""`fastsft chat` and `fastsft verify` of a directory that has an adapter alone, as peft saved it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from fastsft.cli import main as cli
from fastsft.cli.demo_model import small_config, write_random_model
from fastsft.lora.merge import merge_adapter, open_chat_model
from fastsft.model.generation import ChatModel
from inspected_models import LLAMA

QUESTION = "Who are you?"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base") / "model"
    sizes = {"hidden_size": 32, "num_layers": 2, "num_heads": 2, "intermediate_size": 48}
    write_random_model(folder, small_config(vocab_size=32000, **sizes))
    for file in LLAMA.iterdir():
        if file.name != "config.json":
            shutil.copy(file, folder)
    return folder


@pytest.fixture
def adapter(base: Path, tmp_path: Path) -> Path:
    model = AutoModelForCausalLM.from_pretrained(base)
    torch.manual_seed(1)
    config = LoraConfig(
        task_type="CAUSAL_LM", r=4, target_modules="all-linear", init_lora_weights=False, lora_alpha=64
    )
    get_peft_model(model, config).save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


def test_chat_answers_as_the_merged_model(base: Path, adapter: Path, tmp_path: Path, capsys: Any) -> None:
    merge_adapter(adapter, tmp_path / "merged")
    expected = ChatModel(tmp_path / "merged").reply(QUESTION, max_new_tokens=6)
    assert expected != ChatModel(base).reply(QUESTION, max_new_tokens=6)
    assert open_chat_model(adapter).reply(QUESTION, max_new_tokens=6) == expected
    message = ["--message", QUESTION, "--max_new_tokens", "6", "--temperature", "0"]
    assert cli.main(["chat", str(adapter), "--base-model-path", str(base), *message]) == 0
    assert capsys.readouterr().out.strip() == expected
    assert cli.main(["chat", str(base), "--base-model-path", str(base), *message]) == 1
    assert "has no adapter" in capsys.readouterr().err


def test_chat_says_where_the_base_is_not(adapter: Path, capsys: Any) -> None:
    edit_config(adapter, base_model_name_or_path="/not/there")
    assert cli.main(["chat", str(adapter), "--message", QUESTION]) == 1
    error = capsys.readouterr().err
    assert "--base-model-path" in error and "/not/there" in error and "Traceback" not in error


def edit_config(adapter: Path, **values: Any) -> None:
    path = adapter / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_a_sound_adapter(adapter: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "2000")
    assert cli.main(["verify", str(adapter)]) == 0
    out = capsys.readouterr().out
    assert "LoRA, r 4, alpha 64" in out and "28 tensors" in out and "all finite" in out
    assert "5 ok, 0 warnings, 0 failed" in out and "the base model's is taken" in out


def change(adapter: Path, edit: Any) -> None:
    path = adapter / "adapter_model.safetensors"
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path, {"format": "pt"})


def _drop(tensors: dict[str, torch.Tensor]) -> None:
    del tensors[sorted(tensors)[0]]


def _spoil(tensors: dict[str, torch.Tensor]) -> None:
    tensors[sorted(tensors)[0]][0, 0] = float("nan")


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (lambda path: change(path, _drop), "has no model.layers.0.mlp.down_proj.lora_A.weight"),
        (lambda path: change(path, _spoil), "1 of 192 values are not finite"),
        (lambda path: edit_config(path, r=5), "expected shape"),
        (lambda path: edit_config(path, use_dora=True), "use_dora"),
        (lambda path: edit_config(path, base_model_name_or_path="/not/there"), "/not/there"),
        (lambda path: edit_config(path, base_model_name_or_path=None), "names no model"),
        (lambda path: (path / "adapter_model.safetensors").write_bytes(b"{}"), "adapter_model.safetensors"),
    ],
)
def test_faults(fault: Any, words: str, adapter: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "2000")
    fault(adapter)
    assert cli.main(["verify", str(adapter)]) == 1
    out = capsys.readouterr().out
    assert words in out and "Traceback" not in out
