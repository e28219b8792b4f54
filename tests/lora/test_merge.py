"""`fastsft merge`: the merged directory is that of peft's merge_and_unload."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from fastsft.cli import main as cli
from fastsft.lora.adapter_files import AdapterDirectory, write_adapter
from fastsft.lora.merge import merge_adapter
from fastsft.lora.targets import resolve
from read_tensors import most_alive
from tiny_models import write_model

_LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
_CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "two linears": ("untied", {"target_modules": ["q_proj", "v_proj"], "lora_alpha": 16}),
    "all linears, rsLoRA, ranks": (
        "tied", {"target_modules": _LINEAR, "use_rslora": True, "rank_pattern": {"k_proj": 3}},
    ),
    "biases": ("qwen2", {"target_modules": ["q_proj", "down_proj"], "bias": "all"}),
    "fused projections": ("phi3", {"target_modules": ["qkv_proj", "gate_up_proj"], "use_rslora": True}),
    "biases of the adapted": ("biases", {"target_modules": ["q_proj"], "bias": "lora_only"}),
    "a part of what is one matrix in the engine": (
        "untied", {"target_modules": ["q_proj"], "modules_to_save": ["v_proj"]},
    ),
    "the head, norms whole": (
        "untied", {"target_modules": ["lm_head", "o_proj"], "modules_to_save": ["norm", "embed_tokens"]},
    ),
}  # fmt: skip


def save_adapter(base: Path, directory: Path, fields: dict[str, Any]) -> Path:
    """peft's own file of random adapters, and of changed biases and modules."""
    model = AutoModelForCausalLM.from_pretrained(base)
    torch.manual_seed(1)
    wrapped = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=4, **fields))
    with torch.no_grad():
        for parameter in wrapped.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    wrapped.save_pretrained(directory)
    return directory


def merged_by_peft(base: Path, adapter: Path) -> dict[str, torch.Tensor]:
    model = AutoModelForCausalLM.from_pretrained(base)
    return dict(PeftModel.from_pretrained(model, adapter).merge_and_unload().state_dict())


def state_of(directory: Path) -> dict[str, torch.Tensor]:
    return dict(AutoModelForCausalLM.from_pretrained(directory, dtype="auto").state_dict())


@pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`")
@pytest.mark.parametrize("case", _CASES)
def test_the_merged_model_is_peft_s(case: str, tmp_path: Path, monkeypatch) -> None:
    kind, fields = _CASES[case]
    base = write_model(tmp_path / "base", kind, max_shard_size="40KB")
    adapter = save_adapter(base, tmp_path / "adapter", fields)
    expected = merged_by_peft(base, adapter)
    alive = most_alive(monkeypatch)
    words = ["--base-model-path", str(base), "--lora-path", str(adapter)]
    assert cli.main(["merge", *words, "--target-model-path", str(tmp_path / "merged")]) == 0
    assert max(alive) <= 2
    merged = state_of(tmp_path / "merged")
    assert merged.keys() == expected.keys()
    for name, value in expected.items():
        assert (merged[name] - value).norm() <= 1e-6 * value.norm(), name
    changed = [name for name, value in state_of(base).items() if not torch.equal(value, merged[name])]
    assert len(changed) >= len(fields["target_modules"])


@pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`")
@pytest.mark.parametrize("case", _CASES)
def test_our_files_open_in_peft(case: str, tmp_path: Path) -> None:
    """An adapter that was read and written again gives peft the same merged weights."""
    kind, fields = _CASES[case]
    base = write_model(tmp_path / "base", kind)
    opened = AdapterDirectory(save_adapter(base, tmp_path / "adapter", fields))
    targets = resolve(opened.settings, json.loads((base / "config.json").read_text()))
    opened.check(targets)
    (tmp_path / "again").mkdir()
    values = {name: opened.read(name) for name in targets.shapes()}
    write_adapter(tmp_path / "again", opened.settings, targets, values)
    expected, found = merged_by_peft(base, opened.directory), merged_by_peft(base, tmp_path / "again")
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_the_tokenizer_is_that_of_the_adapter(tmp_path: Path) -> None:
    """With the chat template that was trained; the base's where the adapter has none."""
    base = write_model(tmp_path / "base", "untied")
    adapter = save_adapter(base, tmp_path / "adapter", {"target_modules": ["q_proj"]})
    (base / "tokenizer_config.json").write_text('{"chat_template": "base"}')
    merge_adapter(adapter, tmp_path / "without", base)
    assert json.loads((tmp_path / "without" / "tokenizer_config.json").read_text())["chat_template"] == "base"
    (adapter / "tokenizer_config.json").write_text("{}")
    (adapter / "chat_template.jinja").write_text("trained")
    merge_adapter(adapter, tmp_path / "with", base)
    assert (tmp_path / "with" / "chat_template.jinja").read_text() == "trained"
    assert json.loads((tmp_path / "with" / "tokenizer_config.json").read_text()) == {}


