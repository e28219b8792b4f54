"""Linear layers in 8-bit floats in plain torch, in a model of transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import reference

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def as_8_bits(x: Tensor, kind: torch.dtype, *, rowwise: bool, power_of_2: bool) -> Tensor:
    """Return what the bytes and scales of x mean, in float32."""
    values, scales = reference.fp8_quantize(x, kind, rowwise=rowwise, power_of_2=power_of_2)
    return values.float() * scales[:, None]


class Fp8Product(torch.autograd.Function):
    """x W^T of both operands in 8 bits, in bfloat16; backward has the weight in one scale.

    With `wgrad` the weight gradient is a product of 8 bits, and `rowwise` has a scale for each row that is
    added up in backward.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, scaling: str, grad_kind: torch.dtype, wgrad: bool
    ) -> Tensor:
        """Multiply x [tokens, inputs] by a weight [outputs, inputs]."""
        ctx.save_for_backward(x, weight)
        ctx.rowwise, ctx.grad_kind, ctx.wgrad = scaling == "rowwise", grad_kind, wgrad
        left, right = (as_8_bits(m, E4M3, rowwise=ctx.rowwise, power_of_2=ctx.rowwise) for m in (x, weight))
        return (left @ right.T).bfloat16()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        """Return the gradients of x and of the weight."""
        (grad,), (x, weight) = grads, ctx.saved_tensors
        rowwise, wgrad = ctx.rowwise, ctx.wgrad
        left = as_8_bits(grad, ctx.grad_kind, rowwise=rowwise, power_of_2=rowwise)
        right = as_8_bits(weight.T, E4M3, rowwise=rowwise and wgrad, power_of_2=rowwise)
        turned = [grad.float().T, x.float().T]
        if wgrad:
            turned = [
                as_8_bits(each.T, kind, rowwise=rowwise, power_of_2=rowwise)
                for each, kind in ((grad, ctx.grad_kind), (x, E4M3))
            ]
        return (left @ right.T).bfloat16(), (turned[0] @ turned[1].T).bfloat16(), None, None, None


def put_in_8_bits(
    model: nn.Module, scaling: str, grad_kind: torch.dtype, layers: Callable[[int], bool], *, wgrad: bool
) -> None:
    """Let the linear layers of the blocks that `layers` takes multiply by Fp8Product."""
    for name, module in model.named_modules():
        if not isinstance(module, nn.Linear) or not name.startswith("model.layers."):
            continue
        if layers(int(name.split(".")[2])):
            module.forward = product_of(module, scaling, grad_kind, wgrad)  # type: ignore[method-assign]


def product_of(
    module: nn.Linear, scaling: str, grad_kind: torch.dtype, wgrad: bool
) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        made: Tensor = Fp8Product.apply(rows, module.weight, scaling, grad_kind, wgrad)
        return made.reshape(*x.shape[:-1], -1)

    return forward


def add_adapters(model: nn.Module, matrices: dict[str, Tensor], scale: float) -> dict[str, Tensor]:
    """Let linear layers add scale * x A^T B^T in bfloat16; return A and B, which get gradients."""
    made = {name: value.bfloat16().requires_grad_() for name, value in matrices.items()}
    for name, module in model.named_modules():
        if (a := made.get(f"{name}.lora_A.weight")) is not None:
            b = made[f"{name}.lora_B.weight"]
            module.forward = sum_of(module.forward, a, b, scale)  # type: ignore[method-assign]
    return made


def sum_of(
    base: Callable[[Tensor], Tensor], a: Tensor, b: Tensor, scale: float
) -> Callable[[Tensor], Tensor]:
    return lambda x: base(x) + scale * (x @ a.T) @ b.T
