"""A trial on a small model: parameters that no pass over text gives a gradient."""

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

_ROWS, _LENGTH = 8, 24  # tokens enough for every expert, within the positions of a small model
_OF_EXPERT = re.compile(r"(\.\d+\..*)\.\d+\.")  # the number of a module in a layer with a number
_NUMBER = re.compile(r"\.\d+\.")
_OF_ADAPTER = re.compile(r"\.lora_[AB]\.weight$")


@dataclass(frozen=True)
class Unreached:
    """Parameters without a gradient.

    names: as the model has them without adapters. parts: the modules that they fill. fault: why the trial
    failed; then no name is known.
    """

    names: frozenset[str] = frozenset()
    parts: tuple[str, ...] = ()
    fault: str = ""

    def has(self, name: str) -> bool:
        """True for one of `names`, and for the adapter of a linear whose weight is one."""
        return name in self.names or _OF_ADAPTER.sub(".weight", name) in self.names


def find_unreached(make: Make, model: PreTrainedModel, *, is_given: bool = False) -> Unreached:
    """Find the parameters of `model` for which transformers' Trainer has no gradient.

    make: of a configuration such a model, with parameters on the meta device. The small one has every layer.
    is_given: `model` may have modules that its class does not make, and does not call.
    """
    try:
        with torch.random.fork_rng(devices=[]):
            small = with_values(small_model_of_all_layers(make, model))
            found = _without_gradient(small)
    except (NotPackedError, NotImplementedError, *FAULTS) as error:
        return Unreached(fault=first_line(error))
    more = _not_of_class(model, small) if is_given else []
    names = frozenset([*found, *more]) - set(_of_experts(found, small))
    others = [name for name, _ in model.named_parameters() if name not in names]
    return Unreached(names, tuple(dict.fromkeys(_outermost(name, others) for name in sorted(names))))


def _outermost(name: str, others: list[str]) -> str:
    """The largest module of `name` that has none of `others`, with * for numbers; else the name."""
    ends = [at for at, sign in enumerate(name) if sign == "."]
    own = (name[:end] for end in ends if not any(other.startswith(name[: end + 1]) for other in others))
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "*", next(own, name))


def _without_gradient(model: PreTrainedModel) -> list[str]:
    vocabulary = int(model.config.get_text_config().vocab_size)
    ids = torch.randint(1, vocabulary, (_ROWS, _LENGTH))
    with torch.enable_grad():
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits
        logits.float().square().sum().backward()
    return [name for name, each in model.named_parameters() if each.requires_grad and each.grad is None]


def _of_experts(names: Collection[str], model: PreTrainedModel) -> list[str]:
    """List the `names` of experts: entries of a list in a layer, of which the trial reached others."""
    reached = {_unnumbered(name) for name, each in model.named_parameters() if each.grad is not None}
    return [name for name in names if _OF_EXPERT.search(name) and _unnumbered(name) in reached]


def _not_of_class(model: PreTrainedModel, small: PreTrainedModel) -> list[str]:
    made = {_NUMBER.sub(".#.", name) for name, _ in small.named_parameters()}
    return [name for name, _ in model.named_parameters() if _NUMBER.sub(".#.", name) not in made]


def _unnumbered(name: str) -> str:
    return _OF_EXPERT.sub(r"\1.#.", name)
