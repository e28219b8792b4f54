"""GenericBase: a CausalLM in the generic engine. transformers computes the forward and backward passes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from fastsft import _C
from fastsft.arguments import TrainingArguments
from fastsft.arguments.device_fields import compute_dtype
from fastsft.model.causal_lm import CausalLM
from fastsft.model.context_length import check_switch_length, switch_length
from fastsft.model.generic.generic_model import GenericModel
from fastsft.model.generic.memory import KEEPS_ALL, ActivationSizes
from fastsft.model.generic.padding import check_rows_for, most_positions
from fastsft.model.generic.stored_tensors import FileTensor
from fastsft.model.generic.units import ParameterInfo
from fastsft.model.generic.unreached import Unreached
from fastsft.model.generic.weights import (
    GenericForm,
    aliases,
    load_generic_weights,
    parameter_shapes,
    unit_layouts,
)
from fastsft.model.stored_weights import StoredWeights, UnitLayout
from fastsft.planning.memory_plan import EngineSettings
from fastsft.runtime.launch import launch
from fastsft.runtime.messages import warn_once

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Settings with which a model class adds another loss to the next-token loss, for router balance or logit size
_LOSSES = ("output_router_logits", "z_loss_coefficient")


class GenericBase(CausalLM):
    """The CausalLM methods that differ for the generic engine.

    Derived classes define how the transformers model is made: GenericCausalLM makes it from a directory, and
    GenericLoadedModel from a given object.
    """

    engine_kind = "generic"
    why_generic = "--engine generic"  # for the start page

    def _empty(self, dtype: torch.dtype) -> PreTrainedModel:
        """Make the transformers model with parameters on the meta device."""
        raise NotImplementedError

    def _filled(self, model: PreTrainedModel) -> PreTrainedModel:
        """Set the model's values that are in no unit, and return the model."""
        return model

    @cached_property
    def _meta(self) -> GenericModel:
        """The model without weights, from which shapes, units and plans are read."""
        model = self._empty(torch.float32)
        # `to_dict` includes the defaults of the configuration's class.
        text = model.config.get_text_config().to_dict()
        check_config(text, f"{type(model).__name__}.config")
        return GenericModel(model, device="meta", recompute=False, unreached=self._find_unreached(model))

    @property
    def unreached(self) -> Unreached:
        """Parameters that get no gradient, so that weight decay must not change them either."""
        return self._meta.unreached

    def _find_unreached(self, model: PreTrainedModel) -> Unreached:
        raise NotImplementedError

    @property
    def engine_words(self) -> str:
        """The engine's description on the start page."""
        kind = type(self._meta.model).__name__
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
        count = sum(info.numel for info in self._parameters() if not info.is_reached)
        parts = ", ".join(self.unreached.parts)
        return f"; no pass over text reaches {parts}, which stay as they are ({count:,} parameters)"

    def _parameters(self) -> list[ParameterInfo]:
        return [info for unit in self._meta.units for info in unit.parameters]

    @cached_property
    def why_padded(self) -> str | None:
        """The reason why a micro-batch consists of padded rows; None if it is packed into one row."""
        return self._why_padded()

    def _why_padded(self) -> str | None:
        raise NotImplementedError

    def parameter_shapes(self) -> list[tuple[str, list[int]]]:
        return parameter_shapes(self._meta)

    def unit_layouts(self) -> list[UnitLayout]:
        return unit_layouts(self._meta)

    def load_checkpoint_weights(self, engine: _C.Engine, directory: str) -> None:
        load_generic_weights(engine, self._meta.model, self._meta.units, directory)

    def trained_order(self, engine: _C.Engine) -> list[tuple[str, bool]]:
        decays = {info.name: info.decays for info in self._parameters() if not info.is_constant}
        return [(name, decays[name]) for name, _ in self._meta.model.named_parameters() if name in decays]

    def stored_parts(self, name: str, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        shape, parts = self._stored.get(name, ((), ()))
        if shape != tuple(tensor.shape):
            yield name, tensor
            return
        if any(part.within is not None for part in parts):
            raise ValueError(
                f"{type(self._meta.model).__name__}: {name} is a part of the tensor {parts[0].name} of the "
                "files, and cannot be saved without the others: use trainer.save_model()"
            )
        yield from ((part.name, part.part_of(tensor)) for part in parts)

    @cached_property
    def _stored(self) -> dict[str, tuple[tuple[int, ...], tuple[FileTensor, ...]]]:
        return {info.name: (info.shape, info.stored) for info in self._parameters()}

    def engine_config(self) -> dict[str, Any]:
        return {**self.config, "pad_token_id": self._padding_idx}

    def vocab_size(self) -> int:
        return int(self._meta.model.config.get_text_config().vocab_size)

    def tied_names(self) -> list[str]:
        return list(aliases(self._meta.model, self._meta.units))

    def buffer_dtypes(self) -> dict[str, torch.dtype]:
        buffers = [info for info in self._parameters() if info.buffer is not None]
        return {part.name: info.buffer for info in buffers for part in info.stored if info.buffer}

    def class_name(self) -> str | None:
        return type(self._meta.model).__name__

    def positions_in_table(self) -> bool:
        return most_positions(self._meta.model) is not None

    def switch_length(self) -> int | None:
        return switch_length(self._meta.model)

    def check_rows(
        self, dataset: _C.TokenDataset, numbers: list[int] | None = None, *, training: bool = True
    ) -> None:
        check_rows_for(self._meta.model, dataset, numbers, training=training)

    def stored_form(self, stored: StoredWeights) -> GenericForm:
        return GenericForm(self._meta, stored)

    def check_as_given(self, caller: str, training: bool) -> None:
        """Check nothing: the generic engine runs transformers' own code, so patches take effect."""

    def conversation_cost(self) -> tuple[float, ...]:
        """Return operations per token (6 per parameter) and per token pair, and 1.0 if rows are padded."""
        sizes = self._sizes(4)
        count = sum(info.numel for info in self._parameters())
        return 6.0 * count, 12.0 * sizes.blocks * sizes.hidden, float(self.why_padded is not None)

    def memory_setting(self, args: TrainingArguments) -> EngineSettings:
        return super().memory_setting(args).with_generic(self.activation_sizes(compute_dtype(args)))

    def activation_sizes(self, dtype: str) -> ActivationSizes:
        return self._sizes(4 if dtype == "float32" else 2)

    def _sizes(self, itemsize: int) -> ActivationSizes:
        meta = self._meta
        config = meta.model.config.get_text_config()
        outside = sum(info.numel for info in meta.units[0].parameters)
        return ActivationSizes.of(meta.layout, config, len(meta.units) - 1, outside, itemsize)

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
        check_switch_length(switch_length(generic.model), options["max_positions"])
        return _C.Engine(json.dumps(self.engine_config()), **options, model=generic.for_engine())

    def _check_layer_class(self, named: str | None) -> None:
        kinds = {type(unit.block).__name__ for unit in self._meta.units if unit.block is not None}
        given = [name.strip() for name in (named or "").split(",")]
        others = [name for name in given if name and name not in kinds]
        if others:
            warn_once(
                f"fsdp_transformer_layer_cls_to_wrap: {', '.join(others)} is not the layer of this model "
                f"({', '.join(sorted(kinds))}); the engine shards per layer in any case"
            )


def check_config(config: Mapping[str, Any], where: str) -> None:
    """Raise ValueError for settings that fastsft would train differently, also in nested configurations."""
    if own_loss := _own_loss(config):
        name, value = own_loss
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
    """Return the dotted name and the value of the first setting in _LOSSES that is enabled."""
    for name, value in config.items():
        if name in _LOSSES and value:
            return name, value
        if isinstance(value, Mapping) and (inner := _own_loss(value)):
            return f"{name}.{inner[0]}", inner[1]
    return None
