"""fastsft's own engine: flat units, gathered one at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import torch

from fastsft.weight_sync.sources.source import Described, Named, Rows, WeightSource, rows_of_whole


class EngineSource(WeightSource):
    """The weights of a `FastsftEngine`. Parameters are described in the dtype that the engine computes in.

    `master` of the engine adapter: float32 masters instead.
    """

    def __init__(self, engine: Any) -> None:
        super().__init__(engine)
        self._native, self._master = engine.native_engine, engine.send_master
        self.rank, self.world_size = self._native.rank, self._native.world_size
        self.config = json.loads(self._native.config_json)
        self._dtype = torch.float32 if self._master else engine.compute_dtype

    def describe(self) -> list[Described]:
        from fastsft import _C

        tensors = [tensor for unit in _C.unit_tensors(self._native) for tensor in unit]
        return [
            Described(name, tuple(shape), self._dtype, False, number)
            for number, (name, shape) in enumerate(tensors)
        ]

    def whole(self) -> Iterator[list[Named]]:
        from fastsft import _C

        for unit in range(len(self._native.unit_names)):
            yield _C.gather_unit(self._native, unit, master=self._master)

    def rows(self) -> Iterator[Rows]:
        for unit in self.whole():
            for name, tensor in unit:
                yield rows_of_whole(name, tensor, False, self.rank, self.world_size)
