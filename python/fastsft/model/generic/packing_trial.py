"""A trial on a small model: conversations in one row next to each of them alone."""

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
from fastsft.model.generic.length_reads import Place, unseen_length
from fastsft.model.generic.packing import IMPLEMENTATIONS, NotPackedError, PackedBatch, packed
from fastsft.model.generic.small_model import Make, small_model
from fastsft.runtime.messages import warn_once

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_LENGTHS = (19, 11, 26)  # each passes every switch of a small model; only together its positions
_MOST_PARAMETERS = 20_000_000
_TOLERANCE = 1e-5
_SHORT = 7  # tokens of a row in which one that is seen counts
_CAUSAL = 2e-5  # of the largest logit; a token that is seen changes more, 3e-4 through 12 layers of BERT


class NotCausalError(ValueError):
    """A model whose tokens see later ones."""


class KeptStateError(ValueError):
    """A model one of whose calls goes on from the one before."""


def why_padded(make: Make, model: PreTrainedModel) -> str | None:
    """The reason why conversations of `model` cannot be one row; None where they can.

    make: of a configuration such a model, with parameters on the meta device. NotCausalError for one whose
    tokens see later ones, KeptStateError for one that keeps the state of a call, OtherLossError for one that
    learns something else than the next token.
    """
    implementation = model.config._attn_implementation
    if implementation not in IMPLEMENTATIONS:
        return f"its attention is {implementation}"
    try:
        with torch.random.fork_rng(devices=[]):
            small = with_values(small_model(make, model))
            small.config._attn_implementation = implementation
            _check_nothing_kept(small)
            _check_causal(small)
            check_loss(small)
            return _difference(small)
    except (KeptStateError, NotCausalError, OtherLossError):
        raise
    except NotPackedError as error:
        return str(error)
    except (NotImplementedError, *FAULTS) as error:
        return f"a small model of it does not run: {first_line(error)}"


def with_values(model: PreTrainedModel) -> PreTrainedModel:
    """On the CPU, with weights that are large enough to tell tokens apart."""
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


def _check_nothing_kept(model: PreTrainedModel) -> None:
    vocabulary = int(model.config.get_text_config().vocab_size)
    with torch.enable_grad():
        model(input_ids=torch.randint(1, vocabulary, (1, _SHORT)), use_cache=False)
    for place, module in model.named_modules():
        for name, value in {**vars(module), **module._buffers}.items():
            if isinstance(value, torch.Tensor) and value.grad_fn is not None:
                raise KeptStateError(
                    f"config.json: {type(model).__name__} keeps the state of a call for the next one "
                    f"({place}.{name}), so that rows would go on from each other; fastsft trains each row "
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


def _difference(model: PreTrainedModel) -> str | None:
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return "it takes no position_ids"
    stretched = StretchedPositions(sum(_LENGTHS))
    for masked in (None, 3):
        row = PackedBatch.of(_batch(int(model.config.get_text_config().vocab_size), masked))
        with torch.no_grad():
            expected = _alone(model, row)
            found = _in_one_row(model, row, stretched)
        scale = expected.abs().max()
        if not bool(scale > 0) or not bool(((found - expected).abs() <= _TOLERANCE * scale).all()):
            return "conversations in one row would see each other"
    return unseen_length(model, stretched.places, sum(_LENGTHS))


def _in_one_row(model: PreTrainedModel, row: PackedBatch, stretched: StretchedPositions) -> torch.Tensor:
    """Logits of the row's tokens, whose positions in the row count for nothing."""
    with packed(model, row):
        try:
            with stretched:
                logits: torch.Tensor = model(**row.inputs(), use_cache=False).logits
        except (IndexError, RuntimeError):  # of numbers as indices, or not of the positions at all
            model(**row.inputs(), use_cache=False)
            raise NotPackedError("it computes with positions in the whole row") from None
    return logits[0]


def _alone(model: PreTrainedModel, row: PackedBatch) -> torch.Tensor:
    """Logits of the row's tokens, each conversation in a call of its own."""
    parts = zip(
        torch.split(row.input_ids, row.lengths, dim=1),
        torch.split(row.attention_mask, row.lengths, dim=1),
        strict=True,
    )
    return torch.cat(
        [model(input_ids=ids, attention_mask=mask, use_cache=False).logits[0] for ids, mask in parts]
    )


@dataclass(frozen=True)
class _Trial:
    """An engine's Batch, without labels."""

    input_ids: torch.Tensor
    cu_seqlens: torch.Tensor
    is_key: torch.Tensor
    max_seqlen: int


def _batch(vocabulary: int, masked: int | None) -> _Trial:
    """Three conversations, as an engine's Batch. masked: a token that none attends to."""
    ends = torch.tensor([0, *_LENGTHS]).cumsum(0).int()
    ids = torch.randint(0, vocabulary, (int(ends[-1]),))
    is_key = torch.ones(0 if masked is None else len(ids), dtype=torch.uint8)
    is_key[masked:][:1] = 0
    return _Trial(input_ids=ids, cu_seqlens=ends, is_key=is_key, max_seqlen=max(_LENGTHS))


_COUNTS = (torch.arange, torch.cumsum, torch.Tensor.cumsum)
_STRIDE = 10_007  # in front of which no size of a configuration is large


class StretchedPositions(TorchFunctionMode):
    """Multiplies each range over `tokens` numbers: what depends on it comes out otherwise, or fails.

    A floor or window of thousands of tokens changes the numbers of a short row so.
    """

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self._tokens = tokens
        self.places: set[Place] = set()  # of the ranges that were changed

    def __torch_function__(
        self, function: Any, types: Any, given: tuple[Any, ...] = (), options: Mapping[str, Any] | None = None
    ) -> Any:
        made = function(*given, **(options or {}))
        if function in _COUNTS and made.shape and abs(made.shape[-1] - self._tokens) <= 1:
            made = made * _STRIDE
            frame = sys._getframe(1)
            self.places.add((frame.f_code.co_filename, frame.f_lineno))
        return made


_LENGTH, _MASKED = 9, 2
_TOKENS_OF_STEP = 11  # more than the micro-batch has
_LOSS_TOLERANCE = 2e-5
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
    return bool((one - other).abs() <= _LOSS_TOLERANCE * other.abs())
