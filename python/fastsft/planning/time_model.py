"""Predicts tokens per second on GPUs: a plan's FLOPs and memory traffic, divided by assumed rates (`Rates`).

benchmarks/bench_step.py prints measurements next to these predictions (docs/gpu.md).
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from fastsft.planning.gpus import PCIE_LINK, Gpu
from fastsft.planning.layer_traffic import (
    FP8_KERNELS_PER_LAYER,
    KERNELS_PER_LAYER,
    Widths,
    fp8_traffic,
    layer_traffic,
    recomputed_traffic,
)
from fastsft.planning.memory_plan import MemoryPlan

_KERNEL_GAP = 1.4e-6  # seconds between two kernels in a stream
# Gradients are accumulated in the GEMM kernel that computes them, which hides a part of their memory traffic.
# These shares of the traffic, for adding to gradients and for writing them, are not hidden.
_ADD_SHARE, _WRITE_SHARE = 0.55, 0.4
_NEWER_KERNELS = ("cudnn", "fa3", "fa4")  # "auto" counts as flash2, since kernels are measured only later
_NEWER_GPUS = (9, 10)  # major compute capabilities for which these kernels are made (attention_choice.h)
_CAP = "attn_logit_softcapping"
_BACKWARD = 2 / 3  # the backward pass's share of a micro-batch's computation


@dataclass(frozen=True)
class Rates:
    """Assumed kernel rates, as shares of the data sheet's figures.

    products: GEMMs, with 8,192 tokens in a micro-batch. fp8_gain: how many times as fast 8-bit GEMMs are, of
    the two that data sheets promise. attention_*: FlashAttention 2. newer_attention_*:
    cuDNN, FA3 and FA4. elementwise: memory bandwidth of norms, RoPE and SwiGLU. streams: memory bandwidth of
    the optimizer and of gradient accumulation. link: collectives' bus bandwidth, as a share of NVLink's.
    contention: time that GEMMs lose while a collective runs, as a share of the collective's time.
    """

    products: float = 0.708
    fp8_gain: float = 1.7
    attention_forward: float = 0.293
    attention_backward: float = 0.2275
    newer_attention_forward: float = 0.546
    newer_attention_backward: float = 0.339
    elementwise: float = 0.76
    streams: float = 0.82
    link: float = 0.82
    contention: float = 0.35

    def products_at(self, tokens: int) -> float:
        """Return the GEMM rate for a micro-batch of `tokens`, which grows by 1.25% with each doubling."""
        doublings = math.log2(max(tokens, 1) / 8192)
        return self.products * (1 + 0.0125 * max(-4.0, min(1.0, doublings)))


LOW, CENTRAL, HIGH = Rates(products=0.667), Rates(), Rates(products=0.748)


class Prediction(NamedTuple):
    """Predicted speed of a plan.

    seconds: time of one GPU per token, by purpose. tokens_per_second: throughput of all ranks together.
    mfu: model FLOP/s utilisation, as a share of the data sheet's FLOP/s.
    """

    seconds: dict[str, float]
    tokens_per_second: float
    mfu: float


def why_not(plan: MemoryPlan) -> str:
    """Return the reason why this plan's speed cannot be predicted; "" if there is none."""
    from fastsft import _C

    setting, state = plan.setting, plan.setting.state
    if setting.generic is not None:
        return "it knows models with a native engine only"
    if state.compute_dtype == "float32":
        return "it is made for bfloat16 and float16 compute"
    if state.offload:
        return "it knows no optimizer state on the host yet"
    if setting.world_size > 8 or dict(_C.strategies())[state.strategy]:
        return "it knows one machine only"
    if state.strategy not in ("no_shard", "shard_grad_op", "full_shard"):
        return f"it does not know what {state.strategy} communicates"
    if setting.gpu is not None and setting.gpu.capability < (8, 0):
        return (
            "it does not know the rate of our own attention, which computes where FlashAttention-2 does not"
        )
    if "num_experts_per_tok" in json.loads(setting.config_json):
        return "no GPU has shown the rate of grouped products of experts"
    if json.loads(setting.config_json).get(_CAP):
        return f"it does not know the rate of attention with {_CAP}, which has a kernel of its own"
    return ""


