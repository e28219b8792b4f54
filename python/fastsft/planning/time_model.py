"""Tokens per second of a run on GPUs, predicted from its plan: bytes and operations over assumed rates.

The rates are assumed, not measured: `Rates` has them in one place. benchmarks/bench_step.py prints what it
measured next to what this module predicts (docs/gpu.md).
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from fastsft.planning.gpus import PCIE_LINK, Gpu
from fastsft.planning.memory_plan import MemoryPlan

_SECONDS_OF_A_KERNEL = 1.4e-6  # between two kernels of a stream
_KERNELS_OF_A_LAYER = 36
# Shares of the traffic of gradients that products of the same kernel do not hide.
_OF_ADDING, _OF_WRITING = 0.55, 0.4
_NEWER_KERNELS = ("cudnn", "fa3", "fa4")  # "auto" is counted as flash2 before it has measured
_CAP = "attn_logit_softcapping"
_BACKWARD = 2 / 3  # of what a micro-batch computes


@dataclass(frozen=True)
class Rates:
    """Shares of a data sheet's figures that kernels sustain.

    products: at 8,192 tokens in a micro-batch. newer_attention: of cuDNN, FA3 and FA4. link: of NVLink's
    figure, as a collective's bus bandwidth.
    contention: what products lose next to a collective, as a share of its time.
    """

    products: float = 0.708
    attention_forward: float = 0.293
    attention_backward: float = 0.2275
    newer_attention_forward: float = 0.546
    newer_attention_backward: float = 0.339
    elementwise: float = 0.76
    streams: float = 0.82
    link: float = 0.82
    contention: float = 0.35

    def products_at(self, tokens: int) -> float:
        """Twice the tokens of a micro-batch bring products 1.25% more, as tiles fill the device better."""
        doublings = math.log2(max(tokens, 1) / 8192)
        return self.products * (1 + 0.0125 * max(-4.0, min(1.0, doublings)))


LOW, CENTRAL, HIGH = Rates(products=0.667), Rates(), Rates(products=0.748)


class Prediction(NamedTuple):
    """seconds: of a token on one GPU, by what they are for. mfu: share of the data sheet's FLOP/s."""

    seconds: dict[str, float]
    tokens_per_second: float
    mfu: float


def why_not(plan: MemoryPlan) -> str:
    """Why there is no prediction for this plan, "" if there is one."""
    from fastsft import _C

    setting, state = plan.setting, plan.setting.state
    if setting.called is not None:
        return "it knows models with a native engine only"
    if state.compute_dtype == "float32":
        return "it is made for bfloat16 and float16 compute"
    if state.offload:
        return "it knows no optimizer state on the host yet"
    if setting.world_size > 8 or dict(_C.strategies())[state.strategy]:
        return "it knows one machine only"
    if state.strategy not in ("no_shard", "shard_grad_op", "full_shard"):
        return f"it does not know what {state.strategy} communicates"
    if json.loads(setting.config_json).get(_CAP):
        return f"it does not know the rate of attention with {_CAP}, which has a kernel of its own"
    return ""


def predict(plan: MemoryPlan, gpu: Gpu, rates: Rates = CENTRAL) -> Prediction:
    """Predict the throughput of all ranks. ValueError if `why_not(plan)` has a reason."""
    if reason := why_not(plan):
        raise ValueError(f"no prediction of speed: {reason}")
    model = _Model(plan)
    bandwidth = gpu.bandwidth * rates.elementwise
    again = model.recomputed(plan.recompute)
    compute = {
        "products": (model.products + again.products) / (gpu.flops * rates.products_at(plan.work.tokens)),
        "attention": model.attention
        * _seconds_of_attention(rates, again.attention, newer=model.kernel in _NEWER_KERNELS)
        / gpu.flops,
        "element-wise": (model.elementwise + again.elementwise) / bandwidth,
        "head and embedding": model.head_bytes / bandwidth,
        "gaps between kernels": model.layers * _KERNELS_OF_A_LAYER * _SECONDS_OF_A_KERNEL / plan.work.tokens,
    }
    streams = gpu.bandwidth * rates.streams
    compute["accumulating gradients"] = model.accumulated_bytes / streams / plan.work.tokens
    compute["optimizer"] = model.optimizer_bytes / streams / max(plan.work.step_tokens, plan.work.tokens)
    seconds = compute | _collectives(plan, model, gpu, rates, sum(compute.values()))
    total = sum(seconds.values())
    ranks = plan.setting.world_size
    return Prediction(seconds, ranks / total, (model.products + 3 * model.attention) / total / gpu.flops)


def _seconds_of_attention(rates: Rates, again: float, *, newer: bool) -> float:
    """Of a forward and backward pass, for one FLOP of a forward pass at the data sheet's rate."""
    if newer:
        return (1 + again) / rates.newer_attention_forward + 2.5 / rates.newer_attention_backward
    return (1 + again) / rates.attention_forward + 2.5 / rates.attention_backward


