"""Forward and backward of a transformers model over the engine's units (csrc/model/called_model.h)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import TYPE_CHECKING

import torch
from torch import nn

from fastsft import _C
from fastsft.model.generic.blocks import Block, PlaceParameters, UnitParameters
from fastsft.model.generic.head_loss import HeadLoss, Labels
from fastsft.model.generic.packing import PackedBatch, packed
from fastsft.model.generic.padding import PaddedBatch
from fastsft.model.generic.placement import Placed, place
from fastsft.model.generic.unreached import Unreached

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_Described = list[tuple[str, list[int], bool, bool, bool, bool, int]]


class GenericModel:
    """The engine calls it; nothing else does. model: of `empty_model`; device: of weights and batches.

    recompute: blocks are computed again in backward. packs: conversations are one row (packing.py), else
    padded ones. rank: ranks draw other numbers for dropout. unreached: parameters that do not decay.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        device: str,
        recompute: bool,
        packs: bool = False,
        rank: int = 0,
        unreached: Unreached | None = None,
    ) -> None:
        self.model, self.device, self._rank, self._packs = model, torch.device(device), rank, packs
        self.unreached = unreached or Unreached()
        self.units = place(model, self.unreached)
        self.layout = self._called(None)
        dtype = next(model.parameters()).dtype
        set_tables(model, dtype)
        for module in model.modules():
            for name, buffer in module._buffers.items():
                module._buffers[name] = None if buffer is None else buffer.to(self.device)
        nothing = torch.full((), torch.nan, dtype=dtype, device=self.device)
        self._outside, *inside = self._parameters(nothing)
        blocks = [unit.block for unit in self.units[1:]]
        self._first = inside[0] if inside else None
        self._blocks = [
            Block(block, own, before, after)
            for block, own, before, after in zip(
                blocks, inside, [None, *inside][: len(inside)], [*inside, None][1:], strict=True
            )
            if block is not None
        ]
        for block in self._blocks:
            block.recompute = recompute
        self.head = HeadLoss(model, self._outside)

    def called(self) -> _C.CalledModel:
        """For `_C.Engine(model=)`, which then owns this object."""
        return self._called(self)

    def _called(self, calls: GenericModel | None) -> _C.CalledModel:
        return _C.CalledModel(
            units=self._described(trained=True),
            frozen=self._described(trained=False),
            vocab_size=int(self.model.config.get_text_config().vocab_size),
            embedding_parameters=weight_of(self.model.get_input_embeddings()).numel(),
            calls=calls,
        )

    def _described(self, *, trained: bool) -> list[tuple[str, list[_Described]]]:
        end = "" if trained else ".frozen"
        return [
            (f"{self.units[at].name}{end}", [_tensors(one) for one in part if one.tensors])
            for at, part in self.parts(trained=trained)
        ]

    def parts(self, *, trained: bool) -> list[tuple[int, list[Placed]]]:
        """The engine's units: number of the place, and its parameters that are trained, or not."""
        parts = [(at, unit.part(trained=trained)) for at, unit in enumerate(self.units)]
        return [(at, part) for at, part in parts if part]

    def _parameters(self, nothing: torch.Tensor) -> list[PlaceParameters]:
        """Of each place."""
        found: list[list[UnitParameters]] = [[] for _ in self.units]
        for trained, all_places in ((False, self.layout.frozen_places), (True, self.layout.places)):
            for index, (at, part) in enumerate(self.parts(trained=trained)):
                found[at].append(UnitParameters(index, part, all_places[index], nothing, trained=trained))
        return [PlaceParameters(parts) for parts in found]

    def forward_backward(
        self,
        units: _C.UnitAccess,
        batch: _C.Batch,
        draws: tuple[int, int, int],
        label_smoothing: float,
        loss: torch.Tensor,
    ) -> None:
        """Add the loss of a micro-batch to `loss` [1] float64, its gradients to the units'; collective."""
        with self._pass(units), self._drawing(draws):
            self.model.train()
            with torch.no_grad():
                plain = self.head.is_plain(self.device)
            with torch.enable_grad(), self._rows(batch) as rows:
                start = self._loss(
                    units, rows, Labels(batch, rows.places, label_smoothing), loss, plain=plain
                )
                start.backward()  # type: ignore[no-untyped-call]
            self._reduce_rest(units)

    def forward_loss(
        self, units: _C.UnitAccess, batch: _C.Batch, label_smoothing: float, loss: torch.Tensor
    ) -> None:
        """Adds the loss of a micro-batch to `loss`, without gradients and dropout; collective."""
        with self._pass(units), torch.no_grad():
            self.model.eval()
            plain = self.head.is_plain(self.device)
            with self._rows(batch) as rows:
                self._loss(units, rows, Labels(batch, rows.places, label_smoothing), loss, plain=plain)

    def logits(self, units: _C.UnitAccess, batch: _C.Batch) -> torch.Tensor:
        """[tokens, vocab_size] float32; collective."""
        with self._pass(units), torch.no_grad(), self._rows(batch) as rows:
            self.model.eval()
            logits: torch.Tensor = self.model(**rows.inputs(), use_cache=False).logits
            return logits.reshape(-1, logits.shape[-1]).index_select(0, rows.places).float()

    def _loss(
        self,
        units: _C.UnitAccess,
        rows: PaddedBatch | PackedBatch,
        labels: Labels,
        loss: torch.Tensor,
        *,
        plain: bool,
    ) -> torch.Tensor:
        if plain:
            return self.head.fused(rows.inputs(), units, labels, loss)
        start = labels.loss_of(self.model(**rows.inputs(), use_cache=False).logits)
        loss.add_(start.detach())
        return start

    @contextmanager
    def _rows(self, batch: _C.Batch) -> Iterator[PaddedBatch | PackedBatch]:
        if not self._packs:
            yield PaddedBatch.of(batch)
            return
        row = PackedBatch.of(batch)
        with packed(self.model, row):
            yield row

    def _reduce_rest(self, units: _C.UnitAccess) -> None:
        """Units whose backward had no end to see or that nothing called, and what belongs to no block."""
        for block in reversed(self._blocks):
            block.reduce()
        self._outside.reduce(units)

    @contextmanager
    def _pass(self, units: _C.UnitAccess) -> Iterator[None]:
        self._outside.show(units)
        if self._first is not None:
            self._first.prefetch(units)
        for block in self._blocks:
            block.begin(units)
        try:
            yield
        finally:
            for block in self._blocks:
                block.end()
            self._outside.hide(units)

    @contextmanager
    def _drawing(self, draws: tuple[int, int, int]) -> Iterator[None]:
        """Random numbers of this place, so that a resumed run draws the same; the caller's stay."""
        name = ",".join(map(str, (*draws, self._rank)))
        seed = int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little") >> 1
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(seed)
            yield


def weight_of(module: nn.Module) -> torch.Tensor:
    """Of an embedding or a linear."""
    weight = module.weight
    assert isinstance(weight, torch.Tensor)
    return weight


def _tensors(one: Placed) -> _Described:
    return [
        (
            tensor.name,
            list(tensor.shape),
            one.is_decayed,
            one.is_adapter,
            one.is_held,
            one.is_embedding,
            tensor.file_order,
        )
        for tensor in one.tensors
    ]


# Tables that are no buffers either: float32 whatever the weights are, and added to them.
_TABLES = {"CTRLModel": "pos_encoding"}


def set_tables(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Tables that transformers leaves in float32, which a model of `dtype` cannot be called with."""
    for module in model.modules():
        name = _TABLES.get(type(module).__name__, "")
        table = vars(module).get(name)
        if isinstance(table, torch.Tensor):
            setattr(module, name, table.to(dtype))
