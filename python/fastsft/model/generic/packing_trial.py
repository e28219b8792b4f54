"""Tries on a small model with the same class whether rows may be packed, and whether its loss is the usual
loss.

A packed row's logits are compared with each conversation's own. To find models that count
positions over the whole row, ranges over the row's length are multiplied by a large number. This must not
change the logits.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from fastsft.model.generic.empty_model import FAULTS, first_line
from fastsft.model.generic.length_reads import CodeLine, unseen_length
from fastsft.model.generic.packing import IMPLEMENTATIONS, NotPackedError, PackedBatch, packed
from fastsft.model.generic.small_model import Make, small_model
from fastsft.runtime.messages import warn_once

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Each length is beyond all length limits of a small model, and their sum is beyond its positions.
_LENGTHS = (19, 11, 26)
_MOST_PARAMETERS = 20_000_000
_TOLERANCE = 1e-5
_SHORT = 7  # a row length at which a single visible token changes the logits
# Tolerance relative to the largest logit. A visible token changes more (3e-4 through BERT's 12 layers).
_CAUSAL = 2e-5
_RANGES = (torch.arange, torch.cumsum, torch.Tensor.cumsum)
_STRIDE = 10_007  # larger than any size in a configuration
_LENGTH, _MASKED = 9, 2
_TOKENS_OF_STEP = 11  # the step's target count; larger than the micro-batch's
_LOSS_TOLERANCE = 2e-5
_APART = 2e-4  # relative to the largest logit; logits at different positions differ by more


class NotCausalError(ValueError):
    """Error for a model whose tokens attend to later tokens."""


class KeptStateError(ValueError):
    """Error for a model that keeps state from one call for the next."""


class OtherLossError(ValueError):
    """Error for a model whose own loss is not the next-token loss."""


def why_padded(make: Make, model: PreTrainedModel) -> str | None:
    """Return the reason why conversations cannot be packed into a row; None if they can.

    make: makes a model with the same class from a configuration, with parameters on the meta device.
    NotCausalError if tokens attend to later tokens. KeptStateError if the model keeps state between calls.
    OtherLossError if the model's loss is not the next-token loss.
    """
    implementation = model.config._attn_implementation
    if implementation not in IMPLEMENTATIONS:
        return f"its attention is {implementation}"
    try:
        with torch.random.fork_rng(devices=[]):
            small = with_values(small_model(make, model))
            small.config._attn_implementation = implementation
            _check_no_state(small)
            _check_causal(small)
            check_loss(small)
            return _why_not_packed(small)
    except (KeptStateError, NotCausalError, OtherLossError):
        raise
    except NotPackedError as error:
        return str(error)
    except (NotImplementedError, *FAULTS) as error:
        return f"a small model of it does not run: {first_line(error)}"


def with_values(model: PreTrainedModel) -> PreTrainedModel:
    """Give `model` random weights on the CPU, large enough that tokens have different logits."""
    count = sum(parameter.numel() for parameter in model.parameters())
    if count > _MOST_PARAMETERS:
        raise NotPackedError(f"a small model of it has {count:,} parameters still")
    torch.manual_seed(0)
    values: dict[int, torch.nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                if id(parameter) not in values:
                    values[id(parameter)] = torch.nn.Parameter(_random(parameter.shape))
                module._parameters[name] = values[id(parameter)]
    model.eval()
    return model


def _random(shape: torch.Size) -> torch.Tensor:
    if len(shape) < 2:
        return 1 + 0.1 * torch.randn(shape)
    return torch.randn(shape) / math.sqrt(shape[-1])


def _check_no_state(model: PreTrainedModel) -> None:
    vocabulary = int(model.config.get_text_config().vocab_size)
    with torch.enable_grad():
        model(input_ids=torch.randint(1, vocabulary, (1, _SHORT)), use_cache=False)
    for path, module in model.named_modules():
        for name, value in {**vars(module), **module._buffers}.items():
            if isinstance(value, torch.Tensor) and value.grad_fn is not None:
                raise KeptStateError(
                    f"config.json: {type(model).__name__} keeps the state of a call for the next one "
                    f"({path}.{name}), so that rows would go on from each other; fastsft trains each row "
                    "alone: name a model without such a state, or train with transformers' Trainer"
                )


def _check_causal(model: PreTrainedModel) -> None:
    vocabulary = int(model.config.get_text_config().vocab_size)
    first = torch.randint(1, vocabulary, (1, _SHORT))
    other = first.clone()
    other[0, -1] = other[0, -1] % (vocabulary - 1) + 1
    with torch.no_grad():
        before, after = (model(input_ids=ids, use_cache=False).logits[:, :-1] for ids in (first, other))
    if not bool(((before - after).abs() <= _CAUSAL * before.abs().max()).all()):
        raise NotCausalError(
            f"config.json: the tokens of {type(model).__name__} see those that come after them, so that each "
            "would be learned from itself; name a causal language model (of BERT's kind: one with "
            '"is_decoder": true)'
        )


def _why_not_packed(model: PreTrainedModel) -> str | None:
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return "it takes no position_ids"
    ranges = MultipliedRanges(sum(_LENGTHS))
    for masked in (None, 3):
        row = PackedBatch.of(_make_batch(int(model.config.get_text_config().vocab_size), masked))
        with torch.no_grad():
            expected = _logits_alone(model, row)
            actual = _logits_packed(model, row, ranges)
        scale = expected.abs().max()
        if not bool(scale > 0) or not bool(((actual - expected).abs() <= _TOLERANCE * scale).all()):
            return "conversations in one row would see each other"
    return unseen_length(model, ranges.lines, sum(_LENGTHS))


def _logits_packed(model: PreTrainedModel, row: PackedBatch, ranges: MultipliedRanges) -> torch.Tensor:
    with packed(model, row):
        try:
            with ranges:
                logits: torch.Tensor = model(**row.inputs(), use_cache=False).logits
        except (IndexError, RuntimeError):  # the multiplied positions, or another error
            model(**row.inputs(), use_cache=False)
            raise NotPackedError("it computes with positions in the whole row") from None
    return logits[0]


def _logits_alone(model: PreTrainedModel, row: PackedBatch) -> torch.Tensor:
    parts = zip(
        torch.split(row.input_ids, row.lengths, dim=1),
        torch.split(row.attention_mask, row.lengths, dim=1),
        strict=True,
    )
    return torch.cat(
        [model(input_ids=ids, attention_mask=mask, use_cache=False).logits[0] for ids, mask in parts]
    )


@dataclass(frozen=True)
class _Batch:
    """A trial micro-batch's tokens (see Rows)."""

    input_ids: torch.Tensor
    cu_seqlens: torch.Tensor
    boundaries: list[int]
    is_key: torch.Tensor
    max_seqlen: int