def predict(plan: MemoryPlan, gpu: Gpu, rates: Rates = CENTRAL) -> Prediction:
    """Predict the throughput of all ranks together. ValueError if `why_not` returns a reason."""
    if reason := why_not(plan):
        raise ValueError(f"no prediction of speed: {reason}")
    model = _Model(plan)
    bandwidth = gpu.bandwidth * rates.elementwise
    recomputed = model.recomputed(plan.recompute)
    compute = {
        "products": (model.products + recomputed.products - _saved(model, recomputed, rates))
        / (gpu.flops * rates.products_at(plan.work.tokens)),
        "attention": model.attention
        * _attention_seconds(rates, recomputed.attention, newer=model.kernel in _NEWER_KERNELS)
        / gpu.flops,
        "element-wise": (model.elementwise + recomputed.elementwise) / bandwidth,
        "head and embedding": model.head_bytes / bandwidth,
        "gaps between kernels": model.kernels * _KERNEL_GAP / plan.work.tokens,
    }
    if model.state.offload_inputs:
        compute["inputs to the host and back"] = _host_seconds(model, sum(compute.values()))
    if model.fp8_layers:
        compute["quantising"] = model.quantised_bytes(plan.recompute) / bandwidth
    streams = gpu.bandwidth * rates.streams
    compute["accumulating gradients"] = model.accumulated_bytes / streams / plan.work.tokens
    compute["optimizer"] = model.optimizer_bytes / streams / max(plan.work.step_tokens, plan.work.tokens)
    seconds = compute | _collectives(plan, model, gpu, rates, sum(compute.values()))
    total = sum(seconds.values())
    ranks = plan.setting.world_size
    return Prediction(seconds, ranks / total, (model.products + 3 * model.attention) / total / gpu.flops)


def _host_seconds(model: _Model, compute: float) -> float:
    """Return the seconds per token for which blocks wait for copies of inputs.

    compute: seconds of forward and backward. A forward pass is a quarter of them, because backward computes
    blocks again.
    """
    seconds = 2.0 * model.widths.hidden * max(model.layers - 2, 0) / PCIE_LINK
    return max(0.0, seconds - compute / 4) + max(0.0, seconds - compute * 3 / 4)


def _saved(model: _Model, recomputed: _Recomputed, rates: Rates) -> float:
    """Return the FLOPs per token at the rate of 16 bits whose time 8-bit products save."""
    in_8_bits = (2 * model.blocks + recomputed.products) * model.fp8_layers / model.layers
    if model.fp8_wgrad:
        in_8_bits += model.blocks * model.fp8_layers / model.layers
    return float(in_8_bits * (1 - 1 / rates.fp8_gain))


def _attention_seconds(rates: Rates, recomputed: float, *, newer: bool) -> float:
    """Return the time of attention, relative to a forward pass at the data sheet's FLOP/s.

    recomputed: how many forward passes backward recomputes.
    """
    if newer:
        return (1 + recomputed) / rates.newer_attention_forward + 2.5 / rates.newer_attention_backward
    return (1 + recomputed) / rates.attention_forward + 2.5 / rates.attention_backward


def _collectives(plan: MemoryPlan, model: _Model, gpu: Gpu, rates: Rates, compute: float) -> dict[str, float]:
    """Return the seconds per token that collectives add, because GEMMs slow down or computation waits."""
    ranks = plan.setting.world_size
    if ranks == 1:
        return {}
    link = (gpu.link or PCIE_LINK) * rates.link * ranks / (ranks - 1)
    tokens, step_tokens = plan.work.tokens, max(plan.work.step_tokens, plan.work.tokens)
    state, strategy = plan.setting.state, plan.setting.state.strategy
    exchange = _exchange_seconds(plan, model, gpu, rates)
    # Gradients are reduced in float32; an all-reduce moves twice a reduce-scatter's bytes.
    reduced = 4 * model.trained * (2 if strategy == "no_shard" else 1)
    # no_shard keeps whole gradients; if they are float32, they are reduced only once per step.
    every_batch = state.sync_each_batch and (strategy != "no_shard" or state.grad_dtype != "float32")
    reductions = reduced / (tokens if every_batch else step_tokens)
    if strategy == "full_shard":
        moved = 2 * 2 * model.parameters / tokens + reductions
    elif strategy == "shard_grad_op":
        moved = reductions + 2 * model.trained / step_tokens
    else:
        moved = reductions
    seconds = moved / link
    waits = max(0.0, seconds - compute)
    if not every_batch:  # the reduction overlaps only with the last backward pass
        waits = max(waits, (reduced / link - _BACKWARD * compute * tokens) / step_tokens)
    return {"collectives": rates.contention * min(seconds, compute) + waits, **exchange}


