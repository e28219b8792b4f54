"""Share of the memory bandwidth that each fused op reaches.

usage: python benchmarks/bench_ops.py [--smoke]

Bytes are those that the formula must move (each input read once, each output written once), so a share of 1
is the roofline of the reference GPU, 4.3 TB/s. Sizes are those of a 7B model at 16k tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fastsft import _C  # noqa: F401  registers torch.ops.fastsft
from gpu_timing import MEASURED_BYTES_PER_SECOND, Budget, alternate, device, parser, show, write

OPS = torch.ops.fastsft


@dataclass
class Case:
    name: str
    nbytes: int
    run: Callable[[], None]


@dataclass
class Sizes:
    tokens: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    parameters: int


FULL = Sizes(16384, 4096, 11008, 32, 32, 128, 32000, 2**28)
SMOKE = Sizes(64, 128, 344, 4, 2, 32, 500, 2**12)


def size_of(*tensors: Tensor) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def norm_cases(s: Sizes, where: torch.device) -> list[Case]:
    x, residual, out, total = (torch.randn(s.tokens, s.hidden, device=where).bfloat16() for _ in range(4))
    weight, rstd = torch.ones(s.hidden, device=where).bfloat16(), torch.ones(s.tokens, device=where)
    grad_weight = torch.zeros(s.hidden, device=where)
    return [
        Case("rms_norm", size_of(x, out, rstd), lambda: OPS.rms_norm(x, None, weight, 1e-5, None, out, rstd)),
        Case(
            "rms_norm_residual",
            size_of(x, residual, total, out, rstd),
            lambda: OPS.rms_norm(x, residual, weight, 1e-5, total, out, rstd),
        ),
        Case(
            "rms_norm_backward",
            size_of(x, out, total, total, rstd),
            lambda: OPS.rms_norm_backward(out, x, weight, rstd, total, grad_weight, 1.0),
        ),
    ]


def head_cases(s: Sizes, where: torch.device) -> list[Case]:
    rotated = (s.heads + s.kv_heads) * s.head_dim
    qkv = torch.randn(s.tokens, rotated + s.kv_heads * s.head_dim, device=where).bfloat16()
    other, weight = torch.randn_like(qkv), torch.ones(2, s.head_dim, device=where).bfloat16()
    cos, sin = torch.randn(2, 2048, s.head_dim // 2, device=where)
    positions = (torch.arange(s.tokens, device=where) % 2048).int()
    rstd = torch.ones(s.tokens, s.heads + s.kv_heads, device=where)
    grad_weight, bias = torch.zeros(2, s.head_dim, device=where), torch.zeros(qkv.shape[1], device=where)
    bias_bf16, part = bias.bfloat16(), rotated * s.tokens * 2
    heads = (s.heads, s.kv_heads)
    return [
        Case("rope", 2 * part, lambda: OPS.rope(qkv, cos, sin, positions, sum(heads), False)),
        Case("qk_norm", size_of(qkv, other), lambda: OPS.qk_norm(qkv, weight, *heads, 1e-6, other, rstd)),
        Case(
            "qk_norm_backward",
            3 * part,
            lambda: OPS.qk_norm_backward(other, qkv, weight, rstd, *heads, grad_weight, 1.0),
        ),
        Case("add_bias", 2 * qkv.nbytes, lambda: OPS.add_bias(qkv, bias_bf16)),
        Case("bias_backward", qkv.nbytes, lambda: OPS.bias_backward(qkv, bias, 1.0)),
    ]


def mlp_cases(s: Sizes, where: torch.device) -> list[Case]:
    gate_up = torch.randn(s.tokens, 2 * s.intermediate, device=where).bfloat16()
    out, grad = torch.randn(s.tokens, s.intermediate, device=where).bfloat16(), torch.empty_like(gate_up)
    return [
        Case("swiglu", size_of(gate_up, out), lambda: OPS.swiglu(gate_up, out)),
        Case("swiglu_backward", size_of(gate_up, out, grad), lambda: OPS.swiglu_backward(out, gate_up, grad)),
    ]


def embedding_cases(s: Sizes, where: torch.device) -> list[Case]:
    table, ids = (
        torch.randn(s.vocab, s.hidden, device=where),
        torch.randint(0, s.vocab, (s.tokens,), device=where),
    )
    weight, rows = table.bfloat16(), torch.randn(s.tokens, s.hidden, device=where).bfloat16()
    distinct = int(ids.unique().numel())
    return [
        Case("embedding", 2 * rows.nbytes, lambda: OPS.embedding(weight, ids, rows)),
        Case(
            "embedding_backward",
            rows.nbytes + 2 * distinct * s.hidden * 4,
            lambda: OPS.embedding_backward(rows, ids, table),
        ),
    ]


def optimizer_cases(s: Sizes, where: torch.device) -> list[Case]:
    param, grad, exp_avg = (torch.randn(s.parameters, device=where) for _ in range(3))
    exp_avg_sq, copy = (
        torch.rand(s.parameters, device=where),
        torch.empty(s.parameters, device=where).bfloat16(),
    )
    control = torch.tensor([1.0, 1.0, 1.0, 1.0], dtype=torch.float64, device=where)
    total = torch.zeros(1, dtype=torch.float64, device=where)
    moved = 2 * size_of(param, exp_avg, exp_avg_sq) + size_of(grad, copy)
    return [
        Case("norm_squared", grad.nbytes, lambda: OPS.norm_squared(grad, total)),
        Case(
            "adamw",
            moved,
            lambda: OPS.adamw(param, copy, grad, exp_avg, exp_avg_sq, control, 1e-5, 0.9, 0.999, 1e-8, 0.0),
        ),
    ]


def main() -> None:
    args = parser(__doc__.splitlines()[0]).parse_args()
    where, budget, rows = device(args.smoke), Budget(args.seconds), []
    sizes = SMOKE if args.smoke else FULL
    for make in (norm_cases, head_cases, mlp_cases, embedding_cases, optimizer_cases):
        for case in [] if budget.spent() else make(sizes, where):
            seconds = alternate({"ours": case.run}, where)["ours"]
            rate = case.nbytes / seconds
            rows.append(
                {
                    "op": case.name,
                    "microseconds": seconds * 1e6,
                    "bytes": case.nbytes,
                    "terabytes_per_second": rate / 1e12,
                    "share_of_4.3": rate / MEASURED_BYTES_PER_SECOND,
                }
            )
            show(rows[-1])
            write("ops_smoke" if args.smoke else "ops", rows, vars(sizes), args.results)


if __name__ == "__main__":
    main()
