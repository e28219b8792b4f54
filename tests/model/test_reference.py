"""The judge is judged: by transformers' recorded results, by torch and by finite differences."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import reference
from tolerances import TOLERANCES, assert_close, relative_error

FOLDER = Path(__file__).parents[1] / "golden" / "models"
MODELS = sorted(path.parent.name for path in FOLDER.glob("*/config.json"))


def unpadded(folder: Path) -> tuple[torch.Tensor, torch.Tensor, list[int], torch.Tensor]:
    inputs = load_file(folder / "inputs.safetensors")
    mask = inputs["attention_mask"].bool()
    cu_seqlens = [0, *mask.sum(1).cumsum(0).tolist()]
    return inputs["input_ids"][mask], inputs["labels"][mask], cu_seqlens, mask


@pytest.mark.parametrize("name", MODELS)
def test_decoders_equal_transformers(golden: Path, name: str) -> None:
    folder = golden / "models" / name
    summary = json.loads((folder / "summary.json").read_text())
    weights = {k: v.requires_grad_() for k, v in load_file(folder / "model.safetensors").items()}
    model = reference.Decoder(json.loads((folder / "config.json").read_text()), weights)
    ids, labels, cu_seqlens, mask = unpadded(folder)
    logits = model.logits(ids, cu_seqlens)
    assert_close(logits, load_file(folder / "logits.safetensors")["logits"][mask], "model", "logits")
    loss = model.loss(ids, labels, cu_seqlens, [1 / summary["label_tokens"]] * (len(cu_seqlens) - 1))
    assert loss.item() == pytest.approx(summary["loss"], abs=TOLERANCES[torch.float32].loss)
    loss.backward()
    for key, gradient in load_file(folder / "grads.safetensors").items():
        assert_close(weights[key].grad, gradient, "model", key)


def test_label_smoothing_equals_torch() -> None:
    logits, targets = torch.randn(9, 17, dtype=torch.float64), torch.randint(0, 17, (9,))
    targets[4] = reference.IGNORE
    ours = reference.cross_entropy(logits, targets, torch.ones(9), label_smoothing=0.1)
    theirs = torch.nn.functional.cross_entropy(logits, targets, label_smoothing=0.1, reduction="sum")
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_adamw_equals_torch(weight_decay: float) -> None:
    ours = torch.randn(33, dtype=torch.float64)
    theirs = torch.nn.Parameter(ours.clone())
    betas = {"beta1": 0.8, "beta2": 0.97}
    optimizer = torch.optim.AdamW([theirs], lr=0.01, betas=(0.8, 0.97), eps=1e-6, weight_decay=weight_decay)
    moments = torch.zeros_like(ours), torch.zeros_like(ours)
    for step in range(1, 6):
        theirs.grad = torch.randn_like(ours)
        ours, *moments = reference.adamw(
            ours,
            theirs.grad,
            *moments,
            step=step,
            learning_rate=0.01,
            eps=1e-6,
            weight_decay=weight_decay,
            **betas,
        )
        optimizer.step()
        torch.testing.assert_close(ours, theirs.detach())


def test_clip_vector_of_the_specification() -> None:
    gradient = torch.tensor([3.0, 4.0, 0.0])
    factor = reference.clip_factor(reference.norm_squared([gradient]).sqrt().item(), 1.0)
    torch.testing.assert_close(
        gradient * factor, torch.tensor([0.59999988, 0.79999984, 0.0]), atol=1e-7, rtol=0
    )


@pytest.mark.parametrize("window", [None, 3])
def test_nothing_crosses_examples_or_looks_ahead(window: int | None) -> None:
    q, k, v = (torch.randn(9, heads, 4, dtype=torch.float64) for heads in (4, 2, 2))
    whole = reference.attention(q, k, v, [0, 5, 9], window=window)
    alone = reference.attention(q[5:], k[5:], v[5:], [0, 4], window=window)
    torch.testing.assert_close(whole[5:], alone)
    changed = v.clone()
    changed[3] += 1
    moved = (reference.attention(q, k, changed, [0, 5, 9], window=window) != whole).flatten(1).any(1)
    assert moved.tolist() == [False] * 3 + [True] * 2 + [False] * 4


def test_window_cuts_what_is_further_back() -> None:
    q, k, v = (torch.randn(6, 2, 4, dtype=torch.float64) for _ in range(3))
    changed = v.clone()
    changed[0] += 1
    moved = reference.attention(q, k, v, [0, 6], window=2) != reference.attention(
        q, k, changed, [0, 6], window=2
    )
    assert moved.flatten(1).any(1).tolist() == [True, True, False, False, False, False]


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def test_gradients_equal_finite_differences() -> None:
    check = torch.autograd.gradcheck
    cos, sin = reference.rope_tables(torch.arange(5), reference.rope_inverse_frequencies(4))
    targets = torch.tensor([1, -100, 0, 2, 6])
    assert check(lambda x, w: reference.rms_norm(x, w, 1e-5), (leaf(3, 8), leaf(8)))
    assert check(lambda x: reference.rope(x, cos, sin), (leaf(5, 2, 4),))
    assert check(reference.swiglu, (leaf(3, 8),))
    assert check(
        lambda q, k, v: reference.attention(q, k, v, [0, 2, 5]), (leaf(5, 4, 4), leaf(5, 2, 4), leaf(5, 2, 4))
    )
    fixed = torch.rand(5)
    assert check(
        lambda h, w: reference.linear_cross_entropy(h, w, targets, fixed, 0.1), (leaf(5, 4), leaf(7, 4))
    )
    assert check(lambda w: reference.embedding(w, torch.tensor([2, 0, 2])), (leaf(4, 3),))


def test_relative_error_never_lets_nan_pass() -> None:
    good = torch.ones(3)
    assert relative_error(good, good) == 0
    for bad in (torch.tensor([1.0, float("nan"), 1.0]), torch.tensor([1.0, 1.1, 1.0])):
        with pytest.raises(AssertionError, match="relative error"):
            assert_close(bad, good)
    with pytest.raises(AssertionError, match="shape"):
        assert_close(torch.ones(2), good)
