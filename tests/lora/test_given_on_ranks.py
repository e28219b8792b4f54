"""A PeftModel on two ranks, which drew other adapters: transformers' DDP run of rank 0's; predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel

from adapted_runs import train_on_ranks, trained, wrapped
from ranks import run_ranks
from trainer_pairs import Plain, curve, model, theirs, unrounded


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """transformers' run on one rank with the global batch of two; the trainer and its predictions."""
    with pytest.MonkeyPatch.context() as patch:
        unrounded(patch)
        trainer = theirs(tmp_path_factory.mktemp("theirs"), Plain(), module=wrapped())
        trainer.train()
    return trainer, trainer.predict(Plain(4))


@pytest.mark.parametrize("fsdp", ["", "full_shard"])
def test_two_ranks_train_the_adapters_of_rank_0(judge: Any, tmp_path: Path, fsdp: str) -> None:
    trainer, expected = judge
    (losses, adapters, predicted), (other_losses, other, _) = run_ranks(
        2, train_on_ranks, tmp_path, fsdp, launched=True
    )
    assert losses == other_losses == pytest.approx(curve(trainer), abs=1e-5, rel=0)
    for name, value in trained(trainer.model).items():
        assert (adapters[name] - value).norm() <= 1e-4 * value.norm(), name
        assert torch.equal(other[name], adapters[name]), name
    for row, item in enumerate(Plain(4)):
        length = int(item["attention_mask"].sum())
        wanted = expected.predictions[row, :length]
        assert np.linalg.norm(predicted[row, :length] - wanted) <= 1e-4 * np.linalg.norm(wanted)
    saved = trained(PeftModel.from_pretrained(model(), tmp_path, is_trainable=True))
    assert all(torch.equal(saved[name], value) for name, value in adapters.items())
