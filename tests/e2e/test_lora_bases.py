"""A checkpoint of adapters goes on over the base model that it was begun with, and over no other."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from e2e.command_line import TRAINER, tensors
from planted import reseal
from warm_ranks import OF_GENERIC_RUNS, WarmRanks

FLAGS: dict[str, Any] = {
    "use_cpu": True, "data_path": TRAINER / "data" / "first48.json", "model_max_length": 256,
    "per_device_train_batch_size": 2, "learning_rate": 5e-3, "max_steps": 4, "save_strategy": "steps",
    "save_steps": 2, "save_total_limit": 4, "report_to": "none", "lora": True, "lora_r": 4,
}  # fmt: skip
KINDS: dict[str, tuple[dict[str, Any], int]] = {
    "native": ({}, 1),
    "two ranks, sharded": ({"fsdp": "full_shard auto_wrap"}, 2),
    "generic": ({"engine": "generic"}, 1),
    "4 bits": ({"q_lora": True}, 1),
}


def copy_of_model(directory: Path) -> Path:
    return Path(shutil.copytree(TRAINER / "model_untied", directory))


def change_one_tensor(model: Path) -> None:
    file = model / "model-00001-of-00002.safetensors"
    values = load_file(file)
    name = sorted(values)[-1]
    save_file({**values, name: values[name] + 0.1}, file, {"format": "pt"})


def back_to_step_2(out: Path) -> None:
    shutil.rmtree(out / "checkpoint-4")
    (out / "adapter_model.safetensors").unlink()


@pytest.mark.variants("native", "two ranks, sharded")
@pytest.mark.parametrize("kind", KINDS)
def test_another_base_is_refused(warm: WarmRanks, kind: str, tmp_path: Path) -> None:
    """Other values under the same name; the same values under another name, in other files, go on."""
    more, ranks = KINDS[kind]
    if kind == "generic":
        warm.imports(*OF_GENERIC_RUNS)
    base, out = copy_of_model(tmp_path / "base"), tmp_path / "out"
    flags = {**FLAGS, **more, "model_name_or_path": base}
    warm.train(flags, out, ranks)
    uninterrupted = tensors(out)
    back_to_step_2(out)
    copy_of_model(tmp_path / "kept")
    change_one_tensor(base)
    run = warm.start({**flags, "plot_loss": False}, out, ranks)
    assert run.wait(60) == [1] * ranks
    error = " ".join(run.text(name="err").split())
    assert "checkpoint-2 was trained over a base model with other weights" in error
    assert "--no_resume True" in error and (out / "checkpoint-2").is_dir()
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "kept", dtype="auto")
    shutil.copytree(
        tmp_path / "kept", tmp_path / "moved", ignore=shutil.ignore_patterns("model*safetensors*")
    )
    model.save_pretrained(tmp_path / "moved", max_shard_size="1MB")
    assert "step 2" in warm.train({**flags, "model_name_or_path": tmp_path / "moved"}, out, ranks)
    resumed = tensors(out)
    assert all(torch.equal(value, resumed[name]) for name, value in uninterrupted.items())


def test_an_old_checkpoint_goes_on(warm: WarmRanks, tmp_path: Path) -> None:
    """One that does not say which base it was trained over."""
    base, out = copy_of_model(tmp_path / "base"), tmp_path / "out"
    flags = {**FLAGS, "model_name_or_path": base}
    warm.train(flags, out)
    back_to_step_2(out)
    state = out / "checkpoint-2" / "fastsft_state.json"
    content = json.loads(state.read_text())
    assert content.pop("base_weights").startswith("files of float")
    state.write_text(json.dumps(content))
    reseal(out / "checkpoint-2")
    change_one_tensor(base)
    assert "step 2" in warm.train(flags, out)


def test_a_finished_run_is_not_that_of_another_base(warm: WarmRanks, tmp_path: Path) -> None:
    """The same command, after the values under the base's name have changed: refused, as a resume is."""
    base, out = copy_of_model(tmp_path / "base"), tmp_path / "out"
    flags = {**FLAGS, "model_name_or_path": base}
    warm.train(flags, out)
    assert "this run is finished" in warm.train(flags, out)
    change_one_tensor(base)
    run = warm.start({**flags, "plot_loss": False}, out)
    assert run.wait(60) == [1]
    assert "checkpoint-4 was trained over a base model with other weights" in " ".join(
        run.text(name="err").split()
    )
