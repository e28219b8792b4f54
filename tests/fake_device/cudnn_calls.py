"""Compute attention with cuDNN on the fake device, and compare with the formula in float64.

usage: python cudnn_calls.py CASES

CASES: a JSON list of {"heads": [queries, keys, size], "lengths": [...], "window": 0, "dtype": "bfloat16",
"offset": added to the second conversation's length in cuDNN's lists}. Prints a JSON list of the relative
errors of out, log-sum-exp and gradient, in two calls with other values in the scratch memory; null for NaN.
"""

from __future__ import annotations

import json
import sys
from itertools import accumulate, pairwise
from typing import Any

import torch

import reference
from fastsft import _C  # noqa: F401  registers torch.ops.fastsft
from fastsft.model.attention_kernel import Heads, cudnn_inputs, dirty_free_memory

Result = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
DEVICE = torch.device("cuda:0")


def expected_of(case: dict[str, Any], qkv: torch.Tensor, grad_out: torch.Tensor) -> Result:
    (heads, keys, dim), cu = case["heads"], [0, *accumulate(case["lengths"])]
    exact = qkv.double().requires_grad_()
    q, k, v = exact.view(len(qkv), -1, dim).split([heads, keys, keys], dim=1)
    out = reference.attention(q, k, v, cu, window=case["window"] or None).flatten(1)
    out.backward(grad_out.double())
    assert exact.grad is not None
    return out.detach(), lse_of(q.detach(), k.detach(), cu, case["window"]), exact.grad


def lse_of(q: torch.Tensor, k: torch.Tensor, cu: list[int], window: int) -> torch.Tensor:
    """Return the log of the sum of exponentials, [tokens, heads]."""
    parts = []
    for begin, end in pairwise(cu):
        keys = k[begin:end].repeat_interleave(q.shape[1] // k.shape[1], dim=1)
        scores = torch.einsum("ihd,jhd->hij", q[begin:end], keys) * q.shape[2] ** -0.5
        i, j = torch.arange(end - begin)[:, None], torch.arange(end - begin)
        seen = (j <= i) & (j > i - window if window else True)
        parts.append(scores.masked_fill(~seen, -torch.inf).logsumexp(-1).T)
    return torch.cat(parts)


def computed(case: dict[str, Any], qkv: torch.Tensor, grad_out: torch.Tensor) -> Result:
    heads, keys, dim = case["heads"]
    lengths, tokens = case["lengths"], len(qkv)
    ends = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32).to(DEVICE)
    lists, shapes = cudnn_inputs(Heads(heads, keys, dim), lengths, DEVICE)
    lists[1] += case["offset"]
    on_device, grad_out = qkv.to(DEVICE), grad_out.to(DEVICE)
    out, grad = torch.full_like(grad_out, torch.nan), torch.full_like(on_device, torch.nan)
    lse = torch.full((heads, tokens), torch.nan, device=DEVICE)
    shape, rest = (heads, keys, dim**-0.5, case["window"]), (max(lengths), 0.0, lists, shapes)
    dirty_free_memory(DEVICE)
    torch.ops.fastsft.attention(on_device, ends, *shape, out, lse, *rest)
    dirty_free_memory(DEVICE)
    torch.ops.fastsft.attention_backward(grad_out, on_device, out, lse, ends, *shape, grad, *rest)
    return out.cpu(), lse.cpu().view(tokens, heads), grad.cpu()


def error(ours: torch.Tensor, exact: torch.Tensor) -> float | None:
    value = float((ours.double() - exact).norm() / exact.norm())
    return value if value == value else None


def main() -> None:
    cases = json.loads(sys.argv[1])
    torch.manual_seed(0)
    found = []
    for case in cases:
        (heads, keys, dim), tokens = case["heads"], sum(case["lengths"])
        qkv = torch.randn(tokens, (heads + 2 * keys) * dim).to(getattr(torch, case["dtype"]))
        grad_out = torch.randn(tokens, heads * dim).to(qkv.dtype)
        exact = expected_of(case, qkv, grad_out)
        for _ in range(2):
            ours = computed(case, qkv, grad_out)
            found.append([error(a, b) for a, b in zip(ours, exact, strict=True)])
    print(json.dumps(found))


if __name__ == "__main__":
    main()
