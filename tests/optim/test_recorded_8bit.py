"""A run with --optim adamw_8bit next to a recorded one of transformers' Trainer with bitsandbytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

import fastsft
from fastsft import _C
from trainer_pairs import losses

GOLDEN = Path(__file__).parents[1] / "golden" / "adamw_8bit"
RECORDED: dict[str, Any] = json.loads((GOLDEN / "run.json").read_text())


class Rows(torch.utils.data.Dataset):
    """The recorded rows."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self.columns = {name: tensors[name] for name in ("input_ids", "labels", "attention_mask")}

    def __len__(self) -> int:
        return len(self.columns["labels"])

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        return {name: column[row] for name, column in self.columns.items()}


def trainer(output: Path, **changes: Any) -> fastsft.Trainer:
    tensors = load_file(GOLDEN / "run.safetensors")
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**RECORDED["model"]))
    model.config.use_cache = False
    model.load_state_dict({n.removeprefix("begin."): t for n, t in tensors.items() if n.startswith("begin.")})
    flags = {"model_max_length": 24, "plot_loss": False, **RECORDED["flags"], **changes}
    return fastsft.Trainer(model, fastsft.TrainingArguments(str(output), **flags), None, Rows(tensors))


@pytest.mark.parametrize("engine", ["native", "generic"])
def test_losses_are_the_recorded_ones(engine: str, tmp_path: Path) -> None:
    """Moments in float32 give other losses, up to 7.2e-3 away; those of 8 bits were 1.8e-4 away."""
    ours = trainer(tmp_path / "8", engine=engine)
    found, expected = losses(ours), RECORDED["losses"]
    assert len(found) == len(expected) == 24
    assert np.abs(np.subtract(found, expected)).max() <= 5e-4
    wide = losses(trainer(tmp_path / "32", engine=engine, optim="adamw_torch"))
    assert np.abs(np.subtract(wide, expected)).max() > 5e-3


def test_the_same_tensors_have_8_bits(tmp_path: Path) -> None:
    ours = trainer(tmp_path, max_steps=1, optim="adamw_bnb_8bit")
    losses(ours)
    folder = tmp_path / "state"
    folder.mkdir()
    _C.save_training_state(ours.engine, str(folder))
    content = load_file(folder / "optimizer-rank-00000-of-00001.safetensors")
    shapes = ours.engine.parameter_shapes
    counts = {kind: sum(int(np.prod(shapes[n])) for n in RECORDED[f"in_{kind}_bits"]) for kind in (8, 32)}
    sizes = {suffix: sum(t.numel() for n, t in content.items() if n.endswith(f".{suffix}")) for suffix in (
        "state1", "state2", "exp_avg", "exp_avg_sq"
    )}  # fmt: skip
    assert sizes == {
        "state1": counts[8],
        "state2": counts[8],
        "exp_avg": counts[32],
        "exp_avg_sq": counts[32],
    }
    blocks = sum(-(-int(np.prod(shapes[name])) // 256) for name in RECORDED["in_8_bits"])
    assert sum(t.numel() for n, t in content.items() if n.endswith(".absmax1")) == blocks
