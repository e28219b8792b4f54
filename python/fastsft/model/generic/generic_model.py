"""GenericModel: a transformers model's passes, which the engine calls (csrc/model/called_model.h)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import TYPE_CHECKING

import torch
from torch import nn

from fastsft import _C
from fastsft.model.generic.blocks import Block, LayerParameters, UnitParameters
from fastsft.model.generic.head_loss import HeadLoss, Labels
from fastsft.model.generic.packing import PackedBatch, packed
from fastsft.model.generic.padding import PaddedBatch
from fastsft.model.generic.units import ParameterInfo, make_units
from fastsft.model.generic.unreached import Unreached

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_Tensors = list[tuple[str, list[int], bool, bool, bool, bool, int]]
# Attributes with position tables, by class; the tables are added to hidden states.
_TABLES = {"CTRLModel": "pos_encoding"}


class GenericModel:
    """Runs forward and backward for a transformers model whose parameters are views into the engine's units.

    model: made by `empty_model`.
    device: for weights and batches.
    recompute: True to compute layers again in backward.
    packs: True if a micro-batch is one row (packing.py), False if it consists of padded rows.
    rank: this rank's number, so that ranks draw different numbers for dropout.
    unreached: parameters without gradients, to which weight decay does not apply.
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
        self.units = make_units(model, self.unreached)
        self.layout = self._with_layout(None)
        dtype = next(model.parameters()).dtype
        _set_tables(model, dtype)
        for module in model.modules():
            for name, buffer in module._buffers.items():
                module._buffers[name] = None if buffer is None else buffer.to(self.device)
        self._outside, *layers = self._parameters(torch.full((), torch.nan, dtype=dtype, device=self.device))
        blocks = [unit.block for unit in self.units[1:]]
        self._first = layers[0] if layers else None
        self._blocks = [
            Block(block, own, before, after)
            for block, own, before, after in zip(
                blocks, layers, [None, *layers][: len(layers)], [*layers, None][1:], strict=True
            )
            if block is not None
        ]
        for block in self._blocks:
            block.recompute = recompute
        self.head = HeadLoss(model, self._outside)

    def for_engine(self) -> _C.GenericModel:
        """Return `_C.Engine`'s argument `model`. The engine then owns this object."""
        return self._with_layout(self)

    def _with_layout(self, calls: GenericModel | None) -> _C.GenericModel:
        return _C.GenericModel(
            units=self._unit_tensors(trained=True),
            frozen=self._unit_tensors(trained=False),
            vocab_size=int(self.model.config.get_text_config().vocab_size),
            embedding_parameters=weight_of(self.model.get_input_embeddings()).numel(),
            calls=calls,
        )

    def _unit_tensors(self, *, trained: bool) -> list[tuple[str, list[_Tensors]]]:
        suffix = "" if trained else ".frozen"
        return [
            (f"{self.units[at].name}{suffix}", [_describe(info) for info in part if info.tensors])
            for at, part in self.parts(trained=trained)
        ]

    def parts(self, *, trained: bool) -> list[tuple[int, list[ParameterInfo]]]:
        """Return the engine's trained or frozen units as pairs: index in `units`, and parameters."""
        parts = [(at, unit.part(trained=trained)) for at, unit in enumerate(self.units)]
        return [(at, part) for at, part in parts if part]

    def _parameters(self, nan: torch.Tensor) -> list[LayerParameters]:
        """Replace the modules' parameters by views into the engine's units.

        Return the new parameters, by unit.
        """
        parts: list[list[UnitParameters]] = [[] for _ in self.units]
        for trained, offsets in ((False, self.layout.frozen_places), (True, self.layout.places)):
            for index, (at, part) in enumerate(self.parts(trained=trained)):
                parts[at].append(UnitParameters(index, part, offsets[index], nan, trained=trained))
        return [LayerParameters(units) for units in parts]

    def forward_backward(
        self,
        units: _C.UnitAccess,
        batch: _C.Batch,
        draws: tuple[int, int, int],
        label_smoothing: float,
        loss: torch.Tensor,
    ) -> None:
        """Add a micro-batch's loss to `loss`, float64 [1], and its gradients to the units'.

        Collective.

        draws: seed, step and micro-batch number, from which the random state for dropout is derived.
        """
        with self._pass(units), self._seeded(draws):
            self.model.train()
            with torch.no_grad():
                fused = self.head.can_fuse(self.device)
            with torch.enable_grad(), self._rows(batch) as rows:
                labels = Labels(batch, rows.token_indices, label_smoothing)
                root = self._loss(units, rows, labels, loss, fused=fused)
                root.backward()  # type: ignore[no-untyped-call]
            self._reduce_rest(units)

    def forward_loss(
        self, units: _C.UnitAccess, batch: _C.Batch, label_smoothing: float, loss: torch.Tensor
    ) -> None:
        """Add a micro-batch's loss to `loss`, without dropout and without gradients. Collective."""
        with self._pass(units), torch.no_grad():
            self.model.eval()
            fused = self.head.can_fuse(self.device)
            with self._rows(batch) as rows:
                labels = Labels(batch, rows.token_indices, label_smoothing)
                self._loss(units, rows, labels, loss, fused=fused)

    def logits(self, units: _C.UnitAccess, batch: _C.Batch) -> torch.Tensor:
        """Return logits, float32 [tokens, vocab_size]. Collective."""
        with self._pass(units), torch.no_grad(), self._rows(batch) as rows:
            self.model.eval()
            logits: torch.Tensor = self.model(**rows.inputs(), use_cache=False).logits
            return logits.reshape(-1, logits.shape[-1]).index_select(0, rows.token_indices).float()

    def _loss(
        self,
        units: _C.UnitAccess,
        rows: PaddedBatch | PackedBatch,
        labels: Labels,
        loss: torch.Tensor,
        *,
        fused: bool,
    ) -> torch.Tensor:
        """Add the loss to `loss`, and return the tensor whose backward() computes the gradients."""
        if fused:
            return self.head.add_fused_loss(rows.inputs(), units, labels, loss)
        value = labels.cross_entropy(self.model(**rows.inputs(), use_cache=False).logits)
        loss.add_(value.detach())
        return value

    @contextmanager
    def _rows(self, batch: _C.Batch) -> Iterator[PaddedBatch | PackedBatch]:
        if not self._packs:
            yield PaddedBatch.of(batch)
            return
        row = PackedBatch.of(batch)
        with packed(self.model, row):
            yield row

    def _reduce_rest(self, units: _C.UnitAccess) -> None:
        """Reduce unit 0 and all layers that are not reduced yet.

        A layer is not reduced yet if no call used it, or if backward did not reach its input.
        """
        for block in reversed(self._blocks):
            block.reduce()
        self._outside.reduce(units)

    @contextmanager
    def _pass(self, units: _C.UnitAccess) -> Iterator[None]:
        self._outside.gather(units)
        if self._first is not None:
            self._first.prefetch(units)
        for block in self._blocks:
            block.begin(units)
        try:
            yield
        finally:
            for block in self._blocks:
                block.end()
            self._outside.release(units)

    @contextmanager
    def _seeded(self, draws: tuple[int, int, int]) -> Iterator[None]:
        """Seed torch by micro-batch and rank, so that a resumed run draws the same numbers."""
        name = ",".join(map(str, (*draws, self._rank)))
        seed = int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little") >> 1
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(seed)
            yield


def weight_of(module: nn.Module) -> torch.Tensor:
    """Return an embedding's or linear layer's weight."""
    weight = module.weight
    assert isinstance(weight, torch.Tensor)
    return weight


def _describe(info: ParameterInfo) -> _Tensors:
    return [
        (
            tensor.name,
            list(tensor.shape),
            info.is_decayed,
            info.is_adapter,
            info.is_constant,
            info.is_embedding,
            tensor.file_order,
        )
        for tensor in info.tensors
    ]


def _set_tables(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Convert tables that transformers leaves in float32 to `dtype`: neither parameters nor buffers."""
    for module in model.modules():
        name = _TABLES.get(type(module).__name__, "")
        table = vars(module).get(name)
        if isinstance(table, torch.Tensor):
            setattr(module, name, table.to(dtype))