def test_a_narrow_base_is_summed_wide_and_rounded_once(tmp_path: Path, capsys) -> None:
    base = write_model(tmp_path / "base", "untied", dtype="bfloat16")
    adapter = save_adapter(base, tmp_path / "adapter", {"target_modules": ["q_proj"], "lora_alpha": 16})
    config = json.loads((adapter / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(base)  # which is taken without --base-model-path
    assert cli.main(["merge", str(adapter), str(tmp_path / "merged")]) == 0
    assert "written: " in capsys.readouterr().out
    merged, plain, parts = state_of(tmp_path / "merged"), state_of(base), load_file(
        adapter / "adapter_model.safetensors"
    )  # fmt: skip
    name = "model.layers.1.self_attn.q_proj"
    a, b = (parts[f"base_model.model.{name}.lora_{part}.weight"].double() for part in "AB")
    wide = plain[f"{name}.weight"].double() + 4 * (b @ a)
    found = merged[f"{name}.weight"]
    assert found.dtype == torch.bfloat16
    assert (found != wide.float().bfloat16()).float().mean() < 0.01  # ties of float32 and float64 sums


def test_pickled_weights_are_read(tmp_path: Path) -> None:
    base = write_model(tmp_path / "base", "untied")
    adapter = save_adapter(base, tmp_path / "adapter", {"target_modules": ["v_proj"]})
    expected = merged_by_peft(base, adapter)
    file = adapter / "adapter_model.safetensors"
    torch.save(load_file(file), adapter / "adapter_model.bin")
    file.unlink()
    assert cli.main(["merge", str(adapter), str(tmp_path / "merged"), "--base-model-path", str(base)]) == 0
    merged = state_of(tmp_path / "merged")
    assert all((merged[name] - value).norm() <= 1e-6 * value.norm() for name, value in expected.items())


def test_what_does_not_fit_is_refused_in_a_line(tmp_path: Path, capsys) -> None:
    base = write_model(tmp_path / "base", "untied")
    adapter = save_adapter(base, tmp_path / "adapter", {"target_modules": ["v_proj"]})
    tensors = load_file(adapter / "adapter_model.safetensors")
    first = next(iter(tensors))

    def complaint(*words: str) -> str:
        assert cli.main(["merge", *words, str(tmp_path / "merged"), "--base-model-path", str(base)]) == 1
        assert not (tmp_path / "merged").exists()
        return capsys.readouterr().err

    def changed(name: str, content: dict[str, torch.Tensor], **config: Any) -> str:
        copy = tmp_path / name
        shutil.copytree(adapter, copy)
        save_file(content, copy / "adapter_model.safetensors")
        fields = json.loads((copy / "adapter_config.json").read_text())
        (copy / "adapter_config.json").write_text(json.dumps({**fields, **config}))
        return complaint(str(copy))

    less = {name: value for name, value in tensors.items() if name != first}
    assert f"has no {first.removeprefix('base_model.model.')}" in changed("less", less)
    assert "has no place for model.x.lora_A.weight" in changed(
        "more", {**tensors, "base_model.model.model.x.lora_A.weight": torch.ones(1)}
    )
    assert "expected names that begin with base_model.model." in changed("names", {"x": torch.ones(1)})
    assert "expected shape [4, 32]" in changed("shape", {**tensors, first: torch.ones(5, 32)})
    assert "use_dora: expected False, got True" in changed("dora", tensors, use_dora=True)
    assert "got 'IA3'" in changed("other", tensors, peft_type="IA3")
    assert "expected a directory with adapter_config.json" in complaint(str(base))
    (tmp_path / "there").mkdir()
    assert cli.main(["merge", str(adapter), str(tmp_path / "there"), "--base-model-path", str(base)]) == 1
    assert "is there already" in capsys.readouterr().err
