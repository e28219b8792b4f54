"""A trial on a small model: conversations in one row next to each of them alone."""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from fastsft.model.generic.empty_model import FAULTS, first_line
from fastsft.model.generic.length_reads import unseen_length
from fastsft.model.generic.loss_trial import OtherLossError, check_loss
from fastsft.model.generic.packing import IMPLEMENTATIONS, NotPackedError, PackedBatch, packed
from fastsft.model.generic.row_positions import StretchedPositions
from fastsft.model.generic.small_model import Make, small_model

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
