"""A trial on a small model: conversations in one row next to padded rows."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from fastsft.model.generic.empty_model import FAULTS, first_line
from fastsft.model.generic.loss_trial import OtherLossError, check_loss
from fastsft.model.generic.packing import IMPLEMENTATIONS, NotPackedError, PackedBatch, packed
from fastsft.model.generic.padding import PaddedBatch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Config = Mapping[str, Any]
# The most a size of the small model may be, by its names in configurations. Windows are shorter than a row.
_SMALLER = {
    "vocab_size": 64, "hidden_size": 64, "n_embd": 64, "d_model": 64, "emb_dim": 64,
    "intermediate_size": 64, "ffn_dim": 64, "n_inner": 64, "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
    "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "num_hidden_layers": 8, "n_layer": 8, "num_layers": 8, "n_layers": 8,
    "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "rotary_dim": 8, "num_local_experts": 4, "num_experts": 4, "n_routed_experts": 4, "moe_num_experts": 4,
    "num_experts_per_tok": 2, "moe_k": 2, "moe_topk": 2, "n_group": 1, "topk_group": 1,
    "max_position_embeddings": 64, "n_positions": 64, "sliding_window": 4,
}  # fmt: skip
_IDS = ("pad_token_id", "bos_token_id", "eos_token_id")
_LENGTHS = (7, 5, 9)
_MOST_PARAMETERS = 20_000_000
_TOLERANCE = 1e-5
_CAUSAL = 2e-5  # of the largest logit; a token that is seen changes more, 3e-4 through 12 layers of BERT


class NotCausalError(ValueError):
    """A model whose tokens see later ones."""


class KeptStateError(ValueError):
    """A model one of whose calls goes on from the one before."""


def smaller(config: Config) -> dict[str, Any]:
    """`config` of a small model with the same parts."""
    made = dict(config)
    for name, most in _SMALLER.items():
        if isinstance(made.get(name), int) and not isinstance(made[name], bool):
            made[name] = min(made[name], most)
    heads = config.get("num_attention_heads")
    if heads is not None and config.get("num_key_value_heads") == heads:
        made["num_key_value_heads"] = made["num_attention_heads"]
    if isinstance(made.get("layer_types"), list):
        made["layer_types"] = made["layer_types"][: made.get("num_hidden_layers")]
    return {**made, **dict.fromkeys(_IDS, 0)}


def why_padded(make: Callable[[dict[str, Any]], PreTrainedModel], model: PreTrainedModel) -> str | None:
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
            small = _with_values(make(smaller(model.config.to_dict())))
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


def _with_values(model: PreTrainedModel) -> PreTrainedModel:
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
        model(input_ids=torch.randint(1, vocabulary, (1, _LENGTHS[0])), use_cache=False)
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
    first = torch.randint(1, vocabulary, (1, _LENGTHS[0]))
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
    for masked in (None, 3):
        batch = _batch(int(model.config.get_text_config().vocab_size), masked)
        with torch.no_grad():
            rows, row = PaddedBatch.of(batch), PackedBatch.of(batch)
            expected = _logits(model, rows)
            with packed(model, row):
                found = _logits(model, row)
        scale = expected.abs().max()
        if not bool(scale > 0) or not bool(((found - expected).abs() <= _TOLERANCE * scale).all()):
            return "conversations in one row would see each other"
    return None


def _logits(model: PreTrainedModel, batch: PackedBatch | PaddedBatch) -> torch.Tensor:
    logits = model(**batch.inputs(), use_cache=False).logits
    found: torch.Tensor = logits.reshape(-1, logits.shape[-1]).index_select(0, batch.places)
    return found


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
