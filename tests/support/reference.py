"""Reference implementations of all ops and decoders in plain torch, for the engine's tests.

Each function contains only the formula, so that autograd gives the backward pass, and
`torch.autograd.gradcheck` can check it. They compute in the dtype of their inputs: to judge rounding, pass
the rounded low-precision inputs as float64.
The tokens of a batch are concatenated; conversation i has the rows [cu_seqlens[i], cu_seqlens[i + 1]).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

IGNORE = -100


def gemm(a: Tensor, b: Tensor, *, transpose_a: bool = False, transpose_b: bool = False) -> Tensor:
    """Return op(a) @ op(b), where op is the identity or the transpose."""
    return (a.T if transpose_a else a) @ (b.T if transpose_b else b)


def fp8_quantize(x: Tensor, dtype: torch.dtype, *, rowwise: bool, power_of_2: bool) -> tuple[Tensor, Tensor]:
    """Return x in 8-bit floats, and its scales by row.

    Values are multiplied by limit / amax, of each row or of the matrix, which may be rounded down to a power
    of two. A scale is the inverse factor.
    """
    limit = torch.finfo(dtype).max
    amax = x.double().abs().amax(-1, keepdim=True) if rowwise else x.double().abs().max()
    factor = (limit / amax.clamp(min=1e-12)).float()
    if power_of_2:
        mantissa, _ = torch.frexp(factor)
        factor = factor / (2 * mantissa)
    values = (x.float() * factor).clamp(-limit, limit).to(dtype)
    return values, (1 / factor).expand(len(x), 1).reshape(-1).contiguous()


def rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
    """Return (offset + weight) * x / sqrt(mean(x^2) + eps), normalized over the last dimension."""
    return (offset + weight) * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps))


def rope_inverse_frequencies(
    head_dim: int, theta: float = 10000.0, scaling: Mapping[str, Any] | None = None
) -> Tensor:
    """Return theta^(-2i/head_dim), float32 [head_dim / 2], scaled as in transformers ("linear", "llama3")."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequencies = 1.0 / (theta**exponents)
    kind = (scaling or {}).get("rope_type", (scaling or {}).get("type", "default"))
    if scaling is None or kind == "default":
        return frequencies
    if kind == "linear":
        return frequencies / scaling["factor"]
    if kind == "llama3":
        return _llama3_frequencies(frequencies, scaling)
    raise ValueError(f"no reference for rope scaling {kind!r}")


