"""The loss of labelled tokens: with the head and cross entropy in one where the head is plain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch
from torch import nn
from torch.nn import functional

from fastsft.model.generic.blocks import PlaceParameters

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from fastsft import _C


class HeadLoss:
    """Takes the head's forward over while a loss is computed. parameters: of place 0, which has the head."""

    def __init__(self, model: PreTrainedModel, parameters: PlaceParameters) -> None:
        head = model.get_output_embeddings()
        self.head = head if type(head) is nn.Linear else None
        self._model = model
        self._is_plain: bool | None = None
        if self.head is not None:
            self._own_forward = self.head.forward
            self._place = parameters.find(self.head.weight)

    def is_plain(self, device: torch.device) -> bool:
        """True if the model returns what the head returns: looked at once, with two tokens; collective."""
        if self._is_plain is None:
            self._is_plain = self._looks_plain(device)
        return self._is_plain

    def _looks_plain(self, device: torch.device) -> bool:
        if self.head is None or self.head.bias is not None or self._place is None:
            return False
        seen: list[torch.Tensor] = []
        watch = self.head.register_forward_hook(lambda module, inputs, output: seen.append(output))
        training = self._model.training
        try:
            with torch.no_grad():
                ids = torch.tensor([[0, 1]], device=device)
                self._model.eval()
                logits = self._model(
                    input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False
                ).logits
        finally:
            self._model.train(training)
            watch.remove()
        same = (
            len(seen) == 1 and logits.shape == seen[0].shape and torch.equal(logits.float(), seen[0].float())
        )
        return same and bool(logits.abs().max() > 0)

    def fused(
        self, inputs: dict[str, torch.Tensor], units: _C.UnitAccess, labels: Labels, loss: torch.Tensor
    ) -> torch.Tensor:
        """Add the loss to `loss`; returns what backward starts from."""
        assert self.head is not None
        found: list[torch.Tensor] = []

        def forward(hidden: torch.Tensor) -> torch.Tensor:
            rows = hidden.reshape(-1, hidden.shape[-1]).index_select(0, labels.places)
            found.append(_LinearCrossEntropy.apply(rows, self, units, labels, loss))  # type: ignore[no-untyped-call]
            return hidden.new_zeros(1, 1, 1)

        self.head.forward = forward  # type: ignore[method-assign,assignment]
        try:
            self._model(**inputs, use_cache=False)
        finally:
            self.head.forward = self._own_forward  # type: ignore[method-assign]
        return found[0]

    def write(
        self, rows: torch.Tensor, units: _C.UnitAccess, labels: Labels, loss: torch.Tensor, *, training: bool
    ) -> torch.Tensor | None:
        """The op: adds to `loss`, and in training the weight's gradient to the unit. Gradient of `rows`."""
        assert self._place is not None
        part, at = self._place
        weight = part.parameters[at].data
        if not training:
            torch.ops.fastsft.linear_cross_entropy(
                rows, weight, labels.targets, labels.weights, labels.smoothing, loss, None, None, 0.0, None
            )
            return None
        gradient, beta = None, 0.0
        if part.is_trained:
            offset, size = part.places[at]
            gradient = units.gradient(part.index).narrow(0, offset, size).view(weight.shape)
            beta = 1.0 if units.adds_to_gradient(part.index, offset) else 0.0
        grad_rows = torch.empty_like(rows)
        torch.ops.fastsft.linear_cross_entropy(
            rows,
            weight,
            labels.targets,
            labels.weights,
            labels.smoothing,
            loss,
            grad_rows,
            gradient,
            beta,
            None,
        )
        return grad_rows


class Labels:
    """Labelled tokens: places in the flat padded rows, targets, weights of their losses."""

    def __init__(self, batch: _C.Batch, places: torch.Tensor, smoothing: float) -> None:
        self.places = places[batch.label_positions]
        self.targets, self.weights, self.smoothing = batch.targets, batch.token_weights, smoothing

    def loss_of(self, logits: torch.Tensor) -> torch.Tensor:
        """Sum of weight * cross entropy of logits [rows, width, vocabulary]; float32 inside."""
        rows = logits.reshape(-1, logits.shape[-1]).index_select(0, self.places).float()
        losses = functional.cross_entropy(rows, self.targets, reduction="none")
        if self.smoothing:
            mean = -functional.log_softmax(rows, dim=-1).mean(dim=-1)
            losses = (1 - self.smoothing) * losses + self.smoothing * mean
        total: torch.Tensor = (losses * self.weights).sum()
        return total


class _Context(Protocol):
    needs_input_grad: tuple[bool, ...]
    saved_tensors: tuple[torch.Tensor, ...]

    def save_for_backward(self, *tensors: torch.Tensor) -> None: ...


class _LinearCrossEntropy(torch.autograd.Function):
    """The op computes gradients with the loss; backward hands that of the rows on."""

    @staticmethod
    def forward(
        ctx: _Context,
        rows: torch.Tensor,
        head: HeadLoss,
        units: _C.UnitAccess,
        labels: Labels,
        loss: torch.Tensor,
    ) -> torch.Tensor:
        gradient = head.write(rows.contiguous(), units, labels, loss, training=ctx.needs_input_grad[0])
        if gradient is not None:
            ctx.save_for_backward(gradient)
        return rows.new_zeros(())

    @staticmethod
    def backward(ctx: _Context, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient, None, None, None, None
