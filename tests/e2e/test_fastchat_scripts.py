"""FastChat's training script with one import line changed, and one in its older manner: run, resume, save."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from e2e.command_line import PACKAGE, TRAINER, log_history, tensors, words
from e2e.fastchat_scripts import OLDER, fastchat_script
from fastsft.ranks.store import HeldPort
from warm_ranks import WarmRanks, losses

FLAGS = {
    "model_name_or_path": "model_untied", "data_path": "data/first48.json", "use_cpu": True,
    "num_train_epochs": 1, "gradient_accumulation_steps": 2, "eval_strategy": "no", "save_strategy": "steps",
    "save_steps": 3, "learning_rate": 2e-5, "weight_decay": "0.", "warmup_ratio": 0.03, "logging_steps": 1,
    "lr_scheduler_type": "cosine", "model_max_length": 2048, "gradient_checkpointing": True,
    "lazy_preprocess": True, "report_to": "none",
}  # fmt: skip
SHARDED = {
    "fsdp": "full_shard auto_wrap", "fsdp_transformer_layer_cls_to_wrap": "LlamaDecoderLayer",
}  # fmt: skip


def flags_for(ranks: int) -> dict[str, Any]:
    """The same global batch on one rank and on two."""
    return {**FLAGS, "per_device_train_batch_size": 4 // ranks, **(SHARDED if ranks > 1 else {})}


def run_script(text: str, flags: dict[str, Any], output: Path, ranks: int) -> str:
    """Runs the script on `ranks` ranks; what they print."""
    script, program = output.with_suffix(".py"), Path(__file__).with_name("forked_script.py")
    script.write_text(text)
    port = HeldPort()
    command = [sys.executable, str(program), str(ranks), str(port.number), str(script)]
    process = subprocess.Popen(
        [*command, "--output_dir", str(output), *words(flags)],
        cwd=TRAINER, env={**os.environ, "PYTHONPATH": str(PACKAGE), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        printed = process.communicate(timeout=120)[0]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        port.close()
    assert process.returncode == 0, printed[-6000:]
    return printed


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.chaos), 2])
def test_fastchats_script_with_one_line_changed(warm: WarmRanks, tmp_path: Path, ranks: int) -> None:
    """The losses and weights of `python -m fastsft.train` with the same flags, but for rounding.

    FastChat's lazy data set is not read before it is trained on, so that memory is planned for longer rows.
    """
    flags, out = flags_for(ranks), tmp_path / "script"
    text = run_script(fastchat_script(), flags, out, ranks)
    assert "has no effect" not in text
    warm.start({**flags, "plot_loss": False}, tmp_path / "module", ranks).finish()
    assert losses(out) == pytest.approx(losses(tmp_path / "module"), rel=1e-7)
    assert sorted(losses(out)) == list(range(1, 7))
    saved, wanted = tensors(out), tensors(tmp_path / "module")
    assert saved.keys() == wanted.keys()
    assert all(torch.allclose(tensor, saved[name], rtol=1e-3, atol=1e-6) for name, tensor in wanted.items())
    assert {path.name for path in out.glob("checkpoint-*")} == {"checkpoint-3", "checkpoint-6"}


@pytest.mark.chaos
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_script_that_gathers_the_weights_itself(tmp_path: Path, ranks: int) -> None:
    del (flags := {**flags_for(ranks), "greeting": "hello"})["lazy_preprocess"]
    run_script(OLDER, flags, tmp_path / "out", ranks)
    first = [entry["loss"] for entry in log_history(tmp_path / "out") if "loss" in entry]
    assert len(first) == 6
    run_script(OLDER, {**flags, "num_train_epochs": 2}, tmp_path / "out", ranks)  # goes on from checkpoint-6
    again = [entry["loss"] for entry in log_history(tmp_path / "out") if "loss" in entry]
    assert again[:6] == first and len(again) == 12
