"""A model of transformers that has no native engine, given to the Trainer itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fastsft.arguments import TrainingArguments
from fastsft.trainer import Trainer
from generic_engines import library_loss, library_model, random_rows

GPT2 = {
    "vocab_size": 96, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "n_embd": 32, "n_layer": 2,
    "n_head": 4, "n_positions": 64, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
}  # fmt: skip
ROWS = random_rows([9, 5, 12, 7])


def items() -> list[dict[str, Any]]:
    made = []
    for ids, (begin, end) in ROWS:
        labels = [-100] * begin + ids[begin:end]
        made.append({"input_ids": torch.tensor(ids), "labels": torch.tensor(labels)})
    return made


def arguments(folder: Path, **changes: Any) -> TrainingArguments:
    return TrainingArguments(
        output_dir=str(folder), use_cpu=True, per_device_train_batch_size=4, max_steps=3, learning_rate=1e-3,
        lr_scheduler_type="constant", logging_steps=1, save_strategy="no", report_to="none",
        plot_loss=False, **changes,
    )  # fmt: skip


SMALL = {"vocab_size": 96, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
BY_FORMAT: dict[str, dict[str, Any]] = {
    "xglm": {
        "d_model": 32, "ffn_dim": 64, "num_layers": 2, "attention_heads": 4, "max_position_embeddings": 64,
        "dropout": 0.0, "attention_dropout": 0.0,
    },
    "minimax": {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "num_local_experts": 4, "max_position_embeddings": 64,
        "layer_types": ["full_attention", "linear_attention"], "block_size": 8,
    },
    "ctrl": {
        "n_embd": 32, "dff": 64, "n_layer": 2, "n_head": 4, "n_positions": 64, "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
    },
}  # fmt: skip


@pytest.mark.variants("xglm", "minimax")
@pytest.mark.parametrize("family", BY_FORMAT)
def test_buffers_have_the_number_format_of_the_weights(tmp_path: Path, family: str) -> None:
    """Those of an object, which are float32, as those of a directory. The object's own stay."""
    model = library_model(family, **SMALL, **BY_FORMAT[family])
    model.save_pretrained(tmp_path / "model")
    kept = {name: buffer.clone() for name, buffer in model.named_buffers()}
    formats = {name: tensor.dtype for name, tensor in model.state_dict().items()}
    curves = []
    for given in (model, str(tmp_path / "model")):
        trainer = Trainer(model=given, args=arguments(tmp_path, bf16=True), train_dataset=items())
        trainer.train()
        curves.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert curves[0] == curves[1]
    assert {name: tensor.dtype for name, tensor in model.state_dict().items()} == formats
    assert all(torch.equal(buffer, kept[name]) for name, buffer in model.named_buffers())


def by_hand(model: Any) -> list[float]:
    """The losses of three steps of torch's AdamW."""
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0), []
    targets = sum(end - begin for _, (begin, end) in ROWS)
    for _ in range(3):
        loss = library_loss(model, ROWS, 1 / targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def test_it_is_trained_and_has_the_weights_afterwards(tmp_path: Path) -> None:
    model, other = (library_model("gpt2", **GPT2).train() for _ in range(2))
    trainer = Trainer(model=model, args=arguments(tmp_path), train_dataset=items())
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses == pytest.approx(by_hand(other), abs=1e-5)
    expected = other.state_dict()
    for name, value in model.state_dict().items():
        assert (value - expected[name]).norm() < 1e-4 * max(expected[name].norm().item(), 1.0), name


def test_what_a_script_changed_in_it_counts(tmp_path: Path) -> None:
    """A hook on a block, and a replaced method: the engine computes with a copy of the modules."""
    model, other = (library_model("gpt2", **GPT2).train() for _ in range(2))
    for each in (model, other):
        each.transformer.h[0].mlp.register_forward_hook(lambda module, inputs, output: output * 0.5)
    trainer = Trainer(model=model, args=arguments(tmp_path), train_dataset=items())
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses == pytest.approx(by_hand(other), abs=1e-5)


@pytest.mark.parametrize(
    ("learned", "message"),
    [
        (False, "pad rows on the right: masked tokens at the start of a row"),
        (True, "the row begins with masked tokens"),
    ],
)
def test_masked_tokens_at_the_start_are_refused(learned: bool, message: str, tmp_path: Path) -> None:
    """Of a model with a table of positions the first token would be at another place."""
    rows = items()
    for item in rows:
        item["attention_mask"] = torch.ones_like(item["input_ids"])
        item["attention_mask"][:2] = 0
        item["labels"] = item["input_ids"].clone()
        if not learned:
            item["labels"][:3] = -100
    with pytest.raises(ValueError, match=message):
        Trainer(model=library_model("gpt2", **GPT2), args=arguments(tmp_path), train_dataset=rows)


def test_frozen_parameters_are_refused(tmp_path: Path) -> None:
    model = library_model("gpt2", **GPT2)
    model.transformer.wpe.weight.requires_grad_(False)
    with pytest.raises(ValueError, match=r"transformer.wpe.weight is frozen \(requires_grad False\)"):
        Trainer(model=model, args=arguments(tmp_path), train_dataset=items())


def test_predictions_and_evaluation(tmp_path: Path) -> None:
    model = library_model("gpt2", **GPT2).eval()
    trainer = Trainer(
        model=model, args=arguments(tmp_path, per_device_eval_batch_size=4), eval_dataset=items()
    )
    predictions = trainer.predict(items()).predictions
    with torch.no_grad():
        for row, (ids, _) in enumerate(ROWS):
            expected = model(torch.tensor([ids])).logits[0].numpy()
            assert np.allclose(predictions[row, : len(ids)], expected, atol=1e-5)
        targets = sum(end - begin for _, (begin, end) in ROWS)
        loss = library_loss(model, ROWS, 1 / targets).item()
    assert trainer.evaluate()["eval_loss"] == pytest.approx(loss, abs=1e-5)
