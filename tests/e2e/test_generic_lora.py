"""fastsft.train_lora on models without a native engine: bits after a resume, files for peft and others."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from e2e.command_line import TRAINER, tensors
from fastsft.cli import main as cli
from fastsft.lora.merge import open_chat_model
from recorded_models import write_recorded
from warm_ranks import OF_GENERIC_RUNS, WarmRanks, losses

FLAGS: dict[str, Any] = {
    "use_cpu": True, "data_path": TRAINER / "data" / "first48.json", "model_max_length": 256,
    "learning_rate": 5e-3, "lr_scheduler_type": "constant", "logging_steps": 1, "num_train_epochs": 1,
    "gradient_accumulation_steps": 2, "save_strategy": "steps", "save_steps": 3, "report_to": "none",
    "plot_loss": False, "engine": "generic",
    "lora": True, "lora_r": 4, "lora_dropout": 0.0, "lora_target_modules": "all-linear",
}  # fmt: skip
Saved = Callable[[str], Path]
SPREAD = {"per_device_train_batch_size": 2, "fsdp": "full_shard"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {name: write_recorded(name, folder / name) for name in ("gpt2", "gemma2")}


@pytest.fixture(scope="module")
def saved(warm: WarmRanks, models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """What a run of a model on two ranks leaves, with the merged model."""
    folder = tmp_path_factory.mktemp("saved")
    warm.imports(*OF_GENERIC_RUNS)

    @cache
    def output(name: str) -> Path:
        flags = {**FLAGS, **SPREAD, "model_name_or_path": models[name], "save_merged": True}
        printed = warm.train(flags, folder / name, 2)
        assert "engine      generic" in printed and "trained     LoRA r 4, alpha 16 on " in printed
        return folder / name

    return output


@pytest.mark.variants("gpt2")
@pytest.mark.parametrize("name", ["gpt2", "gemma2"])
def test_one_rank_has_the_same_curve(
    warm: WarmRanks, models: dict[str, Path], saved: Saved, name: str, tmp_path: Path
) -> None:
    flags = {**FLAGS, "model_name_or_path": models[name], "per_device_train_batch_size": 4}
    warm.train(flags, tmp_path / "out")
    assert losses(tmp_path / "out") == pytest.approx(losses(saved(name)), abs=1e-5)


@pytest.mark.variants("gpt2")
@pytest.mark.parametrize("name", ["gpt2", "gemma2"])
def test_what_is_saved_opens_elsewhere(
    models: dict[str, Path], saved: Saved, name: str, tmp_path: Path
) -> None:
    """In peft, merged as peft merges it, in a chat; `verify` finds nothing."""
    ids = torch.randint(3, 30000, (2, 9), generator=torch.Generator().manual_seed(0))
    out = saved(name)
    base = AutoModelForCausalLM.from_pretrained(models[name], dtype=torch.float32).eval()
    with torch.no_grad():
        plain = base(ids).logits
        opened = PeftModel.from_pretrained(base, out).eval()
        found = opened(ids).logits
        merged = opened.merge_and_unload()(ids).logits
        own = AutoModelForCausalLM.from_pretrained(out / "merged", dtype=torch.float32).eval()(ids).logits
    assert (found - plain).norm() > 1e-2 * plain.norm()
    assert (own - merged).norm() <= 1e-5 * merged.norm()
    assert (own - found).norm() <= 1e-5 * found.norm()
    chats = [open_chat_model(folder) for folder in (out, out / "merged")]
    replies = [chat.reply("Hello there", max_new_tokens=12) for chat in chats]
    assert replies[0] == replies[1] != ""
    assert cli.main(["verify", str(out)]) == 0
    assert cli.main(["merge", str(out), str(tmp_path / "again")]) == 0
    again, first = tensors(tmp_path / "again"), tensors(out / "merged")
    assert again.keys() == first.keys() and all(torch.equal(again[each], first[each]) for each in first)


def test_a_resumed_run_has_the_same_bits(warm: WarmRanks, models: dict[str, Path], tmp_path: Path) -> None:
    """On two ranks, with dropout."""
    flags = {**FLAGS, **SPREAD, "model_name_or_path": models["gpt2"], "lora_dropout": 0.2}
    out = tmp_path / "out"
    warm.train(flags, out, 2)
    whole, curve = tensors(out), losses(out)
    for path in out.glob("checkpoint-*"):
        if path.name != "checkpoint-3":
            shutil.rmtree(path)
    (out / "adapter_model.safetensors").unlink()
    assert "step 3" in warm.train(flags, out, 2)
    assert losses(out) == curve
    again = tensors(out)
    assert again.keys() == whole.keys() and all(torch.equal(again[name], whole[name]) for name in whole)


@pytest.mark.variants("change0", "change3")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lora_target_modules": ["q_proj"]}, "Its linear layers are c_attn, c_proj, c_fc, lm_head"),
        ({"lora_target_modules": ["c_fc", "wte"]}, "match transformer.wte (Embedding)"),
        ({"lora_modules_to_save": ["ln_f"]}, "lora_modules_to_save: expected none with the generic engine"),
        ({"q_lora": True}, "--q_lora True: expected a model of the native engine"),
    ],
)
def test_what_is_not_in_is_told(
    warm: WarmRanks, models: dict[str, Path], change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    run = warm.start({**FLAGS, "model_name_or_path": models["gpt2"], **change}, tmp_path / "out")
    assert run.wait(60) == [1]
    assert message in " ".join(run.text(name="err").split())