def _exchange_seconds(plan: MemoryPlan, model: _Model, gpu: Gpu, rates: Rates) -> dict[str, float]:
    """Return the seconds per token in which context ranks exchange tokens for heads.

    Attention waits for queries, keys and values, and the output projection for attention, in every forward
    pass and in backward. The parts are laid out before or after they are sent: each is read and written.
    """
    ranks = plan.setting.state.context_parallel_size
    if ranks == 1:
        return {}
    passes = 2 + model.recomputed(plan.recompute).attention
    sent = 2.0 * model.layers * passes * model.exchanged_width(ranks)
    link = (gpu.link or PCIE_LINK) * rates.link * ranks / (ranks - 1)
    return {"exchange of context ranks": sent / link + 2 * sent / (gpu.bandwidth * rates.elementwise)}


class _Recomputed(NamedTuple):
    """Work per token that backward recomputes.

    products: FLOPs of GEMMs. attention: how many attention forward passes run. elementwise: bytes of memory
    traffic.
    """

    products: float = 0.0
    attention: float = 0.0
    elementwise: float = 0.0


class _Model:
    """FLOPs and memory traffic per token in forward and backward, from a plan's model configuration."""

    def __init__(self, plan: MemoryPlan) -> None:
        import torch

        from fastsft import _C

        setting = plan.setting
        config: dict[str, Any] = json.loads(setting.config_json)
        self.state, self.ranks, self.kernel = setting.state, setting.world_size, setting.attention_kernel
        if setting.gpu is not None and setting.gpu.capability[0] not in _NEWER_GPUS:
            self.kernel = "flash2"
        self.parameters = self.trained = _C.count_parameters(setting.config_json)
        linear, quadratic = _C.conversation_cost(setting.config_json)
        self.products = linear
        self.has_adapters = bool(setting.adapters)
        if setting.adapters:  # frozen weights need no gradient: two of three GEMMs remain
            self.trained = _C.count_trained_parameters(setting.config_json, adapters=setting.adapters)
            self.products = linear * 2 / 3 + 6 * self.trained
        # FLOPs of the blocks' forward pass per token
        self.blocks = linear / 3 - 2.0 * config["hidden_size"] * config["vocab_size"]
        length = max(plan.work.max_seqlen, 1)
        window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
        # The forward pass is 1 of the 3.5 parts that conversation_cost counts.
        self.attention = quadratic / 3.5 * (min(length, window) if window else length)
        self.layers: int = config["num_hidden_layers"]
        heads: int = config["num_attention_heads"]
        self.heads = (heads, config.get("num_key_value_heads") or heads)
        self.head_size: int = config.get("head_dim") or config["hidden_size"] // heads
        self.tokens = tokens = max(plan.work.tokens, 1)
        self.step_tokens = max(plan.work.step_tokens, tokens)
        self.tiles = math.ceil(tokens / (self.state.tile_tokens or tokens))
        self.vocabulary: int = config["vocab_size"]
        self.chunks = math.ceil(tokens / torch.ops.fastsft.plan_logits(tokens, self.vocabulary, 2)[0])
        self.widths, self.copies = Widths.of(config), self.kernel != "cudnn"
        in_16_bits = self.state.num_layers_at_start_in_bf16 + self.state.num_layers_at_end_in_bf16
        # layers whose output and input gradient are products of 8 bits
        self.fp8_layers = 0 if self.state.fp8 == "none" else self.layers - in_16_bits
        self.fp8_wgrad = self.state.fp8_wgrad and not self.has_adapters

    def exchanged_width(self, ranks: int) -> int:
        """Return the elements that a token sends in a forward pass: its heads and what attention makes."""
        heads, keys = self.heads
        shared = max(keys, ranks)  # a key head of several ranks is sent to each of them
        return (2 * heads + 2 * shared) * self.head_size

    @property
    def kernels(self) -> int:
        """Number of kernels that a micro-batch launches in the layers."""
        kernels = self.layers * KERNELS_PER_LAYER
        if self.fp8_layers:
            quantising = FP8_KERNELS_PER_LAYER[self.state.fp8]
            of_weights = 0 if self.state.keep_fp8_weights else quantising.weights  # kept: few
            of_gradients = quantising.wgrad if self.fp8_wgrad else 0
            kernels += self.fp8_layers * (quantising.tokens + of_weights + of_gradients)
        return kernels

    def quantised_bytes(self, policy: str) -> float:
        """Return the memory traffic of quantising operands of 8-bit products, in bytes per token.

        Each tile multiplies by the weights. Kept ones are quantised once a step, frozen ones never.
        """
        traffic = fp8_traffic(
            self.widths, self.state.fp8, policy, wgrad=self.fp8_wgrad, adapters=self.has_adapters
        )
        weights = traffic.micro_batch * self.tiles / self.tokens
        if self.state.keep_fp8_weights:
            weights = 0.0 if self.has_adapters else traffic.kept / self.step_tokens
        return self.fp8_layers * (traffic.token + weights)

    @property
    def elementwise(self) -> float:
        """Memory traffic of norms, RoPE, SwiGLU and copies for attention, in bytes per token (bfloat16)."""
        return float(self.layers * sum(layer_traffic(self.widths, copies=self.copies).values()))

    @property
    def head_bytes(self) -> float:
        """Memory traffic of logits, their gradient and embedding rows, in bytes per token.

        A logit of 2 bytes is written by the product, read for the softmax and again for the gradient, which
        takes its place and is read by two products.
        """
        return 12.0 * self.vocabulary + 30.0 * self.widths.hidden

    @property
    def accumulated_bytes(self) -> float:
        """Bytes that a micro-batch reads and writes to accumulate gradients.

        On one rank, the GEMMs themselves add to the gradients if these have the compute dtype. Each tile but
        the first of a micro-batch adds to the gradients once more, and each chunk of logits but the first to
        the head's.
        """
        in_products = self.ranks == 1 and self.state.grad_dtype == self.state.compute_dtype
        itemsize = self.state.grad_itemsize if in_products else 4
        added = 2 * itemsize * _ADD_SHARE * self.trained * (self.tiles - 1)
        if not self.has_adapters:
            added += 8 * _ADD_SHARE * self.widths.hidden * self.vocabulary * (self.chunks - 1)
        if self.state.grad_dtype == "float32" or in_products:
            return 2 * self.state.grad_itemsize * _ADD_SHARE * self.trained + added
        return (4 * _WRITE_SHARE + 8) * self.trained + added

    @property
    def optimizer_bytes(self) -> float:
        """Bytes that a rank's optimizer update reads and writes.

        The update moves master weights, optimizer state, gradients (a second time for their norm) and compute
        weights.
        """
        gradient = self.state.grad_itemsize
        moment = 2 if self.state.optim_dtype == "bfloat16" else 4
        kept = {"adamw": 4 * moment, "adamw_8bit": 4, "sgd": 0, "adafactor": 3 * gradient}[
            self.state.optimizer
        ]
        copied = self.state.itemsize if self.state.master_itemsize == 4 else 0  # split masters need no copy
        master = 8 + copied
        held: int = 1 if self.state.strategy == "no_shard" else self.ranks
        return float((master + kept + 2 * gradient) * self.trained / held)

    def recomputed(self, policy: str) -> _Recomputed:
        """Return the work per token that the recompute policy adds (docs/decisions.md)."""
        products, attention = 0.0, 0.0
        if policy == "gate_up":
            products = 4.0 * self.layers * self.widths.hidden * self.widths.inner
        elif policy == "block":
            down = 2.0 * self.layers * self.widths.hidden * self.widths.inner  # the only product left out
            products, attention = self.blocks - down, 1.0
        traffic = recomputed_traffic(self.widths, policy, copies=self.copies)
        return _Recomputed(products, attention, float(self.layers * traffic))
