"""A trial on a small model: its own loss next to the mean of the shifted labels' losses."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from fastsft.model.generic.empty_model import FAULTS
from fastsft.runtime.messages import warn_once

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_LENGTH, _MASKED = 9, 2
_TOKENS_OF_STEP = 11  # more than the micro-batch has
_TOLERANCE = 2e-5
_APART = 2e-4  # of the largest logit; positions of a row differ by more


class OtherLossError(ValueError):
    """A model whose own loss is not that of the next token."""


def check_loss(model: PreTrainedModel) -> None:
    """OtherLossError for a model that transformers' Trainer would train for something else.

    A line where the model's loss does not know the tokens of the step: the Trainer adds up means of
    micro-batches there, or takes the mean of them.
    """
    vocabulary = int(model.config.get_text_config().vocab_size)
    ids = torch.randint(1, vocabulary, (1, _LENGTH))
    labels = ids.clone()
    labels[:, :_MASKED] = -100
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits
        own = _own_loss(model, ids, labels)
    if own is None:
        return
    kind = type(model).__name__
    if bool((logits - logits[:, :1]).abs().max() <= _APART * logits.abs().max()):
        raise OtherLossError(
            f"config.json: {kind} with random weights predicts the same after every token of a trial row, so "
            "that its loss does not tell which token each label is learned from; name another class, or "
            "train with transformers' Trainer"
        )
    count = _LENGTH - _MASKED
    total = functional.cross_entropy(logits[0, :-1].float(), labels[0, 1:], reduction="sum")
    if _equal(own * _TOKENS_OF_STEP, total):
        return
    if not _equal(own * count, total):
        raise OtherLossError(
            f"config.json: {kind} has a loss of its own: expected that of each label from the tokens before "
            f"it ({float(total) / count:.4g} on a trial row), got {float(own):.4g}; fastsft trains causal "
            "language models: name another class of model, or train with transformers' Trainer"
        )
    warn_once(
        f"{kind} has no loss over all tokens of a step: transformers' Trainer {_of_trainer(model)}; fastsft "
        "divides by the tokens of the step"
    )


def _of_trainer(model: PreTrainedModel) -> str:
    """Name the means that transformers' Trainer takes, by its rule model_accepts_loss_kwargs."""
    parameters = inspect.signature(model.forward).parameters.values()
    takes_any = any(each.kind == each.VAR_KEYWORD for each in parameters)
    if getattr(model, "accepts_loss_kwargs", takes_any):
        return (
            "adds up the means of a step's micro-batches (of all ranks, with "
            "--average_tokens_across_devices True): its losses and gradients are as many times as large"
        )
    return "trains with the mean of the means of micro-batches (as --loss_norm micro_batch does)"


def _own_loss(model: PreTrainedModel, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor | None:
    """With the tokens of the step where it takes them; None for a model without a loss."""
    count = torch.tensor(_TOKENS_OF_STEP)
    for more in ({"num_items_in_batch": count}, {}):
        try:
            loss: torch.Tensor | None = model(input_ids=ids, labels=labels, use_cache=False, **more).loss
        except FAULTS:  # not an argument of this class
            continue
        return loss
    return None


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool((one - other).abs() <= _TOLERANCE * other.abs())
