"""Evaluation loss with label smoothing, beside transformers' own LabelSmoother."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import fastsft
from fastsft.arguments import TrainingArguments
from fastsft.data.token_rows import TokenRows
from fastsft.trainer.evaluation import evaluation_loss
from padded_items import random_items
from tiny_models import make_engine, write_model


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_loss_is_that_of_transformers(tmp_path: Path, smoothing: float) -> None:
    from transformers import LlamaForCausalLM
    from transformers.trainer_pt_utils import LabelSmoother

    directory, items = write_model(tmp_path / "model", "untied"), random_items()
    args = TrainingArguments(
        output_dir=str(tmp_path), use_cpu=True, per_device_eval_batch_size=3, model_max_length=24,
        label_smoothing_factor=smoothing,
    )  # fmt: skip
    ours = evaluation_loss(make_engine(directory), TokenRows.from_dataset(items, 24), args)

    model, smoother, losses = (
        LlamaForCausalLM.from_pretrained(directory),
        LabelSmoother(epsilon=smoothing),
        [],
    )
    for begin in range(0, len(items), 3):
        rows = items[begin : begin + 3]
        batch = {name: torch.from_numpy(np.stack([row[name] for row in rows])) for name in rows[0]}
        with torch.no_grad():
            logits = model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        losses += [smoother({"logits": logits}, batch["labels"], shift_labels=True).item()] * len(rows)
    assert ours == pytest.approx(np.mean(losses), rel=1e-5)


def test_no_batch_has_no_loss(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """If `--dataloader_drop_last` leaves out all rows, there is no loss, as in transformers."""
    import transformers

    directory, items = write_model(tmp_path / "model", "untied"), random_items()
    model = transformers.LlamaForCausalLM.from_pretrained(directory)
    found = []
    for library in (fastsft, transformers):
        args = library.TrainingArguments(
            str(tmp_path), use_cpu=True, per_device_eval_batch_size=8, dataloader_drop_last=True,
            report_to=[], disable_tqdm=True,
        )  # fmt: skip
        trainer = library.Trainer(model, args, eval_dataset=items)
        found.append(set(trainer.evaluate()))
    assert found[0] == found[1] and "eval_loss" not in found[0]
    assert "expected at least 8 rows" in caplog.text and "got fewer" in caplog.text
