"""Memory plan: bytes by purpose for a token budget and a recompute policy.

The bytes come from the engine's description of itself (csrc/train/memory.h).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from fastsft.arguments.device_fields import FLOAT32_MASTERS
from fastsft.arguments.engine_flags import default_state_options
from fastsft.planning.devices import Gpu

if TYPE_CHECKING:
    from fastsft import _C


@dataclass(frozen=True)
class BatchShape:
    """Upper bounds for a rank: tokens, labels and max_seqlen per micro-batch; tokens and labels per step."""

    tokens: int = 0
    labels: int = 0
    max_seqlen: int = 0
    step_tokens: int = 0
    step_labels: int = 0
    micro_batches: int = 1

    def shapes(self) -> dict[str, tuple[int, int, int]]:
        """Return arguments of `_C.plan_memory` and `_C.Engine.reserve`."""
        return {
            "micro_batch": (self.tokens, self.labels, self.max_seqlen),
            "step": (self.step_tokens, self.step_labels, self.micro_batches),
        }

    @classmethod
    def full(cls, tokens: int, max_seqlen: int, micro_batches: int = 1) -> BatchShape:
        """Return micro-batches with `tokens` tokens, which are all targets."""
        step = tokens * micro_batches
        return cls(tokens, tokens, min(max_seqlen, tokens), step, step, micro_batches)


class GenericSizes(Protocol):
    """Layout of a generic model, and estimated bytes of its activations by purpose."""

    @property
    def layout(self) -> _C.GenericModel: ...
    def whole_bytes(self) -> int: ...
    def parts(self, recompute: str, tokens: int, labels: int, max_seqlen: int) -> Mapping[str, int]: ...


@dataclass(frozen=True)
class EngineSettings:
    """Settings that the bytes of a rank depend on.

    node_size: ranks that hybrid strategies shard over; 0: all ranks.
    generic: layout and activation sizes of a generic model; None for a native one.
    adapters: the engine's AdapterOptions; None: the whole model is trained.
    gpu: GPU whose speed decides between plans that fit; None: unknown.
    """

    config_json: str
    state: _C.StateOptions = field(default_factory=default_state_options)
    world_size: int = 1
    device: str = "cpu"
    threads: int = 1
    node_size: int = 0
    generic: GenericSizes | None = None
    adapters: _C.AdapterOptions | None = None
    gpu: Gpu | None = None
    attention_kernel: str = "flash2"

    @property
    def may_reduce_once(self) -> bool:
        """True if ranks shard gradients, and could keep them whole until the last micro-batch of a step."""
        shared = self.world_size > 1 and self.state.strategy != "no_shard"
        return shared and self.state.grad_dtype == "float32"

    def with_generic(self, sizes: GenericSizes | None) -> EngineSettings:
        """Return a copy with the activation estimates of a generic model."""
        return replace(self, generic=sizes)

    def with_state(self, **changes: Any) -> EngineSettings:
        """Return a copy with other state options."""
        return replace(self, state=self.state.replace(**changes))


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes of one rank by purpose, and the choices that they follow from.

    parts, outside: on its device, which may be the CPU. host: page-locked host memory of a GPU run. work: the
    batch shape that was planned.
    """

    setting: EngineSettings
    recompute: str
    token_budget: int
    parts: dict[str, int]
    outside: int
    host: int = 0
    work: BatchShape = BatchShape()

    @property
    def total(self) -> int:
        """Peak bytes of the device."""
        return sum(self.parts.values()) + self.outside

    @property
    def state(self) -> int:
        """Bytes of parameters, gradients and optimizer state on the device."""
        return sum(self.parts[name] for name in ("parameters", "gradients", "optimizer"))

    @property
    def staging(self) -> int:
        """Host bytes to which this rank copies its part of a checkpoint; not in `total`.

        As many as for offloaded float32 masters and moments: with a GPU, page-locked pieces whose sizes are
        powers of two. If the host has no room for them, training waits for saves (checkpoint/saver.py).
        """
        held = self.setting.with_state(strategy="full_shard", offload=True, **FLOAT32_MASTERS)
        on_host, on_device = (
            plan_memory(replace(setting, node_size=0), "none", 0, BatchShape())
            for setting in (held, held.with_state(offload=False))
        )
        return on_host.parts["optimizer on the host"] + on_host.host - on_device.host


def plan_memory(setting: EngineSettings, recompute: str, token_budget: int, work: BatchShape) -> MemoryPlan:
    """Plan memory for one recompute policy and token budget. ValueError for an unknown model or name."""
    from fastsft import _C

    plan = _C.plan_memory(
        setting.config_json,
        setting.state,
        adapters=setting.adapters or _C.AdapterOptions(),
        recompute=recompute,
        world_size=setting.world_size,
        node_size=setting.node_size,
        **work.shapes(),
        threads=setting.threads,
        on_cpu=setting.device == "cpu",
        use_cudnn=setting.attention_kernel in ("auto", "cudnn"),
        model=None if setting.generic is None else setting.generic.layout,
    )
    parts = dict(plan.parts)
    if setting.generic is not None:
        parts.update(setting.generic.parts(recompute, work.tokens, work.labels, work.max_seqlen))
    return MemoryPlan(setting, recompute, token_budget, parts, plan.outside, plan.host, work)
