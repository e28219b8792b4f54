"""Adapters of the engine; peft and autograd judge them."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from adapted_models import LENGTHS
from engines import train_step
from fastsft import _C
from peft_pairs import CASES, FUSED, LINEAR, SIZES, PeftPair, adapted_model, random_peft
from tolerances import assert_close

MIXED = "llama, all linears, rsLoRA, ranks that differ"


@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradients(case: str) -> None:
    pair = PeftPair(case)
    expected_loss, expected = pair.expected()
    loss, gradients = pair.gradients()
    assert loss == pytest.approx(expected_loss, abs=1e-5)
    assert gradients.keys() == expected.keys() == pair.engine.trained_shapes.keys()
    for name, gradient in expected.items():
        assert gradient.norm() > 0, name
        assert_close(gradients[name], gradient, "model", name)


@pytest.mark.parametrize("case", CASES)
def test_logits(case: str) -> None:
    pair = PeftPair(case)
    logits = pair.engine.logits(torch.cat(pair.ids).numpy(), np.array(LENGTHS))
    for ids, (begin, end) in zip(pair.ids, pairwise([0, *np.cumsum(LENGTHS)]), strict=True):
        with torch.no_grad():
            expected = pair.model(input_ids=ids[None]).logits[0]
        assert_close(logits[begin:end], expected, "model", f"logits of {len(ids)} tokens")
    rows = np.arange(len(LENGTHS))
    assert pair.engine.loss(pair.dataset, rows, pair.weights) == pytest.approx(
        pair.expected_loss().item(), abs=1e-5
    )


@pytest.mark.parametrize("case", CASES)
def test_recompute_changes_no_bit(case: str) -> None:
    subject = adapted_model(random_peft(CASES[case]))
    loss, gradients = subject.gradients(subject.engine(recompute="none"))
    for recompute in _C.recompute_policies()[1:]:
        again, others = subject.gradients(subject.engine(recompute=recompute))
        assert again == loss
        for name, gradient in gradients.items():
            assert torch.equal(others[name], gradient), f"{name}, {recompute}"


class GivenMask(torch.nn.Module):
    """Dropout with the engine's mask for the conversation that runs."""

    def __init__(self, number: int, probability: float) -> None:
        super().__init__()
        self.number, self.probability, self.keys = number, probability, torch.empty(0, dtype=torch.int32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ones = torch.ones_like(x[0].detach())
        mask = torch.empty_like(ones)
        torch.ops.fastsft.dropout(ones, self.keys, self.probability, 11, self.number, mask, 0.0)
        return x * mask


def mixed(value: int) -> int:
    """splitmix64."""
    value = (value + 0x9E3779B97F4A7C15) % 2**64
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB % 2**64
    return value ^ (value >> 31)


def token_keys(row: int, length: int) -> torch.Tensor:
    words = [mixed((mixed(row) + i) % 2**64) >> 32 for i in range(length)]
    return torch.tensor(np.array(words, dtype=np.uint32).view(np.int32))


def use_masks(pair: PeftPair, probability: float) -> None:
    """peft's model drops what the engine drops; linears are counted within their layer."""
    masks: list[GivenMask] = []
    linears = FUSED if pair.model.config.model_type == "phi3" else LINEAR

    def prepare(_model: torch.nn.Module, _args: Any, kwargs: dict[str, torch.Tensor]) -> None:
        for mask in masks:
            mask.keys = token_keys(pair.row, kwargs["input_ids"].shape[1])

    for name, module in pair.model.named_modules():
        if hasattr(module, "lora_dropout"):
            layer = next((int(part) for part in name.split(".") if part.isdigit()), 0)
            number = [*linears, "lm_head"].index(name.rsplit(".", 1)[-1])
            masks.append(GivenMask(8 * layer + number, probability))
            module.lora_dropout["default"] = masks[-1]
    pair.model.register_forward_pre_hook(prepare, with_kwargs=True)


@pytest.mark.parametrize("case", [*list(CASES)[:9], "phi3, fused projections"])
def test_dropout(case: str) -> None:
    pair = PeftPair(case, adapter_dropout=0.3)
    plain_loss, _ = pair.gradients()
    rows = np.arange(len(LENGTHS))
    loss, gradients = pair.gradients(dropout_seed=11)
    assert loss != plain_loss
    use_masks(pair, 0.3)
    expected_loss, expected = pair.expected()
    assert loss == pytest.approx(expected_loss, abs=1e-5)
    for name, gradient in expected.items():
        assert_close(gradients[name], gradient, "model", name)
    again, others = pair.gradients(dropout_seed=11)
    assert again == loss and all(torch.equal(others[name], gradients[name]) for name in gradients)
    assert pair.gradients(dropout_seed=12)[0] != loss
    assert pair.engine.loss(pair.dataset, rows, pair.weights) == pytest.approx(plain_loss, abs=1e-6)


def test_dropout_is_the_same_in_any_order_under_each_policy() -> None:
    pair, rows = PeftPair(MIXED, adapter_dropout=0.3), np.arange(len(LENGTHS))
    loss, gradients = pair.gradients(dropout_seed=1)
    for recompute in _C.recompute_policies():
        other = pair.subject.engine(adapter_dropout=0.3, recompute=recompute)
        turned, weights = rows[::-1].copy(), pair.weights[::-1].copy()
        for by_length in (False, True):
            other.use_cudnn(by_length)  # conversations are in descending order of length
            again, others = other.gradients(pair.dataset, turned, weights, dropout_seed=1)
            assert again == pytest.approx(loss, abs=1e-6)
            for name, gradient in gradients.items():
                assert_close(others[name], gradient, "model", name)


def test_what_is_frozen_stays() -> None:
    pair = PeftPair(MIXED)
    before = pair.engine.named_parameters()
    rows = np.arange(len(LENGTHS))
    train_step(pair.engine, pair.dataset, [rows], [pair.weights], learning_rate=0.1, weight_decay=0.1)
    for name, value in pair.engine.named_parameters().items():
        assert torch.equal(value, before[name]) == (name not in pair.engine.trained_shapes), name
    held = pair.engine.memory()
    trained = 4 * sum(pair.engine.unit_sizes)
    assert trained <= held["gradients"] < 1.2 * trained and 2 * trained <= held["optimizer"] < 2.4 * trained


def options(**changes: object) -> _C.AdapterOptions:
    given = {"module": "model.layers.0.self_attn.q_proj", "rank": 2, "scale": 1.0, **changes}
    return _C.AdapterOptions(linears=[_C.AdapterLinear(given.pop("module"), **given)])


Q_PROJ = "model.layers.0.self_attn.q_proj"
REFUSED = {
    'no linear "model.layers.9.mlp.up_proj"': options(module="model.layers.9.mlp.up_proj"),
    "is an embedding": options(module="model.embed_tokens"),
    "rank is 0": options(rank=0),
    "scale is inf": options(scale=float("inf")),
    "is given twice": _C.AdapterOptions(linears=[_C.AdapterLinear(Q_PROJ, rank=1, scale=1.0)] * 2),
    "dropout is 1": _C.AdapterOptions(linears=[_C.AdapterLinear(Q_PROJ, rank=1, scale=1.0)], dropout=1.0),
    'no tensor "lm_head.bias"': _C.AdapterOptions(trained=["lm_head.bias"]),
    "train all of them or none": _C.AdapterOptions(trained=[f"{Q_PROJ}.weight"]),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_refused(message: str) -> None:
    config_json = json.dumps({"model_type": "llama", **SIZES})
    with pytest.raises(ValueError, match=message):
        _C.Engine(config_json, adapters=REFUSED[message])
    with pytest.raises(ValueError, match=message):
        _C.plan_memory(config_json, adapters=REFUSED[message])


def test_options_are_values() -> None:
    assert options() == options() and options(rank=3) != options()
    assert options() and not _C.AdapterOptions()
    assert repr(options()) == (
        f"AdapterOptions(linears=[AdapterLinear(module='{Q_PROJ}', rank=2, scale=1.0)], "
        "dropout=0.0, trained=[])"
    )
