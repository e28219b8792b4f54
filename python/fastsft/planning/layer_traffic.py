"""Memory traffic of a decoder layer's kernels on a GPU.

tests/fake_device/test_counts.py compares these bytes with the bytes that the kernels touch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

# Kernels that a layer launches in forward and backward with FlashAttention 2, if nothing is recomputed: 12
# GEMMs, 8 of norms and SwiGLU, 2 of RoPE, 4 of attention, and 5 copies around attention.
KERNELS_PER_LAYER = 31


class Fp8Kernels(NamedTuple):
    """Kernels that quantise the operands of a layer's four linear layers in forward and backward.

    tokens: for inputs and output gradients. weights: for weights. wgrad: for operands of weight gradients.
    """

    tokens: int
    weights: int
    wgrad: int


# By scales. A scale for a whole matrix or a column needs the largest magnitude first, which is a kernel more.
# With scales of rows, norms and SwiGLU quantise their results themselves.
FP8_KERNELS_PER_LAYER = {"rowwise": Fp8Kernels(5, 12, 16), "tensorwise": Fp8Kernels(16, 16, 16)}
# Elements of a row that a block of threads keeps in registers (csrc/ops/cuda/access.cpp). Wider rows are
# quantised by a kernel of their own.
_WIDEST_IN_REGISTERS = 32_768


class Widths(NamedTuple):
    """Elements per token of the residual stream, MLP, query heads and key heads; head count; head size."""

    hidden: int
    inner: int
    query: int
    key: int
    heads: int
    head_dim: int

    @classmethod
    def of(cls, config: dict[str, Any]) -> Widths:
        """Read the widths from a config.json."""
        heads: int = config["num_attention_heads"]
        size: int = config.get("head_dim") or config["hidden_size"] // heads
        key = (config.get("num_key_value_heads") or heads) * size
        return cls(config["hidden_size"], config["intermediate_size"], heads * size, key, heads, size)


def layer_traffic(widths: Widths, *, copies: bool) -> dict[str, int]:
    """Return the bytes per token that a layer's kernels read and write in forward and backward.

    Activations have 2 bytes an element. GEMMs and attention itself are not included: their time follows from
    FLOPs. copies: True for FlashAttention 2, whose results are copied into fastsft's tensors; False for
    cuDNN, which writes there.
    """
    hidden, inner, query, key, heads, size = widths
    traffic = {
        # Two norms, each with its sum of the residual stream. A row's scale has 4 bytes.
        "rms_norm forward": 2 * (6 * hidden + 4),
        "rms_norm backward": 2 * (8 * hidden + 4),
        # Queries and keys in place, angles in float32, and a position of 4 bytes; in both passes.
        "rope": 2 * (4 * (query + key) + 4 * size + 4),
        "swiglu forward": 6 * inner,
        "swiglu backward": 10 * inner,
    }
    if copies:
        traffic["copies"] = 4 * query + 8 * heads + 4 * (query + 2 * key)
    return traffic


def recomputed_traffic(widths: Widths, policy: str, *, copies: bool) -> int:
    """Return the bytes per token that a layer's kernels read and write again under a recompute policy."""
    hidden, inner, query, _, heads, _ = widths
    if policy == "selective":
        return 4 * hidden + 2 * inner
    if policy == "gate_up":
        return 6 * hidden + 2 * inner
    if policy == "block":
        # The forward pass without SwiGLU. Backward writes SwiGLU's result, and that of the input norm.
        forward = layer_traffic(widths, copies=copies)
        copied = 4 * query + 8 * heads if copies else 0
        return forward["rms_norm forward"] + forward["rope"] // 2 + copied + 2 * hidden + 2 * inner
    return 0


class Fp8Traffic(NamedTuple):
    """Bytes that quantising reads and writes in a layer.

    token: for a token. micro_batch: for the weights in each product of a micro-batch. kept: for the weights
    once, if later products have them.
    """

    token: int
    micro_batch: int
    kept: int


def fp8_traffic(
    widths: Widths, scaling: str, policy: str = "none", *, wgrad: bool = False, adapters: bool = False
) -> Fp8Traffic:
    """Return the bytes that a layer's 8-bit products need in forward and backward under a recompute policy.

    An element of 2 bytes is read and one of 1 byte is written. For a scale of a whole matrix or a column the
    elements are read twice. Each row has a scale of 4 bytes. With scales of rows, norms and SwiGLU write
    their results in 8 bits, and in 16 bits only for backward and for adapters: bytes that are saved are
    negative. wgrad: weight gradients are products of 8 bits. adapters: the linear layers have adapters.
    """
    hidden, inner, query, key, _, _ = widths
    rowwise = scaling == "rowwise"
    element = 3 if rowwise else 5
    # inputs and outputs of the fused projections
    qkv, out, gate_up, down = (
        (hidden, query + 2 * key),
        (query, hidden),
        (hidden, 2 * inner),
        (inner, hidden),
    )
    layers = (qkv, out, gate_up, down)
    again = {"gate_up": (gate_up,), "block": (qkv, out, gate_up)}.get(policy, ())  # in backward
    forward = (*layers, *again)
    token = sum(element * inputs + 4 for inputs, _ in forward)
    if rowwise:
        by_writers = sum(layer[0] for layer in (qkv, gate_up, down) if layer[0] <= _WIDEST_IN_REGISTERS)
        token -= 2 * (by_writers + sum(layer[0] for layer in again if layer is not out))
        if policy != "none" and not adapters:  # not in 16 bits, but for what backward computes again
            token -= 2 * (by_writers + (qkv[0] if policy == "block" else 0))
    token += sum(element * outputs + 4 for _, outputs in layers)
    if wgrad:  # parts of columns come from the cache, and their scales do not depend on the tokens
        token += sum(5 * (inputs + outputs) for inputs, outputs in layers)
    transposed = sum(5 * inputs * outputs + 4 * inputs for inputs, outputs in layers)
    whole, kept = (
        transposed + sum(element * inputs * outputs + 4 * outputs for inputs, outputs in made)
        for made in (forward, layers)
    )
    return Fp8Traffic(token, whole, kept)
