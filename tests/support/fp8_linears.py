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
    """x W^T of both operands in 8 bits, in bfloat16; backward has the weight in one scale."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, scaling: str, grad_kind: torch.dtype) -> Tensor:
        """Multiply x [tokens, inputs] by a weight [outputs, inputs]."""
        ctx.save_for_backward(x, weight)
        ctx.rowwise, ctx.grad_kind = scaling == "rowwise", grad_kind
        left, right = (as_8_bits(m, E4M3, rowwise=ctx.rowwise, power_of_2=ctx.rowwise) for m in (x, weight))
        return (left @ right.T).bfloat16()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """Return the gradients: of x by a product of 8 bits, of the weight by one of the operands before."""
        (grad,), (x, weight) = grads, ctx.saved_tensors
        left = as_8_bits(grad, ctx.grad_kind, rowwise=ctx.rowwise, power_of_2=ctx.rowwise)
        right = as_8_bits(weight, E4M3, rowwise=False, power_of_2=ctx.rowwise)
        return (left @ right).bfloat16(), (grad.float().T @ x.float()).bfloat16(), None, None


def put_in_8_bits(
    model: nn.Module, scaling: str, grad_kind: torch.dtype, layers: Callable[[int], bool]
) -> None:
    """Let the linear layers of the blocks that `layers` takes multiply by Fp8Product."""
    for name, module in model.named_modules():
        if not isinstance(module, nn.Linear) or not name.startswith("model.layers."):
            continue
        if layers(int(name.split(".")[2])):
            module.forward = product_of(module, scaling, grad_kind)  # type: ignore[method-assign]


def product_of(module: nn.Linear, scaling: str, grad_kind: torch.dtype) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        made: Tensor = Fp8Product.apply(rows, module.weight, scaling, grad_kind)
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