def _llama3_frequencies(frequencies: Tensor, scaling: Mapping[str, Any]) -> Tensor:
    length = scaling["original_max_position_embeddings"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    wavelengths = 2 * math.pi / frequencies
    smooth = (length / wavelengths - low) / (high - low)
    between = (1 - smooth) * frequencies / scaling["factor"] + smooth * frequencies
    result = torch.where(wavelengths > length / low, frequencies / scaling["factor"], between)
    return torch.where(wavelengths < length / high, frequencies, result)


def rope_tables(positions: Tensor, inverse_frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """Return (cos, sin), float32 [T, head_dim / 2]; the angles are float32 products, as in transformers."""
    angles = positions.float()[:, None] * inverse_frequencies[None, :]
    return angles.cos(), angles.sin()


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x [T, heads, head_dim]; elements i and i + head_dim / 2 form a pair, as in transformers."""
    first, second = x.chunk(2, dim=-1)
    cos, sin = cos[:, None, :].to(x.dtype), sin[:, None, :].to(x.dtype)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def qk_norm(
    qkv: Tensor,
    query_weight: Tensor,
    key_weight: Tensor,
    heads: int,
    kv_heads: int,
    eps: float,
    offset: float = 0.0,
) -> Tensor:
    """Apply rms_norm to each query and key head of fused rows [T, (heads + 2 * kv_heads) * head_dim]."""
    rows = qkv.view(len(qkv), heads + 2 * kv_heads, len(query_weight))
    query, key, value = rows.split([heads, kv_heads, kv_heads], dim=1)
    normed = [rms_norm(query, query_weight, eps, offset), rms_norm(key, key_weight, eps, offset), value]
    return torch.cat(normed, dim=1).flatten(1)


def swiglu(gate_up: Tensor) -> Tensor:
    """Return silu(gate) * up, [T, I], for gate_up = [gate; up], [T, 2 * I]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def geglu(gate_up: Tensor) -> Tensor:
    """Return gelu(gate) * up, [T, I], with gelu's tanh form, for gate_up = [gate; up], [T, 2 * I]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh") * up


def route(logits: Tensor, chosen: int, *, normalize: bool) -> tuple[Tensor, Tensor]:
    """Return weights and numbers [T, chosen] of the experts with the largest probabilities.

    logits: [T, experts]. normalize: True to divide the weights by their sum.
    """
    weights, experts = logits.softmax(-1).topk(chosen, dim=-1)
    return weights / weights.sum(-1, keepdim=True) if normalize else weights, experts


def mixture(
    x: Tensor,
    router: Tensor,
    gate_up: Sequence[Tensor],
    down: Sequence[Tensor],
    chosen: int,
    *,
    normalize: bool,
) -> Tensor:
    """Return the sum over each token's experts e of weight * swiglu(x gate_up[e]^T) down[e]^T, [T, H].

    x: [T, H]. router: [experts, H]. gate_up: [2 * I, H] of each expert. down: [H, I] of each expert.
    """
    weights, experts = route(x @ router.T, chosen, normalize=normalize)
    every = torch.stack([swiglu(x @ one.T) @ two.T for one, two in zip(gate_up, down, strict=True)], dim=1)
    picked = every.gather(1, experts[..., None].expand(-1, -1, x.shape[-1]))
    return (weights[..., None] * picked).sum(1)


def softcap(x: Tensor, cap: float | None) -> Tensor:
    """Return cap * tanh(x / cap); x without a cap."""
    return cap * torch.tanh(x / cap) if cap else x


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens: Sequence[int],
    *,
    scale: float | None = None,
    window: int | None = None,
    is_key: Tensor | None = None,
    cap: float | None = None,
) -> Tensor:
    """Return causal attention [T, heads, head_dim] within each conversation.

    query: [T, heads, head_dim]. key, value: [T, kv_heads, head_dim]; heads is a multiple of kv_heads, and
    query head h attends to kv head h // (heads / kv_heads). scale: default 1 / sqrt(head_dim). cap: softcap
    of the scores. window: with w, position t attends to positions t - w + 1 to t. is_key: bool [T]; no
    position attends to a position at which it is False. The output of a position that attends to none is 0.
    """
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    group = query.shape[1] // key.shape[1]
    outputs = [torch.zeros_like(query[:0])]
    for begin, end in pairwise(cu_seqlens):
        q = query[begin:end].transpose(0, 1)
        k = key[begin:end].transpose(0, 1).repeat_interleave(group, dim=0)
        v = value[begin:end].transpose(0, 1).repeat_interleave(group, dim=0)
        distance = torch.arange(end - begin)[:, None] - torch.arange(end - begin)[None, :]
        hidden = (distance < 0) | (distance >= (window or end - begin + 1))
        if is_key is not None:
            hidden = hidden | ~is_key[begin:end]
        hidden = hidden.to(q.device)
        scores = softcap(q @ k.transpose(1, 2) * scale, cap).masked_fill(hidden, torch.finfo(q.dtype).min)
        outputs.append((scores.softmax(-1) * ~hidden @ v).transpose(0, 1))
    return torch.cat(outputs)


def cross_entropy(
    logits: Tensor, targets: Tensor, token_weights: Tensor, label_smoothing: float = 0.0
) -> Tensor:
    """Return the sum of w_t * ((1 - e) * nll_t + e * mean over the vocabulary of -log p).

    w: token_weights. e: label_smoothing. Positions with target -100 are left out.
    """
    keep = targets != IGNORE
    log_p = logits[keep].log_softmax(-1)
    nll = -log_p.gather(1, targets[keep][:, None]).squeeze(1)
    losses = (1 - label_smoothing) * nll - label_smoothing * log_p.mean(-1)
    return (token_weights[keep].to(losses.dtype) * losses).sum()


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return x after rounding to `dtype`; the gradient is that of x."""
    return x + (x.to(dtype).to(x.dtype) - x).detach()


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    token_weights: Tensor,
    label_smoothing: float = 0.0,
    cap: float | None = None,
    logits_dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Return cross_entropy of softcap(hidden [T, H] @ weight [V, H]^T); targets [T] are already shifted.

    logits_dtype: the dtype to which logits are rounded before the cap.
    """
    logits = rounded(hidden @ weight.T, logits_dtype)
    return cross_entropy(softcap(logits, cap), targets, token_weights, label_smoothing)


def embedding(weight: Tensor, ids: Tensor) -> Tensor:
    """Return the rows `ids` of weight [V, H]; autograd sums the gradients of repeated ids."""
    return weight[ids]


def norm_squared(tensors: Sequence[Tensor]) -> Tensor:
    """Return the sum of squares over all elements of all tensors, in float64."""
    return torch.stack([tensor.double().square().sum() for tensor in tensors]).sum()


def clip_factor(total_norm: float, max_norm: float) -> float:
    """Return min(1, max_norm / (total_norm + 1e-6)), as torch's clip_grad_norm_; 1 if max_norm is 0."""
    return 1.0 if max_norm == 0 else min(1.0, max_norm / (total_norm + 1e-6))


def adamw(
    parameter: Tensor,
    gradient: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    *,
    step: int,
    learning_rate: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (parameter, exp_avg, exp_avg_sq) after one update; `step` counts from 1."""
    parameter = parameter * (1 - learning_rate * weight_decay)
    exp_avg = beta1 * exp_avg + (1 - beta1) * gradient
    exp_avg_sq = beta2 * exp_avg_sq + (1 - beta2) * gradient.square()
    denominator = exp_avg_sq.sqrt() / math.sqrt(1 - beta2**step) + eps
    return parameter - learning_rate / (1 - beta1**step) * exp_avg / denominator, exp_avg, exp_avg_sq


def upper_half(master: Tensor) -> Tensor:
    """Round float32 to the nearest bfloat16, ties away from zero; computed exactly, in float64."""
    step = torch.ldexp(torch.ones_like(master, dtype=torch.float64), torch.frexp(master.double())[1] - 8)
    away = torch.sign(master) * torch.floor(master.double().abs() / step + 0.5) * step
    return away.bfloat16()


def philox(counter: np.ndarray, key: int) -> np.ndarray:
    """Return the random words of counters, uint64 [..., 4], by Philox4x32-10 (Salmon et al. 2011)."""
    mask = np.uint64(0xFFFFFFFF)
    low, high = np.uint64(key & 0xFFFFFFFF), np.uint64(key >> 32)
    a, b, c, d = (counter[..., i].astype(np.uint64) for i in range(4))
    for _ in range(10):
        first, second = np.uint64(0xD2511F53) * a, np.uint64(0xCD9E8D57) * c
        a, b, c, d = (
            (second >> np.uint64(32)) ^ b ^ low,
            second & mask,
            (first >> np.uint64(32)) ^ d ^ high,
            (first & mask),
        )
        low, high = (low + np.uint64(0x9E3779B9)) & mask, (high + np.uint64(0xBB67AE85)) & mask
    return np.stack([a, b, c, d], axis=-1)


def element_words(seed: int, step: int, first: int, count: int) -> np.ndarray:
    """Return the random words of `count` elements from `first` on, as specified in csrc/ops/adamw/adamw.h."""
    elements = np.arange(first, first + count, dtype=np.uint64)
    blocks = elements // np.uint64(4)
    mask = np.uint64(0xFFFFFFFF)
    counter = np.stack(
        [blocks & mask, blocks >> np.uint64(32), np.full_like(blocks, step), 0 * blocks], axis=-1
    )
    words: np.ndarray = philox(counter, seed)[np.arange(count), elements % np.uint64(4)]
    return words


def round_stochastically(values: Tensor, random: np.ndarray) -> Tensor:
    """Round float32 to bfloat16, up in magnitude if the 16 lower bits plus 16 random bits overflow."""
    bits = values.numpy().view(np.uint32).astype(np.uint64) + random
    return torch.from_numpy((bits >> np.uint64(16)).astype(np.uint16).view(np.int16)).view(torch.bfloat16)


def layer_windows(config: Mapping[str, Any]) -> list[int | None]:
    """Return the sliding window of each layer of a Hugging Face config; None for full attention."""
    layers, window = config["num_hidden_layers"], config.get("sliding_window")
    if config["model_type"] in ("mistral", "phi3", "mixtral"):
        return [window] * layers
    if config["model_type"].startswith("gemma"):
        return [window if kind == "sliding_attention" else None for kind in config["layer_types"]]
    if not config.get("use_sliding_window"):
        return [None] * layers
    if config["model_type"] == "qwen3_moe":
        return [window] * layers
    types = config.get("layer_types")
    if types is None:
        return [window if layer >= config["max_window_layers"] else None for layer in range(layers)]
    return [window if kind == "sliding_attention" else None for kind in types]


# Where a layer has experts, and the names of their gate, up and down projections.
_EXPERTS = {
    "mlp": ("gate_proj", "up_proj", "down_proj"),
    "block_sparse_moe": ("w1", "w3", "w2"),
}


class Decoder:
    """The decoder of any native family. config: Hugging Face's. weights: Hugging Face's tensors by name."""

    def __init__(self, config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> None:
        self.config, self.weights = config, weights
        self.heads = config["num_attention_heads"]
        self.kv_heads = config.get("num_key_value_heads") or self.heads
        self.head_dim = config.get("head_dim") or config["hidden_size"] // self.heads
        self.eps, self.windows = config["rms_norm_eps"], layer_windows(config)
        self.gemma = config["model_type"].startswith("gemma")
        self._is_key: Tensor | None = None

    def logits(
        self,
        input_ids: Tensor,
        cu_seqlens: Sequence[int],
        positions: Tensor | None = None,
        is_key: Tensor | None = None,
    ) -> Tensor:
        """input_ids [T] -> [T, V]. positions [T]: 0, 1, 2, ... by default; is_key [T]: all."""
        head = "model.embed_tokens" if self.config.get("tie_word_embeddings", self.gemma) else "lm_head"
        logits = self._linear(head, self.hidden(input_ids, cu_seqlens, positions, is_key))
        return softcap(logits, self.config.get("final_logit_softcapping"))

    def hidden(
        self,
        input_ids: Tensor,
        cu_seqlens: Sequence[int],
        positions: Tensor | None = None,
        is_key: Tensor | None = None,
    ) -> Tensor:
        """What the head reads: after the final norm, [T, H]."""
        self._is_key = is_key
        positions = positions_of(cu_seqlens) if positions is None else positions
        tables = rope_tables(positions, self._inverse_frequencies())
        local = tables
        if base := self.config.get("rope_local_base_freq"):
            local = rope_tables(positions, rope_inverse_frequencies(self.head_dim, base))
        x = embedding(self.weights["model.embed_tokens.weight"], input_ids)
        if self.gemma:
            x = x * torch.tensor(self.config["hidden_size"] ** 0.5, dtype=x.dtype)
        for layer, window in enumerate(self.windows):
            x = self._block(f"model.layers.{layer}", x, cu_seqlens, local if window else tables, window)
        return self._norm("model.norm", x)

    def loss(
        self,
        input_ids: Tensor,
        labels: Tensor,
        cu_seqlens: Sequence[int],
        weights: Sequence[float],
        label_smoothing: float = 0.0,
    ) -> Tensor:
        """Sum of weight * cross entropy over tokens; labels are not shifted, weights: one an example."""
        lengths = torch.diff(torch.tensor(cu_seqlens))
        token_weights = torch.tensor(weights, dtype=torch.float64).repeat_interleave(lengths)
        targets = shift_labels(labels, cu_seqlens)
        return cross_entropy(self.logits(input_ids, cu_seqlens), targets, token_weights, label_smoothing)

    def _inverse_frequencies(self) -> Tensor:
        return rope_inverse_frequencies(
            self.head_dim, self.config.get("rope_theta", 10000.0), self.config.get("rope_scaling")
        )

    def _norm(self, name: str, x: Tensor) -> Tensor:
        return rms_norm(x, self.weights[f"{name}.weight"], self.eps, 1.0 if self.gemma else 0.0)

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))

    def _fused(self, place: str, whole: str, parts: Sequence[str], x: Tensor) -> Tensor:
        """Linears of the same input side by side, which Phi-3 has as one."""
        names = [whole] if f"{place}.{whole}.weight" in self.weights else parts
        return torch.cat([self._linear(f"{place}.{name}", x) for name in names], dim=-1)

    def _block(
        self,
        name: str,
        x: Tensor,
        cu_seqlens: Sequence[int],
        tables: tuple[Tensor, Tensor],
        window: int | None,
    ) -> Tensor:
        normed = self._norm(f"{name}.input_layernorm", x)
        mixed = self._attention(f"{name}.self_attn", normed, cu_seqlens, tables, window)
        if self.gemma:
            mixed = self._norm(f"{name}.post_attention_layernorm", mixed)
        x = x + mixed
        before_mlp = "pre_feedforward_layernorm" if self.gemma else "post_attention_layernorm"
        normed = self._norm(f"{name}.{before_mlp}", x)
        for place, projections in _EXPERTS.items():
            if f"{name}.{place}.gate.weight" in self.weights:
                return x + self._mixture(f"{name}.{place}", projections, normed)
        gate_up = self._fused(f"{name}.mlp", "gate_up_proj", ("gate_proj", "up_proj"), normed)
        if not self.gemma:
            return x + self._linear(f"{name}.mlp.down_proj", swiglu(gate_up))
        made = self._linear(f"{name}.mlp.down_proj", geglu(gate_up))
        return x + self._norm(f"{name}.post_feedforward_layernorm", made)

    def _mixture(self, name: str, projections: Sequence[str], x: Tensor) -> Tensor:
        router = self.weights[f"{name}.gate.weight"]
        gates, ups, downs = (
            [self.weights[f"{name}.experts.{expert}.{each}.weight"] for expert in range(len(router))]
            for each in projections
        )
        gate_up = [torch.cat(pair) for pair in zip(gates, ups, strict=True)]
        normalize = self.config.get("norm_topk_prob", self.config["model_type"] == "mixtral")
        return mixture(x, router, gate_up, downs, self.config["num_experts_per_tok"], normalize=normalize)

    def _attention(
        self,
        name: str,
        x: Tensor,
        cu_seqlens: Sequence[int],
        tables: tuple[Tensor, Tensor],
        window: int | None,
    ) -> Tensor:
        qkv = self._fused(name, "qkv_proj", ("q_proj", "k_proj", "v_proj"), x)
        if f"{name}.q_norm.weight" in self.weights:
            norms = (self.weights[f"{name}.{part}_norm.weight"] for part in "qk")
            qkv = qk_norm(qkv, *norms, self.heads, self.kv_heads, self.eps, 1.0 if self.gemma else 0.0)
        rows = qkv.view(len(x), self.heads + 2 * self.kv_heads, self.head_dim)
        q, k, v = rows.split([self.heads, self.kv_heads, self.kv_heads], dim=1)
        q, k = rope(q, *tables), rope(k, *tables)
        scalar, cap = self.config.get("query_pre_attn_scalar"), self.config.get("attn_logit_softcapping")
        scale = scalar**-0.5 if scalar else None
        mixed = attention(q, k, v, cu_seqlens, scale=scale, window=window, is_key=self._is_key, cap=cap)
        return self._linear(f"{name}.o_proj", mixed.flatten(1))


def positions_of(cu_seqlens: Sequence[int]) -> Tensor:
    """0, 1, 2, ... inside each example: int64 [T]."""
    ranges = [torch.arange(end - begin) for begin, end in pairwise(cu_seqlens)]
    return torch.cat([torch.zeros(0, dtype=torch.int64), *ranges])


def shift_labels(labels: Tensor, cu_seqlens: Sequence[int]) -> Tensor:
    """targets[t] = labels[t + 1] inside each example; its last position has no target (-100)."""
    targets = torch.full_like(labels, IGNORE)
    for begin, end in pairwise(cu_seqlens):
        targets[begin : end - 1] = labels[begin + 1 : end]
    return targets
