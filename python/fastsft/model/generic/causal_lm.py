"""A model directory that is trained by transformers' own forward and backward."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fastsft.model.generic.empty_model import empty_model
from fastsft.model.generic.model_parts import GenericParts, check_config
from fastsft.model.generic.packing_trial import why_padded
from fastsft.model.generic.weights import load_generic_weights
from fastsft.model.model_config import ModelConfig

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from fastsft import _C


class GenericCausalLM(GenericParts):
    """Any causal language model of transformers; shards, optimizer, checkpoints and loop are the engine's."""

    def __init__(self, source_directory: Path, config: ModelConfig) -> None:
        super().__init__(source_directory, config)
        check_config(config, str(self.source_directory / "config.json"))

    def load_weights(self, engine: _C.Engine) -> None:
        """Fill the engine with the weights of the directory; collective."""
        plain = self._plain
        load_generic_weights(engine, plain.model, plain.units, self.source_directory)

    def _empty(self, dtype: torch.dtype) -> PreTrainedModel:
        return self._made(self.engine_config(), dtype)

    def _made(self, config: dict[str, Any], dtype: torch.dtype) -> PreTrainedModel:
        return empty_model(config, dtype)

    def _why_padded(self) -> str | None:
        return why_padded(lambda config: self._made(config, torch.float32), self._plain.model)
