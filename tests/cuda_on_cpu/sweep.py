"""Small calls of every CUDA op that reach every instance of every kernel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise, product
from typing import Any

import torch
from torch import Tensor

import reference

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
STATES = FLOATS[:2]  # of gradients and moments


@dataclass(frozen=True)
class Call:
    """One op and its arguments, for OpDevice.agree with `options`."""

    op: str
    args: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def shapes(self) -> str:
        """What tells calls of one op apart."""
        texts = (f"{tuple(a.shape)} {a.dtype}" for a in self.args if isinstance(a, Tensor))
        return ", ".join(texts).replace("torch.", "")


def calls() -> Iterator[Call]:
    """Every call; random numbers are drawn as it goes on."""
    for group in (
        *(norms, rows, embeddings, losses, optimizer, factored, in_8_bits, attention, frozen, routing),
        *(grouped_products, fp8, fused_fp8),
    ):
        yield from group()


def norms() -> Iterator[Call]:
    # Accesses of a row: two and four a thread of a warp, of blocks of up to 128, 512 and 1,024 threads, and
    # more than those hold. The last two have more rows than there are blocks: the backward pass goes round a
    # loop that has barriers in it.
    for dtype, accesses in product(FLOATS, (33, 99, 201, 261, 1501, 3001, 4101)):
        for hidden in (accesses, 16 // dtype.itemsize * accesses) if accesses < 4096 else (accesses,):
            yield from rms_norm(dtype, 5, hidden)
    yield from rms_norm(torch.float32, 520, 1032)
    yield from rms_norm(torch.float32, 514, 4101)
    for dtype, dim in product(FLOATS, (16, 10, 256)):
        x, grad = (torch.randn(37, 4 * dim).to(dtype) for _ in range(2))
        weight, rstd = torch.randn(2, dim).to(dtype), torch.rand(37, 3) + 0.5
        yield Call("qk_norm", (x, weight, 2, 1, 1e-6, torch.zeros_like(x), rstd, 1.0))
        yield Call("qk_norm_backward", (grad, x, weight, rstd, 2, 1, torch.randn(2, dim), 1.0, 1.0))
        yield Call("qk_norm_backward", (grad, x, weight, rstd, 2, 1, None, 1.0))


def rms_norm(dtype: torch.dtype, tokens: int, hidden: int) -> Iterator[Call]:
    x, grad, stream = (torch.randn(tokens, hidden).to(dtype) for _ in range(3))
    weight, rstd = torch.randn(hidden).to(dtype), torch.rsqrt(x.float().square().mean(-1) + 1e-5)
    if tokens < 512:
        yield Call("rms_norm", (x, stream, weight, 1e-5, stream, torch.zeros_like(x), rstd, 1.0))
    for remake in (False, True):
        held = torch.randn(hidden)
        yield Call("rms_norm_backward", (grad, x, weight, rstd, stream, held, 1.0, remake, 1.0))


def rows() -> Iterator[Call]:
    for dtype, dim in product(FLOATS, (64, 10)):
        x, positions = torch.randn(21, 3 * dim + 5).to(dtype), torch.randint(0, 32, (21,), dtype=torch.int32)
        cos, sin = reference.rope_tables(torch.arange(32), reference.rope_inverse_frequencies(dim))
        yield Call(
            "rope", (x[:, : 3 * dim] if dim == 10 else x[:, 5:].contiguous(), cos, sin, positions, 3, True)
        )
    for dtype, width in product(FLOATS, (1376, 33)):
        gate_up, grad = torch.randn(17, 2 * width).to(dtype), torch.randn(17, width).to(dtype)
        for gelu in (False, True):
            yield Call("swiglu", (gate_up, torch.zeros_like(grad), gelu))
            yield Call("swiglu_backward", (grad, gate_up, torch.zeros_like(gate_up), False, gelu))
            yield Call("swiglu_backward", (grad, gate_up, gate_up.clone(), True, gelu))
        yield Call("add_bias", (gate_up, gate_up[3].clone()))
        yield Call("bias_backward", (gate_up, torch.randn(2 * width), 1.0))
        keys = torch.arange(17, dtype=torch.int32) * 7919 - 100
        yield Call("dropout", (grad, keys, 0.3, 2**40 + 5, 5, torch.randn(17, width).to(dtype), 1.0))


def embeddings() -> Iterator[Call]:
    for dtype, hidden in product(FLOATS, (1088, 33)):
        weight, ids = torch.randn(11, hidden).to(dtype), torch.randint(0, 11, (50,))
        yield Call("embedding", (weight, ids, torch.zeros(50, hidden).to(dtype)))
        yield Call("embedding_backward", (torch.randn(50, hidden).to(dtype), ids, torch.randn(11, hidden)))


def losses() -> Iterator[Call]:
    for dtype, vocab in product(FLOATS, (3001, 33)):
        hidden, weight = torch.randn(19, 16).to(dtype), torch.randn(vocab, 16).to(dtype)
        into = (torch.ones(1, dtype=torch.float64), torch.zeros_like(hidden), torch.randn(vocab, 16))
        given = (hidden, weight, torch.randint(0, vocab, (19,)), torch.rand(19), 0.1, *into, 1.0)
        for cap in (0.0, 2.0):
            options = (*given, *[None] * 5, 0.0, cap)
            yield Call("linear_cross_entropy", options, {"sums_within": 1e-5, "kind": "model"})


def optimizer() -> Iterator[Call]:
    options = (3e-3, 0.9, 0.95, 1e-8, 0.1, 2**40 + 5)
    control = torch.tensor([1.0, 1.0, 0.5, 7.0], dtype=torch.float64)
    for split, grad, moments, first in product((False, True), STATES, STATES, (0, 3)):
        master = torch.randn(5003)
        low = (master.view(torch.int32) & 0xFFFF).to(torch.int16)
        state = (low if split else master, reference.upper_half(master), torch.randn(5003).to(grad))
        both = (torch.randn(5003).to(moments), torch.rand(5003).to(moments))
        yield Call("adamw", (*state, *both, control, *options, first), {"kind": "op"})
        if first == 0 and moments == torch.float32:
            yield Call("sgd", (*state, control, 3e-3, 0.1))
    for begin in (0, 1):  # of a master alone
        yield Call("sgd", (torch.randn(5003)[begin:], None, torch.randn(5003)[begin:], control, 3e-3, 0.1))
        yield Call(
            "sgd", (torch.randn(5003)[begin:], None, torch.randn(5003).bfloat16()[begin:], control, 3e-3, 0.1)
        )
    for begin, grad in product((0, 1), STATES):  # and of a split one
        low, high = torch.randint(-99, 99, (5003,)).to(torch.int16), torch.randn(5003).bfloat16()
        held = (low[begin:], high[begin:], torch.randn(5003).to(grad)[begin:])
        yield Call("sgd", (*held, control, 3e-3, 0.1))
    for size in (5003, 8):  # a float16 copy of a whole master
        masters = torch.randn(2, size)
        state = (masters[0], masters[0].half(), masters[1], torch.randn(size), torch.rand(size))
        yield Call("adamw", (*state, control, *options, 0), {"kind": "op"})
        yield Call("sgd", (*state[:3], control, 3e-3, 0.1))
    for dtype, begin in product(STATES, (0, 1)):
        total, x = torch.randn(5003).to(dtype)[begin:], torch.randn(5003)[begin:]
        yield Call("accumulate", (total, x))
        total = torch.ones(1, dtype=torch.float64)
        yield Call("norm_squared", (torch.randn(30011).to(dtype)[begin:], total), {"sums_within": 1e-12})
    yield Call("compute_grad_scale", (torch.tensor([1.0, 9.0, 0.0, 3.0], dtype=torch.float64), 1.0))


def factored() -> Iterator[Call]:
    """Matrices that are cut inside rows, a vector, and more rows than the blocks of a launch take at once."""
    control = torch.tensor([1.0, 1.0, 0.5, 7.0], dtype=torch.float64)
    shapes = ((2, 40, 300, 5), (1, 1, 5003, 0), (1, 5000, 3, 2), (3, 70, 33, 0))
    for dtype, (matrices, rows, columns, first) in product(STATES, shapes):
        size = matrices * rows * columns - 2 * first
        grad, place = torch.randn(size).to(dtype), (first, rows, columns)
        column = torch.rand(matrices * columns) + 0.1
        row = None if rows == 1 else torch.rand(matrices * rows) + 0.1
        sums = tuple(None if each is None else each + 1.0 for each in (row, column))
        norm = torch.full((1,), 3.0 * size, dtype=torch.float64)
        yield Call("adafactor_sums", (grad, control, *sums, *place))
        yield Call("adafactor_moments", (*sums, row, column, control, rows, columns))
        yield Call("adafactor_norm", (grad, control, row, column, norm, *place), {"sums_within": 1e-6})
        master = torch.randn(size)
        low, high = (master.view(torch.int32) & 0xFFFF).to(torch.int16), reference.upper_half(master)
        factors = (grad, control, row, column, norm, size, 1e-2, 0.1, *place)
        for held in ((master, None), (low, high), (master, master.half())):
            yield Call("adafactor_update", (*held, *factors))


def in_8_bits() -> Iterator[Call]:
    """From the first element of a block on and from within one; more blocks than a launch has."""
    control = torch.tensor([1.0, 1.0, 0.5, 7.0], dtype=torch.float64)
    levels = torch.ops.fastsft.adamw8bit_levels()
    for dtype, (size, first) in product(STATES, ((3000, 0), (3000, 700), (256 * 4200, 0))):
        blocks = (first + size - 1) // 256 - first // 256 + 1
        codes = tuple(torch.randint(0, 256, (size,), dtype=torch.uint8) for _ in range(2))
        state = (torch.randn(size).to(dtype), *codes, torch.rand(blocks), torch.rand(blocks))
        options = (levels, control, 3e-3, 0.9, 0.95, 1e-8, 0.1, first)
        master, edge = torch.randn(size), torch.tensor([1.5, 2.5])
        low, high = (master.view(torch.int32) & 0xFFFF).to(torch.int16), reference.upper_half(master)
        edges = (edge, edge.clone()) if first else (None, None)
        for held in ((master, None), (low, high), (master, master.half())):
            yield Call("adamw8bit", (*held, *state, *options, *edges))
        part = tuple(tensor[:200] for tensor in state[:3])
        yield Call(
            "adamw8bit_maxima", (*part, state[3][:1], state[4][:1], levels, control, 0.9, 0.95, torch.rand(2))
        )


def attention() -> Iterator[Call]:
    # Windows that end a tile's reach at its first and at its last row.
    cu, heads = [0, 5, 5, 40, 143], (2, 1)
    shapes = ((40, 0, 0.0), (64, 34, 2.0), (128, 2, 0.0), (128, 0, 1.0), (200, 0, 3.0), (256, 18, 0.0))
    for dtype, (dim, window, cap) in product(FLOATS, shapes):
        tokens, longest = cu[-1], max(end - begin for begin, end in pairwise(cu))
        qkv, grad = torch.randn(tokens, 4 * dim).to(dtype), torch.randn(tokens, 2 * dim).to(dtype)
        shape = (*heads, dim**-0.5, window)
        boundaries, out, lse = (
            torch.tensor(cu, dtype=torch.int32),
            torch.zeros_like(grad),
            torch.zeros(2, tokens),
        )
        yield Call("attention", (qkv, boundaries, *shape, out.clone(), lse.clone(), longest, cap))
        torch.ops.fastsft.attention(qkv, boundaries, *shape, out, lse, longest, cap)
        into = torch.full_like(qkv, torch.nan)
        given = (grad, qkv, out, lse, boundaries, *shape, into, longest, cap)
        yield Call("attention_backward", given, {"kind": "model"})


def frozen() -> Iterator[Call]:
    # 17,001 blocks: more than the warps of a launch, so that they go round their loop, and a group's part.
    for dtype, blocks in product(FLOATS, (1, 300, 17_001)):
        packed = torch.randint(0, 256, (blocks, 33), dtype=torch.uint8)
        scales, levels = torch.rand(1 + -(-blocks // 256)), torch.randn(16 + 256)
        yield Call("nf4_dequantize", (packed, scales, levels, torch.zeros(blocks * 64, dtype=dtype)))


def routing() -> Iterator[Call]:
    """More experts than a warp has lanes, and more pairs than the threads that list them."""
    for dtype, normalize in product(FLOATS, (False, True)):
        logits = torch.randn(41, 70).to(dtype)
        weights, experts = torch.zeros(41, 3).to(dtype), torch.zeros(41, 3, dtype=torch.int32)
        yield Call("route_tokens", (logits, weights, experts, normalize))
        chosen = torch.rand(41, 70).topk(3).indices.int()
        grad, into = torch.randn(41, 3), torch.full_like(logits, torch.nan)
        yield Call("route_tokens_backward", (grad, logits, chosen, into, normalize))
    experts = torch.rand(300, 7).topk(2).indices.int()
    numbers = [torch.zeros(size, dtype=torch.int32) for size in (8, 600)]
    yield Call("group_pairs", (experts, *numbers, torch.zeros_like(experts)))
    pairs = torch.randperm(40).int()
    rows = torch.argsort(pairs).int().view(20, 2)
    for dtype, width in product(FLOATS, (1088, 33)):
        x, weights = torch.randn(20, width).to(dtype), torch.rand(20, 2).to(dtype)
        spread = torch.randn(40, width).to(dtype)
        yield Call("gather_rows", (x, pairs, torch.zeros_like(spread)))
        for given in (weights, None):
            yield Call("combine_rows", (spread, rows, given, x, torch.zeros_like(x)))
        gate_up = torch.randn(40, 2 * width).to(dtype)
        yield Call("expert_swiglu_backward", (spread, gate_up, weights, pairs, torch.zeros(20, 2)))


def grouped_products() -> Iterator[Call]:
    """Groups without rows, of part of a tile and of two; sizes of part of a tile and of more."""
    offsets = torch.tensor([0, 0, 3, 3, 140], dtype=torch.int32)
    for dtype, (inputs, outputs) in product(FLOATS, ((40, 136), (33, 17))):
        x, weights = torch.randn(140, inputs).to(dtype), torch.randn(4, outputs, inputs).to(dtype)
        grad = torch.randn(140, outputs).to(dtype)
        yield Call("grouped_gemm", (x, weights, offsets, torch.full_like(grad, torch.nan), True))
        yield Call("grouped_gemm", (grad, weights, offsets, torch.full_like(x, torch.nan), False))
        held = torch.randn(4, outputs, inputs)
        yield Call("grouped_weight_gradient", (grad, x, offsets, held, 1.0))
        yield Call("grouped_weight_gradient", (grad, x, offsets, torch.full_like(held, torch.nan), 0.0))
        if dtype == torch.bfloat16:
            yield Call("grouped_weight_gradient", (grad, x, offsets, held.bfloat16(), 1.0))


def fused_fp8() -> Iterator[Call]:
    """Norms and SwiGLU that quantise their results, with the plans of `norms`."""
    for accesses in (33, 99, 201, 261, 1501, 3001, 4101):
        for width in (accesses, 8 * accesses) if accesses < 4096 else (accesses, 32800):
            x, out, weight = *torch.randn(2, 5, width).bfloat16(), torch.randn(width).bfloat16()
            rstd, scales, values = *torch.zeros(2, 5), torch.zeros(5, width).to(torch.float8_e4m3fn)
            norm = (x, torch.randn_like(x), weight, 1e-5, torch.zeros_like(x), out, rstd)
            yield Call("rms_norm_fp8", (*norm, values, scales, True, True))
            gate_up = torch.randn(5, 2 * width).bfloat16()
            for gelu in (False, True):
                yield Call("swiglu_fp8", (gate_up, out, values, scales, True, True, gelu))


def fp8() -> Iterator[Call]:
    """Rows of whole accesses and of single elements, tiles that are cut, and words that do not fit."""
    for dtype, (rows, columns) in product(STATES, ((5, 2200), (70, 136), (66, 33))):
        x = torch.randn(rows, columns).to(dtype)
        x[1] = 0
        for kind, power_of_2 in ((torch.float8_e4m3fn, True), (torch.float8_e5m2, False)):
            into = torch.zeros(rows, columns).to(kind), torch.zeros(rows)
            for rowwise in (True, False):
                yield Call("fp8_quantize", (x, rowwise, power_of_2, *into))
                width = rows if rowwise else rows + 3
                turned = torch.ones(columns, width).to(kind), torch.zeros(columns)
                yield Call("fp8_quantize_transposed", (x, rowwise, power_of_2, *turned))
