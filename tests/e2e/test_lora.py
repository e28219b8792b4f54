"""Recorded LoRA runs of FastChat's data with peft and transformers' Trainer, again with the same flags.

Tolerances: loss 1e-5 absolute, norms of adapters 1e-5 relative, merged weights 1e-6 relative.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from deepspeed_files import STAGE_2, STAGE_3
from e2e.command_line import TRAINER, log_history, start, tensors
from e2e.test_golden_runs import assert_steps
from warm_ranks import WarmRanks

LORA = TRAINER.parent / "lora"
RUNS = {path.stem: json.loads(path.read_text()) for path in sorted(LORA.glob("*.json"))}


def flags_of(name: str, **more: Any) -> dict[str, Any]:
    flags = RUNS[name]["flags"]
    places = {
        "data_path": f"data/{flags['data_path']}",
        "lora_weight_path": str(LORA / flags["lora_weight_path"]),
    }
    return {**flags, **places, "lora": True, **more}


def assert_run(output: Path, recorded: dict[str, Any]) -> None:
    history = log_history(output)
    assert_steps([entry for entry in history if "loss" in entry], recorded["steps"])
    end = history[-1]
    assert end["train_loss"] == pytest.approx(recorded["end"]["train_loss"], abs=1e-5)
    assert (end["total_flos"], end["step"]) == (recorded["end"]["total_flos"], recorded["end"]["step"])
    saved = tensors(output)
    wanted = {name.replace(".default.", "."): value for name, value in recorded["final_adapter"].items()}
    assert saved.keys() == wanted.keys()
    for name, tensor in saved.items():
        assert list(tensor.shape) == wanted[name]["shape"]
        assert tensor.double().norm().item() == pytest.approx(wanted[name]["l2"], rel=1e-5), name


def assert_merged(directory: Path, recorded: dict[str, Any]) -> None:
    merged, wanted = tensors(directory), dict(recorded["final_weights"]["tensors"])
    if json.loads((directory / "config.json").read_text())["tie_word_embeddings"]:
        del wanted["lm_head.weight"]
    assert merged.keys() == wanted.keys()
    for name, tensor in merged.items():
        assert tensor.double().norm().item() == pytest.approx(wanted[name]["l2"], rel=1e-6), name
        first = torch.tensor(wanted[name]["first"])
        assert torch.allclose(tensor.flatten()[: len(first)], first, rtol=0, atol=2e-6), name


@pytest.mark.parametrize("name", RUNS)
def test_recorded_run(warm: WarmRanks, name: str, tmp_path: Path) -> None:
    recorded = RUNS[name]
    out = tmp_path / "out"
    printed = warm.train(flags_of(name, save_merged=True), out, recorded["world_size"])
    assert_run(out, recorded)
    assert_merged(out / "merged", recorded)
    config = json.loads((out / "adapter_config.json").read_text())
    assert f"trained     LoRA r {config['r']}, alpha {config['lora_alpha']} on q_proj" in printed
    assert not (out / "model.safetensors").exists() and not (out / "config.json").exists()


STAGES: dict[str, Any] = {"deepspeed 2": STAGE_2, "deepspeed 3": STAGE_3}


@pytest.mark.variants("full_shard")
@pytest.mark.parametrize("sharding", ["full_shard auto_wrap", "shard_grad_op auto_wrap", *STAGES])
def test_sharded_run_is_the_recorded_one(warm: WarmRanks, sharding: str, tmp_path: Path) -> None:
    """With --fsdp, or a file of FastChat's for DeepSpeed."""
    name, flag = "q_v_two_processes", {"fsdp": sharding}
    if sharding in STAGES:
        (tmp_path / "ds.json").write_text(json.dumps(STAGES[sharding]))
        flag = {"deepspeed": str(tmp_path / "ds.json")}
    warm.train(flags_of(name, **flag), tmp_path / "out", 2)
    assert_run(tmp_path / "out", RUNS[name])


def test_the_command(tmp_path: Path) -> None:
    """FastChat's command, with --flash_attn; peft opens what it leaves, with the merged model's logits."""
    flags = {name: value for name, value in flags_of("q_v", flash_attn=False).items() if name != "lora"}
    out = tmp_path / "out"
    start(flags, out, module="fastsft.train_lora")
    assert_run(out, RUNS["q_v"])
    model = AutoModelForCausalLM.from_pretrained(TRAINER / "model_untied")
    ids = torch.randint(3, 30000, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        plain = model(ids).logits
        opened = PeftModel.from_pretrained(model, out)
        found = opened(ids).logits
        assert (found - plain).norm() > 1e-3 * plain.norm()
        merged = opened.merge_and_unload()(ids).logits
    assert (found - merged).norm() <= 1e-5 * merged.norm()


DRAWN = {
    "lora": True, "lora_r": 4, "lora_target_modules": "all-linear", "save_strategy": "steps", "save_steps": 3,
    "lora_weight_path": "", "lora_dropout": 0.1,
}  # fmt: skip


def test_a_resumed_run_has_the_same_bits(warm: WarmRanks, tmp_path: Path) -> None:
    flags = {name: value for name, value in flags_of("q_v", **DRAWN).items() if name != "lora_weight_path"}
    out = tmp_path / "out"
    warm.train(flags, out)
    uninterrupted = tensors(out)
    names = {path.name for path in (out / "checkpoint-3").iterdir()}
    assert {"adapter_model.safetensors", "adapter_config.json", "trainer_state.json"} <= names
    assert "model.safetensors" not in names and "config.json" not in names
    assert PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(TRAINER / "model_untied"), out / "checkpoint-3"
    )
    for path in out.glob("checkpoint-*"):
        if path.name != "checkpoint-3":
            shutil.rmtree(path)
    (out / "adapter_model.safetensors").unlink()
    assert "step 3" in warm.train(flags, out)
    resumed = tensors(out)
    assert resumed.keys() == uninterrupted.keys()
    assert all(torch.equal(value, resumed[name]) for name, value in uninterrupted.items())
    assert "this run is finished" in warm.train(flags, out)
    run = warm.start({**flags, "lora_alpha": 8, "plot_loss": False}, out)
    assert run.wait(60) == [1]
    assert "with other modules or --lora_alpha" in run.text(name="err")