def _collectives(plan: MemoryPlan, model: _Model, gpu: Gpu, rates: Rates, compute: float) -> dict[str, float]:
    """Seconds that collectives add to a token: products next to them are slower, the excess waits."""
    ranks = plan.setting.world_size
    if ranks == 1:
        return {}
    link = (gpu.link or PCIE_LINK) * rates.link * ranks / (ranks - 1)
    tokens, step_tokens = plan.work.tokens, max(plan.work.step_tokens, plan.work.tokens)
    state, strategy = plan.setting.state, plan.setting.state.strategy
    # Sums over ranks are float32, and an all-reduce is twice a reduce-scatter.
    reduced = 4 * model.trained * (2 if strategy == "no_shard" else 1)
    # no_shard has whole gradients, which are reduced once where they are float32.
    each = state.sync_each_batch and (strategy != "no_shard" or state.grad_dtype != "float32")
    reductions = reduced / (tokens if each else step_tokens)
    if strategy == "full_shard":
        moved = 2 * 2 * model.parameters / tokens + reductions
    elif strategy == "shard_grad_op":
        moved = reductions + 2 * model.trained / step_tokens
    else:
        moved = reductions
    seconds = moved / link
    waits = max(0.0, seconds - compute)
    if not each:  # next to the backward pass of a step's last micro-batch
        waits = max(waits, (reduced / link - _BACKWARD * compute * tokens) / step_tokens)
    return {"collectives": rates.contention * min(seconds, compute) + waits}


class _Again(NamedTuple):
    """Operations, attention in forwards, and bytes of a token that backward computes again."""

    products: float = 0.0
    attention: float = 0.0
    elementwise: float = 0.0


class _Model:
    """Operations and bytes of a token, forward and backward, from the configuration of the plan."""

    def __init__(self, plan: MemoryPlan) -> None:
        from fastsft import _C

        setting = plan.setting
        config: dict[str, Any] = json.loads(setting.config_json)
        self.state, self.ranks, self.kernel = setting.state, setting.world_size, setting.attention_kernel
        self.parameters = self.trained = _C.count_parameters(setting.config_json)
        linear, quadratic = _C.conversation_cost(setting.config_json)
        self.products = linear
        if setting.adapters:  # a frozen matrix has two products of three: no gradient of its own
            self.trained = _C.count_trained_parameters(setting.config_json, adapters=setting.adapters)
            self.products = linear * 2 / 3 + 6 * self.trained
        self.blocks = linear / 3 - 2.0 * config["hidden_size"] * config["vocab_size"]  # forward
        length = max(plan.work.longest, 1)
        window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
        # Forward: 1 of the 3.5 parts that conversation_cost counts.
        self.attention = quadratic / 3.5 * (min(length, window) if window else length)
        self.layers: int = config["num_hidden_layers"]
        self.hidden: int = config["hidden_size"]
        self.inner: int = config["intermediate_size"]
        self.vocabulary: int = config["vocab_size"]
        heads = config["num_attention_heads"]
        size = config.get("head_dim") or self.hidden // heads
        self.query: int = heads * size
        self.key: int = (config.get("num_key_value_heads") or heads) * size

    @property
    def elementwise(self) -> float:
        """Bytes of norms, rotary positions, SwiGLU and the copies around attention; bfloat16."""
        rope = 2 * (self.query + self.key)
        copies = 0 if self.kernel == "cudnn" else 2 * self.query + 2 * (self.query + 2 * self.key)
        passes = 14 * self.hidden + 2 * rope + 8 * self.inner
        return 2.0 * self.layers * (passes + copies)

    @property
    def head_bytes(self) -> float:
        """Logits, their gradient and the embedding's rows."""
        return 14.0 * self.vocabulary + 30.0 * self.hidden

    @property
    def accumulated_bytes(self) -> float:
        """Of a micro-batch: gradients are read and written, in float32 or on one rank by the products."""
        in_products = self.ranks == 1 and self.state.grad_dtype == self.state.compute_dtype
        if self.state.grad_dtype == "float32" or in_products:
            return 2 * self.state.grad_itemsize * _OF_ADDING * self.trained
        return (4 * _OF_WRITING + 8) * self.trained

    @property
    def optimizer_bytes(self) -> float:
        """Of a step on one rank: master, optimizer state, gradient and its norm, bfloat16 weight."""
        gradient = self.state.grad_itemsize
        moment = 2 if self.state.optim_dtype == "bfloat16" else 4
        kept = {"adamw": 4 * moment, "adamw_8bit": 4, "sgd": 0, "adafactor": 3 * gradient}[
            self.state.optimizer
        ]
        copied = self.state.itemsize if self.state.master_itemsize == 4 else 0  # of a whole master
        master = 8 + copied
        held: int = 1 if self.state.strategy == "no_shard" else self.ranks
        return float((master + kept + 2 * gradient) * self.trained / held)

    def recomputed(self, policy: str) -> _Again:
        """Work that `policy` adds to a token (docs/decisions.md)."""
        if policy == "selective":  # written by the backward passes of norms and SwiGLU
            return _Again(elementwise=2.0 * self.layers * (2 * self.hidden + self.inner))
        if policy == "gate_up":  # and one norm by itself
            again = 2.0 * self.layers * (3 * self.hidden + self.inner)
            return _Again(4.0 * self.layers * self.hidden * self.inner, 0.0, again)
        if policy == "block":
            return _Again(self.blocks, 1.0, self.elementwise / 2)
        return _Again()
