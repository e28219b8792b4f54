"""Variable-length causal attention: our op by flash and by cuDNN, and libtorch's flash, forward and backward.

usage: python benchmarks/bench_attention.py [--smoke]

Conversations are laid end to end, the longest first, up to a number of tokens: real lengths
(conversation_lengths.json, mean 566 and 92), full rows of 2048 and 8192, and 512. TFLOP/s count the scores
below the diagonal only: forward 2 * sum(len^2) * heads * head_dim, backward 2.5 times that. A side that
cannot run a case says why. libtorch's own cuDNN is no side: torch 2.11 describes its backward pass for
conversations of at most head_dim tokens.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, cycle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fastsft import _C  # noqa: F401  registers torch.ops.fastsft
from fastsft.model.attention_kernel import Heads, cudnn_inputs
from gpu_timing import Budget, alternate, device, parser, show, write

# heads, key/value heads, head size
MODELS = {"7b": (32, 32, 128), "8b": (32, 8, 128), "1b": (32, 8, 64)}
TOKENS = 16384


@dataclass
class Case:
    """One batch: fused qkv, the gradient of the result, and where conversations begin."""

    qkv: Tensor
    grad_out: Tensor
    boundaries: Tensor
    longest: int
    heads: tuple[int, int, int]

    def split(self) -> tuple[Tensor, ...]:
        heads, kv_heads, dim = self.heads
        return self.qkv.view(len(self.qkv), -1, dim).split([heads, kv_heads, kv_heads], dim=1)


Sides = tuple[Callable[[], Any], Callable[[], Any]]


def ours(case: Case, use_cudnn: bool = False) -> Sides:
    heads, kv_heads, dim = case.heads
    out, grad = torch.empty_like(case.grad_out), torch.empty_like(case.qkv)
    lse = torch.empty(heads, len(case.qkv), device=case.qkv.device)
    shape = (heads, kv_heads, dim**-0.5, 0)
    ops, cu, longest = torch.ops.fastsft, case.boundaries, case.longest
    cudnn = (None, [])
    if use_cudnn:
        lengths = cu.diff().tolist()
        cudnn = cudnn_inputs(Heads(heads, kv_heads, dim), lengths, case.qkv.device)

    def forward() -> Tensor:
        ops.attention(case.qkv, cu, *shape, out, lse, longest, 0.0, *cudnn)
        return out

    def backward() -> Tensor:
        ops.attention_backward(case.grad_out, case.qkv, out, lse, cu, *shape, grad, longest, 0.0, *cudnn)
        return grad

    return forward, backward


def flash(case: Case) -> Sides:
    """Flash without the copies into fused rows that our op makes."""
    cu, n, saved = case.boundaries, case.longest, []
    grad_out, scale = case.grad_out.view(len(case.qkv), case.heads[0], -1), case.heads[2] ** -0.5

    def forward() -> Tensor:
        saved[:] = torch.ops.aten._flash_attention_forward(
            *case.split(), cu, cu, n, n, 0.0, True, False, scale=scale
        )
        return saved[0].flatten(1)

    def backward() -> Tensor:
        grads = torch.ops.aten._flash_attention_backward(
            grad_out,
            *case.split(),
            saved[0],
            saved[1],
            cu,
            cu,
            n,
            n,
            0.0,
            True,
            saved[2],
            saved[3],
            scale=scale,
        )
        return torch.cat(grads, dim=1).flatten(1)

    return forward, backward


def ours_by_cudnn(case: Case) -> Sides:
    return ours(case, use_cudnn=True)


SIDES = {"ours": ours, "ours_by_cudnn": ours_by_cudnn, "flash": flash}


def lengths_of(workload: str, tokens: int) -> list[int]:
    """Lengths that add up to `tokens`; the last conversation is cut."""
    if workload.isdigit():
        source: Sequence[int] = [int(workload)]
    else:
        source = json.loads((Path(__file__).parent / "conversation_lengths.json").read_text())[workload]
    result: list[int] = []
    for length in cycle(source):
        left = tokens - sum(result)
        if left == 0:
            return sorted(result, reverse=True)  # as micro-batches have them for cuDNN
        result.append(min(left, length))
    return result


def make_case(lengths: Sequence[int], heads: tuple[int, int, int], where: torch.device) -> Case:
    tokens, (queries, keys, dim) = sum(lengths), heads
    return Case(
        qkv=torch.randn(tokens, (queries + 2 * keys) * dim, device=where).bfloat16(),
        grad_out=torch.randn(tokens, queries * dim, device=where).bfloat16(),
        boundaries=torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=where),
        longest=max(lengths),
        heads=heads,
    )


def difference(one: Tensor, other: Tensor) -> float:
    return ((one.float() - other.float()).norm() / other.float().norm()).item()


def runnable(case: Case, names: Sequence[str]) -> tuple[dict[str, Sides], dict[str, str]]:
    """The sides that give what ours gives, forward and backward, and why the others do not count."""
    sides, problems, expected = {}, {}, {}
    for name in names:
        try:
            forward, backward = SIDES[name](case)
            results = forward().clone(), backward().clone()
        except Exception as error:
            if any(words in str(error) for words in ("CUDA error", "illegal")):
                raise  # the device's context is broken: whatever follows fails as well
            problems[name] = str(error).splitlines()[0][:200]
            continue
        expected = expected or dict(zip(("forward", "backward"), results, strict=True))
        errors = [difference(made, right) for made, right in zip(results, expected.values(), strict=True)]
        if max(errors) < 0.02:
            sides[name] = (forward, backward)
        else:
            problems[name] = f"differs from ours: forward {errors[0]:.1e}, backward {errors[1]:.1e}"
    return sides, problems


def measure(case: Case, lengths: Sequence[int], where: torch.device, rounds: int) -> dict[str, Any]:
    sides, problems = runnable(case, ["ours"] if where.type == "cpu" else list(SIDES))
    flop = 2.0 * sum(length * length for length in lengths) * case.heads[0] * case.heads[2]
    row: dict[str, Any] = {}
    for index, (direction, factor) in enumerate((("forward", 1.0), ("backward", 2.5))):
        seconds = alternate({name: pair[index] for name, pair in sides.items()}, where, rounds=rounds)
        for name, value in seconds.items():
            row[f"{name}_{direction}_us"] = value * 1e6
            row[f"{name}_{direction}_tflops"] = factor * flop / value / 1e12
    return {**row, **{f"{name}_left_out": problem for name, problem in problems.items()}}


def main() -> None:
    args = parser(__doc__.splitlines()[0]).parse_args()
    where, budget, rows = device(args.smoke), Budget(args.seconds), []
    tokens = 300 if args.smoke else TOKENS
    for workload in ("multi_turn", "short", "2048", "8192", "512"):
        for model, heads in MODELS.items():
            if budget.spent():
                print(f"out of time before {workload} of {model}")
                break
            lengths = lengths_of(workload, tokens)
            case = make_case(lengths, (4, 2, 16) if args.smoke else heads, where)
            about = {
                "workload": workload,
                "model": model,
                "conversations": len(lengths),
                "longest": max(lengths),
            }
            rows.append({**about, **measure(case, lengths, where, rounds=1 if args.smoke else 5)})
            show(rows[-1])
            settings = {"dtype": "bfloat16", "tokens": tokens}
            write("attention_smoke" if args.smoke else "attention", rows, settings, args.results)


if __name__ == "__main__":
    main()