def _make_batch(vocabulary: int, masked: int | None) -> _Batch:
    """Make three random conversations.

    masked: index of a token to which no token attends; None for no masked token.
    """
    ends = torch.tensor([0, *_LENGTHS]).cumsum(0).int()
    ids = torch.randint(0, vocabulary, (int(ends[-1]),))
    is_key = torch.ones(0 if masked is None else len(ids), dtype=torch.uint8)
    is_key[masked:][:1] = 0
    return _Batch(
        input_ids=ids, cu_seqlens=ends, boundaries=ends.tolist(), is_key=is_key, max_seqlen=max(_LENGTHS)
    )


class MultipliedRanges(TorchFunctionMode):
    """Multiplies each range over `tokens` numbers, so that results that depend on the range change or fail.

    The large numbers reveal even limits and windows of several thousand tokens in a trial with a short row.
    """

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self._tokens = tokens
        self.lines: set[CodeLine] = set()  # code lines whose ranges were multiplied

    def __torch_function__(
        self, function: Any, types: Any, given: tuple[Any, ...] = (), options: Mapping[str, Any] | None = None
    ) -> Any:
        result = function(*given, **(options or {}))
        if function in _RANGES and result.shape and abs(result.shape[-1] - self._tokens) <= 1:
            result = result * _STRIDE
            frame = sys._getframe(1)
            self.lines.add((frame.f_code.co_filename, frame.f_lineno))
        return result


def check_loss(model: PreTrainedModel) -> None:
    """Raise OtherLossError if transformers' Trainer would train `model` with another loss.

    If the model's loss ignores the step's target count, a notice describes how transformers' Trainer combines
    the micro-batches' means.
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
        f"{kind} has no loss over all tokens of a step: transformers' Trainer {_trainers_mean(model)}; "
        "fastsft divides by the tokens of the step"
    )


def _trainers_mean(model: PreTrainedModel) -> str:
    """Describe how transformers' Trainer averages the loss, by its rule for model_accepts_loss_kwargs."""
    parameters = inspect.signature(model.forward).parameters.values()
    takes_any = any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters)
    if getattr(model, "accepts_loss_kwargs", takes_any):
        return (
            "adds up the means of a step's micro-batches (of all ranks, with "
            "--average_tokens_across_devices True): its losses and gradients are as many times as large"
        )
    return "trains with the mean of the means of micro-batches (as --loss_norm micro_batch does)"


def _own_loss(model: PreTrainedModel, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor | None:
    """Return the model's loss, with num_items_in_batch if the model accepts it; None if there is no loss."""
    count = torch.tensor(_TOKENS_OF_STEP)
    for more in ({"num_items_in_batch": count}, {}):
        try:
            loss: torch.Tensor | None = model(input_ids=ids, labels=labels, use_cache=False, **more).loss
        except FAULTS:  # the model does not accept the argument
            continue
        return loss
    return None


def _equal(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    return bool((actual - expected).abs() <= _LOSS_TOLERANCE * expected.abs())
