"""Runs with the base model in 4 bits: recorded with peft, bitsandbytes and transformers' Trainer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from e2e.command_line import TRAINER, log_history, tensors
from e2e.test_golden_runs import assert_steps
from warm_ranks import WarmRanks, losses

GOLDEN = TRAINER.parent
RUNS = {path.stem: json.loads(path.read_text()) for path in sorted((GOLDEN / "nf4").glob("*.json"))}


def flags_of(name: str, **more: Any) -> dict[str, Any]:
    recorded = RUNS[name]
    flags = {**recorded["flags"], "data_path": f"data/{recorded['flags']['data_path']}"}
    adapter = str(GOLDEN / "lora" / recorded["adapter"])
    return {**flags, "lora": True, "q_lora": True, "lora_weight_path": adapter, **more}


def assert_recorded(output: Path, recorded: dict[str, Any]) -> None:
    assert_steps([entry for entry in log_history(output) if "loss" in entry], recorded["steps"])
    saved = tensors(output)
    wanted = {name.replace(".default.", "."): value for name, value in recorded["final_adapter"].items()}
    assert saved.keys() == wanted.keys()
    for name, tensor in saved.items():
        assert list(tensor.shape) == wanted[name]["shape"]
        assert tensor.double().norm().item() == pytest.approx(wanted[name]["l2"], rel=1e-5), name


@pytest.mark.parametrize("name", RUNS)
def test_recorded_run(warm: WarmRanks, name: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    printed = warm.train(flags_of(name), out)
    assert_recorded(out, RUNS[name])
    assert "base model in 4 bits (NF4)" in printed.replace("\n            ", " ")
    warm.train(flags_of(name, q_lora=False), tmp_path / "plain")
    plain, found = losses(tmp_path / "plain"), losses(out)
    assert all(abs(plain[step] - loss) > 1e-3 for step, loss in found.items())  # bits change the curve


@pytest.mark.variants("full_shard")
@pytest.mark.parametrize("sharding", ["full_shard auto_wrap", "shard_grad_op auto_wrap", ""])
def test_two_ranks_are_the_recorded_one(warm: WarmRanks, sharding: str, tmp_path: Path) -> None:
    """bitsandbytes under FastChat's script has no full_shard."""
    more = {"fsdp": sharding} if sharding else {}
    warm.train(flags_of("all_linear_decay", per_device_train_batch_size=2, **more), tmp_path / "out", 2)
    assert_recorded(tmp_path / "out", RUNS["all_linear_decay"])


def test_a_resumed_run_has_the_same_bits(warm: WarmRanks, tmp_path: Path) -> None:
    flags = flags_of("q_v", lora_dropout=0.0, save_strategy="steps", save_steps=3)
    out = tmp_path / "out"
    warm.train(flags, out)
    uninterrupted = tensors(out)
    for path in out.glob("checkpoint-*"):
        if path.name != "checkpoint-3":
            shutil.rmtree(path)
    (out / "adapter_model.safetensors").unlink()
    run = warm.start({**flags, "q_lora": False, "plot_loss": False}, out)
    assert run.wait(60) == [1]
    assert ", with --q_lora, now the run is with" in run.text(name="err")
    assert "step 3" in warm.train(flags, out)
    resumed = tensors(out)
    assert resumed.keys() == uninterrupted.keys()
    assert all(torch.equal(value, resumed[name]) for name, value in uninterrupted.items())


def test_what_is_saved_goes_with_the_base_model_as_it_is(warm: WarmRanks, tmp_path: Path) -> None:
    """The merged model is base plus adapter: the 4 bits are in no file."""
    out = tmp_path / "out"
    warm.train(flags_of("q_v", save_merged=True), out)
    assert not (out / "model.safetensors").exists()
    base = AutoModelForCausalLM.from_pretrained(TRAINER / "model_untied", dtype=torch.float32)
    ids = torch.randint(3, 30000, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found = PeftModel.from_pretrained(base, out)(ids).logits
        merged = AutoModelForCausalLM.from_pretrained(out / "merged", dtype=torch.float32)(ids).logits
    assert (found - merged).norm() <= 1e-5 * merged.norm()
