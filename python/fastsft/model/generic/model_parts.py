"""The methods in which a model of the generic engine differs from a native one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from fastsft import _C
from fastsft.arguments import TrainingArguments
from fastsft.arguments.precision import compute_dtype
from fastsft.model.causal_lm import CausalLM
from fastsft.model.generic import stored_form
from fastsft.model.generic.called_model import GenericModel
from fastsft.model.generic.memory import KEEPS_ALL, ActivationSizes
from fastsft.model.generic.padding import most_positions
from fastsft.model.generic.rows import check_rows_for
from fastsft.model.generic.stored_form import StoredForm
from fastsft.model.generic.switching_rope import check_switch, switch_length
from fastsft.model.generic.unreached import Unreached
from fastsft.model.generic.weights import aliases, load_generic_weights
from fastsft.model.stored_tensor import StoredTensor
from fastsft.model.stored_weights import StoredWeights, UnitLayout
from fastsft.planning.memory_plan import Setting
from fastsft.runtime.launch import launch
from fastsft.runtime.messages import warn_once

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# By these, classes add a loss to that of the next token: the balance of routers, and the size of all logits.
_LOSSES = ("output_router_logits", "z_loss_coefficient")


class GenericParts(CausalLM):
    """Comes before CausalLM or a class derived from it. `_empty` makes the model without its weights."""

    engine_kind = "generic"
    why_generic = "--engine generic"

    def _empty(self, dtype: torch.dtype) -> PreTrainedModel:
        raise NotImplementedError

    def _filled(self, model: PreTrainedModel) -> PreTrainedModel:
        """`model` with the values that it computes with and that are in no unit."""
        return model

    @cached_property
    def _plain(self) -> GenericModel:
        """Its shapes and places, for plans."""
        model = self._empty(torch.float32)
        text = model.config.get_text_config().to_dict()  # with what a class has by itself
        check_config(text, f"{type(model).__name__}.config")
        return GenericModel(model, device="meta", recompute=False, unreached=self._find_unreached(model))

    @property
    def unreached(self) -> Unreached:
        """Parameters without a gradient, which weight decay leaves alone."""
        return self._plain.unreached

    def _find_unreached(self, model: PreTrainedModel) -> Unreached:
        raise NotImplementedError

    @property
    def engine_words(self) -> str:
        """The line of the start page."""
        kind = type(self._plain.model).__name__
        rows = "no padding" if self.why_padded is None else f"rows right-padded by length: {self.why_padded}"
        return f"generic, {kind} of transformers ({self.why_generic}); {rows}{self._unreached_words()}"

    def _unreached_words(self) -> str:
        if self.unreached.fault:
            return (
                "; a trial of which parts text reaches failed, and weight decay moves the other parts, too: "
                f"{self.unreached.fault}"
            )
        if not self.unreached.names:
            return ""
        count = sum(one.numel for unit in self._plain.units for one in unit.parameters if not one.is_reached)
        parts = ", ".join(self.unreached.parts)
        return f"; no pass over text reaches {parts}, which stay as they are ({count:,} parameters)"

    @cached_property
    def why_padded(self) -> str | None:
        """The reason why a micro-batch is not one row; None where it is."""
        return self._why_padded()

    def _why_padded(self) -> str | None:
        raise NotImplementedError

    def parameter_shapes(self) -> list[tuple[str, list[int]]]:
        """As CausalLM's. ValueError for a configuration that transformers does not take."""
        return stored_form.parameter_shapes(self._plain)

    def unit_layouts(self) -> list[UnitLayout]:
        """As CausalLM's; digests are not known."""
        return stored_form.unit_layouts(self._plain)

    def load_saved(self, engine: _C.Engine, directory: str) -> None:
        """As CausalLM's; under all names that transformers may have given the tensors."""
        load_generic_weights(engine, self._plain.model, self._plain.units, directory)

    def trained_order(self, engine: _C.Engine) -> list[tuple[str, bool]]:
        """As CausalLM's, by the model of transformers itself."""
        placed = [one for unit in self._plain.units for one in unit.parameters]
        decays = {one.name: one.decays for one in placed if not one.is_held}
        return [(name, decays[name]) for name, _ in self._plain.model.named_parameters() if name in decays]

    def stored_parts(self, name: str, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """As CausalLM's: parameters of transformers 5 may be many tensors of files."""
        shape, parts = self._stored.get(name, ((), ()))
        if shape != tuple(tensor.shape):
            yield name, tensor
            return
        if any(part.within is not None for part in parts):
            raise ValueError(
                f"{type(self._plain.model).__name__}: {name} is a part of the tensor {parts[0].name} of the "
                "files, and cannot be saved without the others: use trainer.save_model()"
            )
        yield from ((part.name, part.part_of(tensor)) for part in parts)

    @cached_property
    def _stored(self) -> dict[str, tuple[tuple[int, ...], tuple[StoredTensor, ...]]]:
        return {one.name: (one.shape, one.stored) for unit in self._plain.units for one in unit.parameters}

    def engine_config(self) -> dict[str, Any]:
        """As CausalLM's: the configuration as it is, of which transformers computes what it does."""
        return {**self.config, "pad_token_id": self._padding_idx}

    def vocab_size(self) -> int:
        """Rows of the embedding, as the configuration of transformers says."""
        return int(self._plain.model.config.get_text_config().vocab_size)

    def tied_names(self) -> list[str]:
        """As CausalLM's."""
        return list(aliases(self._plain.model, self._plain.units))

    def buffer_dtypes(self) -> dict[str, torch.dtype]:
        """As CausalLM's."""
        placed = [one for unit in self._plain.units for one in unit.parameters]
        return {part.name: one.buffer for one in placed if one.buffer is not None for part in one.stored}

    def class_name(self) -> str | None:
        """As CausalLM's."""
        return type(self._plain.model).__name__

    def positions_in_table(self) -> bool:
        """As CausalLM's."""
        return most_positions(self._plain.model) is not None

    def switch_length(self) -> int | None:
        """As CausalLM's, of the configuration as it was opened."""
        return switch_length(self._plain.model)

    def check_rows(
        self, native: _C.TokenDataset, numbers: list[int] | None = None, *, training: bool = True
    ) -> None:
        """As CausalLM's: positions, masks and lengths that this model does not take."""
        check_rows_for(self._plain.model, native, numbers, training=training)

    def stored_form(self, stored: StoredWeights) -> StoredForm:
        """As CausalLM's, by the names of transformers' model."""
        return StoredForm(self._plain, stored)

    def check_as_given(self, caller: str, training: bool) -> None:
        """Nothing: what a script changes in torch and transformers is what computes here."""

    def conversation_cost(self) -> tuple[float, ...]:
        """Operations: 6 a parameter and token; of attention by the hidden size; whether rows are padded."""
        sizes = self._sizes(4)
        count = sum(one.numel for unit in self._plain.units for one in unit.parameters)
        return 6.0 * count, 12.0 * sizes.blocks * sizes.hidden, float(self.why_padded is not None)

    def memory_setting(self, args: TrainingArguments) -> Setting:
        """As CausalLM's, with the layout and activations of this model."""
        return super().memory_setting(args).with_called(self.activation_sizes(compute_dtype(args)))

    def activation_sizes(self, dtype: str) -> ActivationSizes:
        """As CausalLM's."""
        return self._sizes(4 if dtype == "float32" else 2)

    def _sizes(self, itemsize: int) -> ActivationSizes:
        plain = self._plain
        config = plain.model.config.get_text_config()
        outside = sum(one.numel for one in plain.units[0].parameters)
        return ActivationSizes.of(plain.layout, config, len(plain.units) - 1, outside, itemsize)

    def _new_engine(self, options: dict[str, Any]) -> _C.Engine:
        dtype = getattr(torch, options["state"].compute_dtype)
        generic = GenericModel(
            self._filled(self._empty(dtype)),
            device=options["device"],
            recompute=options["recompute"] not in KEEPS_ALL,
            packs=self.why_padded is None,
            rank=launch().rank,
            unreached=self.unreached,
        )
        check_switch(generic.model, options["max_positions"])
        return _C.Engine(json.dumps(self.engine_config()), **options, model=generic.called())

    def _check_layer_class(self, named: str | None) -> None:
        kinds = {type(unit.block).__name__ for unit in self._plain.units if unit.block is not None}
        given = [name.strip() for name in (named or "").split(",")]
        others = [name for name in given if name and name not in kinds]
        if others:
            warn_once(
                f"fsdp_transformer_layer_cls_to_wrap: {', '.join(others)} is not the layer of this model "
                f"({', '.join(sorted(kinds))}); the engine shards per layer in any case"
            )


def check_config(config: Mapping[str, Any], where: str) -> None:
    """ValueError for settings that the generic engine would train differently.

    config: of a file or of a made model; losses of configurations inside count as well.
    """
    if found := _own_loss(config):
        name, value = found
        raise ValueError(
            f"{where}: {name} is {json.dumps(value)}: the class adds a loss that depends on how rows are put "
            "into micro-batches, which the engine chooses; set it to "
            f"{'false' if value is True else '0'}, or train with transformers' Trainer"
        )
    if config.get("layerdrop"):
        raise ValueError(
            f"{where}: layerdrop is {config['layerdrop']}: ranks would leave out other layers; set it to "
            "0.0, or train with transformers' Trainer"
        )


def _own_loss(config: Mapping[str, Any]) -> tuple[str, object] | None:
    """The first setting of _LOSSES that is not off: its dotted name, and its value."""
    for name, value in config.items():
        if name in _LOSSES and value:
            return name, value
        if isinstance(value, Mapping) and (found := _own_loss(value)):
            return f"{name}.{found[0]}", found[1]
    return None
