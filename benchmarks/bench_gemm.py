"""The matrix products of a training step, ours (cuBLASLt) against torch.mm and the roofline.

usage: python benchmarks/bench_gemm.py [--smoke]

Twelve weights: qkv, output, gate_up, down, and the head of a 7B model (Vicuna) and of an 8B model (Llama-3),
and the two square products between them. Each at 2, 3, 4 and 8 full rows of 2,048 tokens without the last
one, which nothing is learned from. Forward, gradient of the input, and gradient of the weight (added to in
float32, and in bfloat16 as one rank does), in bfloat16. The head goes in chunks of tokens. Both sides are
compared before they are timed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from fastsft import _C  # noqa: F401  registers torch.ops.fastsft
from gpu_timing import MEASURED_TFLOPS, Budget, alternate, device, parser, show, write

# name: (rows of the weight, columns of the weight)
WEIGHTS = {
    "7b.qkv": (12288, 4096),
    "7b.output": (4096, 4096),
    "7b.gate_up": (22016, 4096),
    "7b.down": (4096, 11008),
    "7b.head": (32000, 4096),
    "13b.qkv": (15360, 5120),
    "13b.gate_up": (27648, 5120),
    "13b.down": (5120, 13824),
    "8b.qkv": (6144, 4096),
    "8b.gate_up": (28672, 4096),
    "8b.down": (4096, 14336),
    "8b.head": (128256, 4096),
}
TOKENS = (8 * 2047, 3 * 2047, 4 * 2047, 2 * 2047)  # those of gpu.sh's 7B rows first


def products(name: str, tokens: int, shape: tuple[int, int], where: torch.device) -> Iterator[dict[str, Any]]:
    """The three products that a weight [n, k] meets."""
    n, k = shape
    x, y = (torch.randn(tokens, size, device=where).bfloat16() for size in (k, n))
    weight = torch.randn(n, k, device=where).bfloat16()
    common = {"weight": name, "tokens": tokens, "flop": 2.0 * tokens * n * k}
    yield {**common, "pass": "forward", "operands": (x, weight, torch.empty_like(y), False, True, 0.0)}
    yield {**common, "pass": "grad_input", "operands": (y, weight, torch.empty_like(x), False, False, 0.0)}
    total = torch.zeros(n, k, device=where)
    yield {**common, "pass": "grad_weight", "operands": (y, x, total, True, False, 1.0)}
    if not name.endswith("head"):
        yield {**common, "pass": "grad_weight_bf16", "operands": (y, x, total.bfloat16(), True, False, 1.0)}


def torch_side(operands: tuple[Any, ...]) -> torch.Tensor:
    """What torch offers: mm, and where the result is float32 a bfloat16 product copied or added to it."""
    a, b, out, transpose_a, transpose_b, beta = operands
    left, right = a.T if transpose_a else a, b.T if transpose_b else b
    if beta == 0 and out.dtype == left.dtype:
        return torch.mm(left, right, out=out)
    if beta == 0:
        return out.copy_(torch.mm(left, right))
    return out.add_(torch.mm(left, right))


def check(operands: tuple[Any, ...]) -> float:
    """Relative difference of both sides on the same operands."""
    a, b, out, *rest = operands
    ours, theirs = torch.zeros_like(out), torch.zeros_like(out)
    torch.ops.fastsft.gemm(a, b, ours, *rest)
    torch_side((a, b, theirs, *rest))
    error = ((ours.float() - theirs.float()).norm() / theirs.float().norm()).item()
    if not error < 1e-2:
        raise SystemExit(f"the two sides differ by {error:.1e}: the timing is void")
    return error


def best_candidate(operands: tuple[Any, ...], where: torch.device, default: float) -> dict[str, float]:
    """The fastest of cuBLASLt's proposals; afterwards its first one is chosen again."""
    if where.type == "cpu":
        return {}
    run = torch.ops.fastsft.gemm_candidate
    count = run(*operands, 0)
    sides = {str(i): (lambda i=i: run(*operands, i)) for i in range(count)}
    seconds = alternate(sides, where, rounds=3, target=0.005)
    run(*operands, 0)
    best = min(seconds, key=seconds.__getitem__)
    return {"candidates": count, "best_candidate": int(best), "best_gain": default / seconds[best]}


def measure(product: dict[str, Any], where: torch.device) -> dict[str, Any]:
    operands = product.pop("operands")
    error, flop = check(operands), product.pop("flop")
    seconds = alternate(
        {"torch": lambda: torch_side(operands), "ours": lambda: torch.ops.fastsft.gemm(*operands)}, where
    )
    return {
        **product,
        "ours_tflops": flop / seconds["ours"] / 1e12,
        "torch_tflops": flop / seconds["torch"] / 1e12,
        "ours_over_torch": seconds["torch"] / seconds["ours"],
        "share_of_790": flop / seconds["ours"] / 1e12 / MEASURED_TFLOPS,
        **best_candidate(operands, where, seconds["ours"]),
        "difference": error,
    }


def main() -> None:
    args = parser(__doc__.splitlines()[0]).parse_args()
    where, budget, rows = device(args.smoke), Budget(args.seconds), []
    for tokens in (64,) if args.smoke else TOKENS:
        for name, (n, k) in WEIGHTS.items():
            if budget.spent():
                print(f"out of time before {name} at {tokens} tokens")
                break
            if args.smoke:
                n, k = (max(16, size // 256 // 16 * 16) for size in (n, k))
            head = name.endswith("head")
            count = torch.ops.fastsft.plan_logits(tokens, n, 2)[0] if head else tokens
            for product in products(name, count, (n, k), where):
                rows.append(measure(product, where))
                show(rows[-1])
                write("gemm_smoke" if args.smoke else "gemm", rows, {"dtype": "bfloat16"}, args.results)


if __name__ == "__main__":
    main()
