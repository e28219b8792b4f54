"""A model directory that is trained by transformers' own forward and backward."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from fastsft import _C
from fastsft.arguments import TrainingArguments
from fastsft.model.causal_lm import CausalLM, ModelConfig
from fastsft.model.generic.called_model import GenericModel
from fastsft.model.generic.empty_model import empty_model
from fastsft.model.generic.memory import KEEPS_ALL, ActivationSizes
from fastsft.model.generic.weights import load_generic_weights
from fastsft.planning.memory_plan import Setting
from fastsft.runtime.messages import warn_once
from fastsft.runtime.place import launch


class GenericCausalLM(CausalLM):
    """Any causal language model of transformers; shards, optimizer, checkpoints and loop are the engine's."""

    def __init__(self, source_directory: Path, config: ModelConfig) -> None:
        super().__init__(source_directory, config)
        self._generic: GenericModel | None = None
        check_config(config, str(self.source_directory / "config.json"))

    @cached_property
    def _plain(self) -> GenericModel:
        """Its shapes and places, for plans."""
        return GenericModel(empty_model(self.config, torch.float32), device="meta", recompute=False)

    @property
    def engine_kind(self) -> str:
        """generic."""
        return "generic"

    def check_as_given(self, caller: str, training: bool) -> None:
        """Nothing: what a script changes in torch and transformers is what computes here."""

    def conversation_cost(self) -> tuple[float, float]:
        """As CausalLM's: 6 operations a parameter outside of the embedding; attention by the hidden size."""
        sizes = self._sizes(4)
        count = sum(one.numel for unit in self._plain.units for one in unit.parameters)
        return 6.0 * count, 12.0 * sizes.blocks * sizes.hidden

    def memory_setting(self, args: TrainingArguments) -> Setting:
        """As CausalLM's, with the layout and activations of this model."""
        own = super().memory_setting(args)
        return own.with_called(self._sizes(2 if args.bf16 else 4))

    def load_weights(self, engine: Any) -> None:
        """Fill the engine with the weights of the directory; collective."""
        plain = self._plain
        load_generic_weights(engine, plain.model, plain.units, self.source_directory)

    def _sizes(self, itemsize: int) -> ActivationSizes:
        plain = self._plain
        config = plain.model.config.get_text_config()
        return ActivationSizes.of(plain.layout, config, len(plain.units) - 1, itemsize)

    def _new_engine(self, options: dict[str, Any]) -> Any:
        dtype = torch.bfloat16 if options["state"].compute_dtype == "bfloat16" else torch.float32
        self._generic = GenericModel(
            empty_model(self.config, dtype),
            device=options["device"],
            recompute=options["recompute"] not in KEEPS_ALL,
            rank=launch().rank,
        )
        config = json.dumps(self.engine_config())
        return _C.Engine(config, **options, model=self._generic.called())

    def _check_layer_class(self, named: str | None) -> None:
        kinds = {type(unit.block).__name__ for unit in self._plain.units if unit.block is not None}
        others = [name.strip() for name in (named or "").split(",") if name.strip() and name.strip() not in kinds]
        if others:
            warn_once(
                f"fsdp_transformer_layer_cls_to_wrap: {', '.join(others)} is not the layer of this model "
                f"({', '.join(sorted(kinds))}); the engine shards per layer in any case"
            )


def check_config(config: ModelConfig, where: str) -> None:
    """ValueError for settings that the generic engine would train differently."""
    if config.get("output_router_logits"):
        raise ValueError(
            f"{where}: output_router_logits is true: the loss of the router depends on how rows are put into "
            "micro-batches, which the engine chooses; set it to false, or train with transformers' Trainer"
        )
    if config.get("layerdrop"):
        raise ValueError(
            f"{where}: layerdrop is {config['layerdrop']}: ranks would leave out other layers; set it to 0.0, or "
            "train with transformers' Trainer"
        )
