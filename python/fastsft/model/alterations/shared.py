"""Parameters that are one tensor in several places: the engine ties head and embedding, nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastsft.model.alterations.finding import Alteration, path_of

_HEAD, _TABLE = "lm_head.weight", "model.embed_tokens.weight"


def shared_parameters(model: Any) -> Iterator[Alteration]:
    """Weights that several modules share, and a head that is tied or not against the configuration's word."""
    seen: dict[tuple[str, int], str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.is_meta or not parameter.numel():
            continue
        first = seen.setdefault((str(parameter.device), parameter.data_ptr()), name)
        if first != name and {first.replace("._orig_mod", ""), name.replace("._orig_mod", "")} != {
            _TABLE,
            _HEAD,
        }:
            yield Alteration(
                path_of(name), f"shares its memory with {path_of(first)}", "a weight for each module",
                "copy the module (copy.deepcopy), or train with transformers' Trainer",
            )  # fmt: skip
    table, head = getattr(model.model.embed_tokens, "weight", None), getattr(model.lm_head, "weight", None)
    said = bool(model.config.tie_word_embeddings)
    if table is not None and head is not None and (table is head) != said:
        state = "is" if table is head else "is not"
        yield Alteration(
            "model.lm_head.weight", f"{state} the tensor of model.model.embed_tokens",
            f"{'tied' if said else 'separate'} weights, as model.config.tie_word_embeddings {said} says",
            f"set model.config.tie_word_embeddings = {not said}, or "
            f"{'call model.tie_weights()' if said else 'copy the tensor'}",
        )  # fmt: skip
