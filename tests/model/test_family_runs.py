"""A short run of every kind of model: trained, resumed, saved, opened by transformers, and answering."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fastsft import _C
from fastsft.arguments import TrainingArguments
from fastsft.model import CausalLM
from fastsft.model.generation import Continuation
from fastsft.trainer import Trainer
from native_families import CONFIGS
from saving_run import Conversations
from tiny_models import weights_of, write_model


def trainer_of(source: Path, output: Path, **options: Any) -> Trainer:
    flags = {
        "output_dir": str(output), "use_cpu": True, "max_steps": 4, "learning_rate": 0.01, "save_steps": 2,
        "save_strategy": "steps", "model_max_length": 32, "disable_tqdm": True, **options,
    }  # fmt: skip
    model = CausalLM.from_pretrained(str(source))
    return Trainer(model, args=TrainingArguments(**flags), train_dataset=Conversations())


@pytest.mark.covering
@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bf16"])
def test_a_run_and_its_files(tmp_path: Path, kind: str, bf16: bool) -> None:
    from transformers import AutoModelForCausalLM

    source = write_model(tmp_path / "in", kind)
    whole = trainer_of(source, tmp_path / "whole", bf16=bf16)
    whole.train()
    whole.save_model()

    again = trainer_of(source, tmp_path / "again", bf16=bf16)
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    expected = whole.engine.named_parameters()
    assert all(torch.equal(again.engine.named_parameters()[name], value) for name, value in expected.items())
    assert not all(torch.equal(weights_of(source)[name], value) for name, value in expected.items())

    config = json.loads((tmp_path / "whole" / "config.json").read_text())
    before = json.loads((source / "config.json").read_text())
    assert {key: config[key] for key in before if key != "dtype"} == {
        key: value for key, value in before.items() if key != "dtype"
    }
    # eager: sdpa leaves out Gemma 2's bound of scores.
    opened, report = AutoModelForCausalLM.from_pretrained(
        tmp_path / "whole", output_loading_info=True, attn_implementation="eager"
    )
    assert not any(report.values()), report
    if not bf16:
        ids = opened.generate(torch.tensor([[1, 5, 9]]), max_new_tokens=8, do_sample=False, eos_token_id=None)
        decoder = _C.TextDecoder((tmp_path / "whole" / "config.json").read_text())
        decoder.load(str(tmp_path / "whole"))
        assert list(Continuation(decoder).tokens([1, 5, 9], max_new_tokens=8)) == ids[0, 3:].tolist()
