"""Parameters of a given model in the memory of others, which transformers trains as one, are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from altered_runs import load, our_losses, ours, their_losses


def tied_by_data(model: Any) -> None:
    model.lm_head.weight.data = model.model.embed_tokens.weight.data


def tied_by_a_parameter(model: Any) -> None:
    model.lm_head.weight = torch.nn.Parameter(model.model.embed_tokens.weight.data)


def overlapping(model: Any) -> None:
    first, second = model.model.layers[0], model.model.layers[1]
    width = first.input_layernorm.weight.numel()
    whole = torch.ones(2 * width)
    first.input_layernorm.weight.data = whole[:width]
    second.input_layernorm.weight.data = whole[width // 2 : width // 2 + width]


def within(model: Any) -> None:
    """A norm inside of a matrix, after a matrix that ends before it."""
    matrix = model.model.layers[0].mlp.up_proj.weight.data
    width = model.model.norm.weight.numel()
    model.model.norm.weight.data = matrix.view(-1)[width : 2 * width]


def expanded(model: Any) -> None:
    norm = model.model.layers[0].input_layernorm
    norm.weight = torch.nn.Parameter(torch.ones(1).expand(norm.weight.numel()))


CASES = [
    (
        tied_by_data,
        r"model\.lm_head\.weight shares its memory with model\.model\.embed_tokens\.weight.*tie_w",
    ),
    (tied_by_a_parameter, r"model\.lm_head\.weight shares its memory with model\.model\.embed_tokens"),
    (overlapping, r"layers\[1\]\.input_layernorm\.weight shares its memory with model\.model\.layers\[0\]"),
    (within, r"model\.model\.norm\.weight shares its memory with model\.model\.layers\[0\]\.mlp\.up_proj"),
    (expanded, r"input_layernorm\.weight has elements that share their memory .*tensor\.clone\(\)"),
]


@pytest.mark.parametrize(("change", "message"), CASES)
def test_refused_when_the_trainer_is_made(change: Any, message: str, tmp_path: Path) -> None:
    model = load(tmp_path)
    change(model)
    with pytest.raises(ValueError, match=message):
        ours(model, tmp_path)


@pytest.mark.parametrize(("change", "message"), CASES)
def test_refused_when_changed_afterwards(change: Any, message: str, tmp_path: Path) -> None:
    model = load(tmp_path)
    trainer = ours(model, tmp_path)
    change(model)
    with pytest.raises(ValueError, match=message):
        trainer.train()


def test_transformers_trains_one_memory(tmp_path: Path) -> None:
    """The reason for the refusal: the losses are not those of two weights."""
    shared, separate = load(tmp_path), load(tmp_path)
    tied_by_data(shared)
    with torch.no_grad():
        separate.lm_head.weight.copy_(separate.model.embed_tokens.weight)
    assert their_losses(shared, tmp_path) != pytest.approx(their_losses(separate, tmp_path), rel=1e-5)


def side_by_side(model: Any) -> None:
    """Norms next to each other in one memory, and a matrix that is stored transposed."""
    layer = model.model.layers[0]
    norms = layer.input_layernorm, layer.post_attention_layernorm
    whole = torch.ones(2 * norms[0].weight.numel())
    for norm, part in zip(norms, whole.chunk(2), strict=True):
        norm.weight.data = part
    layer.mlp.up_proj.weight.data = layer.mlp.up_proj.weight.data.t().contiguous().t()


def test_memory_of_its_own_is_trained(tmp_path: Path) -> None:
    first, second = load(tmp_path), load(tmp_path)
    side_by_side(first)
    side_by_side(second)
    assert our_losses(ours(second, tmp_path)) == pytest.approx(their_losses(first, tmp_path), rel=1e-5)
