"""Whole runs with every optimizer next to transformers' Trainer with the same --optim."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from trainer_pairs import Plain, losses, model, ours, theirs, unrounded

# A rate with which the tiny model learns; steps that clip, decay of matrices, a warm-up.
RATES = {"sgd": 0.5, "adafactor": 0.01}
FLAGS: dict[str, Any] = {
    "num_train_epochs": 3, "weight_decay": 0.1, "max_grad_norm": 0.7, "lr_scheduler_type": "cosine",
    "warmup_steps": 2, "gradient_accumulation_steps": 2,
}  # fmt: skip


@pytest.mark.parametrize("optim", RATES)
def test_losses_and_weights_are_those_of_transformers(
    optim: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unrounded(monkeypatch)
    flags = {**FLAGS, "optim": optim, "learning_rate": RATES[optim]}
    original, native = theirs(tmp_path / "a", Plain(24), **flags), ours(tmp_path / "b", Plain(24), **flags)
    expected, found = losses(original), losses(native)
    assert len(found) == len(expected) == 18
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    assert expected[-1] < expected[0] - 0.1, "it learned nothing"
    weights = native.model.state_dict()
    for name, tensor in original.model.state_dict().items():
        torch.testing.assert_close(weights[name].cpu(), tensor, rtol=1e-3, atol=2e-5)


def test_the_old_flag_is_adafactor(tmp_path: Path) -> None:
    native = ours(tmp_path, Plain(8), adafactor=True, max_steps=1)
    assert native.args.optim == "adafactor"
    losses(native)
    assert native.engine.memory()["optimizer"] > 0


@pytest.mark.parametrize("optim", RATES)
def test_the_generic_engine_trains_alike(optim: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unrounded(monkeypatch)
    flags = {**FLAGS, "optim": optim, "learning_rate": RATES[optim], "num_train_epochs": 1}
    expected = losses(theirs(tmp_path / "a", Plain(24), **flags))
    found = losses(ours(tmp_path / "b", Plain(24), engine="generic", **flags))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("optim", RATES)
def test_a_model_without_kernels_is_trained_alike(
    optim: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GPT-2: its matrices are [in, out], and its positions are a table.

    The gradient of its key biases is rounding alone, and Adafactor divides it by its own size. It counts in
    the root mean square of the bias that queries, keys and values have together.
    """
    unrounded(monkeypatch)

    def module() -> torch.nn.Module:
        torch.manual_seed(0)
        config = transformers.GPT2Config(
            vocab_size=64, n_positions=64, n_embd=16, n_layer=1, n_head=2, initializer_range=0.3,
            pad_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        )  # fmt: skip
        config.use_cache = False
        return transformers.GPT2LMHeadModel(config)

    flags = {**FLAGS, "optim": optim, "learning_rate": RATES[optim] / 5, "num_train_epochs": 1}
    expected = losses(theirs(tmp_path / "a", Plain(24), module=module(), **flags))
    found = losses(ours(tmp_path / "b", Plain(24), module=module(), **flags))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 if optim == "adafactor" else 1e-5)


def test_the_model_is_the_same_for_both() -> None:
    assert all(torch.equal(a, b) for a, b in zip(model().parameters(), model().parameters(), strict=True))
