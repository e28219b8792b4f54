"""Computes the targets' loss.

If the logits are a plain head's output, one op fuses head and cross entropy. Otherwise, the loss is
computed from the logits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch
from torch import nn
from torch.nn import functional

from fastsft.model.generic.blocks import LayerParameters

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from fastsft import _C


class HeadLoss:
    """Replaces the head's forward method while a loss is computed.

    parameters: unit 0, which contains the head's weight.
    """

    def __init__(self, model: PreTrainedModel, parameters: LayerParameters) -> None:
        head = model.get_output_embeddings()
        self.head = head if type(head) is nn.Linear else None
        self._model = model
        self._can_fuse: bool | None = None
        if self.head is not None:
            self._own_forward = self.head.forward
            self._weight = parameters.find(self.head.weight)

    def can_fuse(self, device: torch.device) -> bool:
        """Return True if the model's logits are its head's output. Collective.

        The first call tries it with a two-token row.
        """
        if self._can_fuse is None:
            self._can_fuse = self._returns_head_output(device)
        return self._can_fuse

    def _returns_head_output(self, device: torch.device) -> bool:
        if self.head is None or self.head.bias is not None or self._weight is None:
            return False
        outputs: list[torch.Tensor] = []
        hook = self.head.register_forward_hook(lambda module, inputs, output: outputs.append(output))
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
            hook.remove()
        return (
            len(outputs) == 1
            and logits.shape == outputs[0].shape
            and torch.equal(logits.float(), outputs[0].float())
            and bool(logits.abs().max() > 0)
        )

    def add_fused_loss(
        self, inputs: dict[str, torch.Tensor], units: _C.UnitAccess, labels: Labels, loss: torch.Tensor
    ) -> torch.Tensor:
        """Add the loss to `loss`, and return the tensor whose backward() computes the gradients."""
        assert self.head is not None
        roots: list[torch.Tensor] = []

        def forward(hidden: torch.Tensor) -> torch.Tensor:
            rows = hidden.reshape(-1, hidden.shape[-1]).index_select(0, labels.token_indices)
            roots.append(_LinearCrossEntropy.apply(rows, self, units, labels, loss))  # type: ignore[no-untyped-call]
            return hidden.new_zeros(1, 1, 1)

        self.head.forward = forward  # type: ignore[method-assign,assignment]
        try:
            self._model(**inputs, use_cache=False)
        finally:
            self.head.forward = self._own_forward  # type: ignore[method-assign]
        return roots[0]

    def run_op(
        self, rows: torch.Tensor, units: _C.UnitAccess, labels: Labels, loss: torch.Tensor, *, training: bool
    ) -> torch.Tensor | None:
        """Run the fused op, which adds to `loss`.

        In training, return the gradient of `rows`, and add the gradient of the head's weight to its unit.
        """
        assert self._weight is not None
        part, at = self._weight
        weight = part.parameters[at].data
        if not training:
            torch.ops.fastsft.linear_cross_entropy(
                rows, weight, labels.targets, labels.weights, labels.smoothing, loss, None, None, 0.0, None
            )
            return None
        gradient, beta = None, 0.0
        if part.is_trained:
            offset, size = part.ranges[at]
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
    """A micro-batch's targets: indices in the model's flattened rows, token ids, and loss weights."""

    def __init__(self, batch: _C.Batch, token_indices: torch.Tensor, smoothing: float) -> None:
        self.token_indices = token_indices[batch.label_positions]
        self.targets, self.weights, self.smoothing = batch.targets, batch.token_weights, smoothing

    def cross_entropy(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the weighted sum of float32 cross entropies for logits [rows, width, vocab_size]."""
        rows = logits.reshape(-1, logits.shape[-1]).index_select(0, self.token_indices).float()
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
    """Runs the fused op, which computes gradients together with the loss.

    Backward returns the gradient of `rows`.
    """

    @staticmethod
    def forward(
        ctx: _Context,
        rows: torch.Tensor,
        head: HeadLoss,
        units: _C.UnitAccess,
        labels: Labels,
        loss: torch.Tensor,
    ) -> torch.Tensor:
        gradient = head.run_op(rows.contiguous(), units, labels, loss, training=ctx.needs_input_grad[0])
        if gradient is not None:
            ctx.save_for_backward(gradient)
        return rows.new_zeros(())

    @staticmethod
    def backward(ctx: _Context, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient, None, None, None, None
