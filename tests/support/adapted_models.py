"""A model with adapters as plain data, from which any rank makes its engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from engines import new_engine
from fastsft import _C
from runs import append_labelled

LENGTHS = [3, 26, 11, 2, 40, 7]


def labels_of(ids: torch.Tensor) -> torch.Tensor:
    """Everything but the first two fifths is learned."""
    labels = ids.clone()
    labels[: 2 * len(labels) // 5 + 1] = -100
    return labels


@dataclass(frozen=True)
class AdaptedModel:
    """Linears: (module, rank, scale). Conversations are of uneven length."""

    config_json: str
    linears: list[tuple[str, int, float]]
    trained: list[str]
    parameters: dict[str, torch.Tensor]
    ids: list[torch.Tensor]
    weights: np.ndarray = field(default_factory=lambda: np.linspace(0.01, 0.05, len(LENGTHS)))

    def options(self, dropout: float = 0.0) -> _C.AdapterOptions:
        linears = [_C.AdapterLinear(name, rank=rank, scale=scale) for name, rank, scale in self.linears]
        return _C.AdapterOptions(linears=linears, dropout=dropout, trained=self.trained)

    def engine(self, adapter_dropout: float = 0.0, **options: Any) -> _C.Engine:
        engine = new_engine(self.config_json, adapters=self.options(adapter_dropout), **options)
        for name, value in self.parameters.items():
            engine.set_parameter(name, value)
        engine.publish()
        return engine

    def dataset(self) -> _C.TokenDataset:
        dataset = _C.TokenDataset()
        for ids in self.ids:
            append_labelled(dataset, ids.tolist(), labels_of(ids).tolist())
        return dataset

    def gradients(self, engine: _C.Engine, **options: Any) -> tuple[float, dict[str, torch.Tensor]]:
        """Of all conversations; row r is rank r mod W's."""
        rows = np.arange(len(self.ids))[engine.rank :: engine.world_size]
        return engine.gradients(self.dataset(), rows, self.weights[rows], **options)
