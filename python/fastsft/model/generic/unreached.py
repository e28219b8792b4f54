"""Finds parameters that get no gradient from text, by a trial on a small model.

Weight decay must not change them, because transformers' Trainer would not.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from fastsft.model.generic.empty_model import FAULTS, first_line
from fastsft.model.generic.packing import NotPackedError
from fastsft.model.generic.packing_trial import with_values
from fastsft.model.generic.small_model import Make, small_model_of_all_layers

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_ROWS, _LENGTH = 8, 24  # enough tokens to reach every expert, but within a small model's positions
_OF_EXPERT = re.compile(r"(\.\d+\..*)\.\d+\.")  # a numbered module inside a numbered layer
_NUMBER = re.compile(r"\.\d+\.")
_OF_ADAPTER = re.compile(r"\.lora_[AB]\.weight$")


@dataclass(frozen=True)
class Unreached:
    """Parameters that get no gradient from text.

    names: names in the model without adapters. parts: modules whose parameters are all in `names`. fault: the
    reason why the trial failed; `names` is empty then.
    """

    names: frozenset[str] = frozenset()
    parts: tuple[str, ...] = ()
    fault: str = ""

    def has(self, name: str) -> bool:
        """Return True if `name`, or the weight that the adapter `name` adapts, is in `names`."""
        return name in self.names or _OF_ADAPTER.sub(".weight", name) in self.names


def find_unreached(make: Make, model: PreTrainedModel, *, is_given: bool = False) -> Unreached:
    """Find the model's parameters that get no gradient in transformers' Trainer.

    make: makes a model with the same class from a configuration, with parameters on the meta device.
    is_given: True if `model` may have additional modules that its class neither makes nor calls.
    """
    try:
        with torch.random.fork_rng(devices=[]):
            small = with_values(small_model_of_all_layers(make, model))
            unreached = _without_gradient(small)
    except (NotPackedError, NotImplementedError, *FAULTS) as error:
        return Unreached(fault=first_line(error))
    added = _not_of_class(model, small) if is_given else []
    names = frozenset([*unreached, *added]) - set(_of_experts(unreached, small))
    others = [name for name, _ in model.named_parameters() if name not in names]
    return Unreached(names, tuple(dict.fromkeys(_outermost(name, others) for name in sorted(names))))


def _outermost(name: str, others: list[str]) -> str:
    """Return the outermost module in `name` that contains no parameter from `others`; else `name`.

    Numbers are replaced by *.
    """
    ends = [at for at, sign in enumerate(name) if sign == "."]
    paths = (name[:end] for end in ends if not any(other.startswith(name[: end + 1]) for other in others))
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "*", next(paths, name))


def _without_gradient(model: PreTrainedModel) -> list[str]:
    vocabulary = int(model.config.get_text_config().vocab_size)
    ids = torch.randint(1, vocabulary, (_ROWS, _LENGTH))
    with torch.enable_grad():
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits
        logits.float().square().sum().backward()
    named = model.named_parameters()
    return [name for name, parameter in named if parameter.requires_grad and parameter.grad is None]


def _of_experts(names: Collection[str], model: PreTrainedModel) -> list[str]:
    """Return the `names` that belong to experts.

    They got no gradient only by chance: the trial's tokens reached other experts in the same list.
    """
    named = model.named_parameters()
    reached = {_unnumbered(name) for name, parameter in named if parameter.grad is not None}
    return [name for name in names if _OF_EXPERT.search(name) and _unnumbered(name) in reached]


def _not_of_class(model: PreTrainedModel, small: PreTrainedModel) -> list[str]:
    made = {_NUMBER.sub(".#.", name) for name, _ in small.named_parameters()}
    return [name for name, _ in model.named_parameters() if _NUMBER.sub(".#.", name) not in made]


def _unnumbered(name: str) -> str:
    return _OF_EXPERT.sub(r"\1.#.", name)
