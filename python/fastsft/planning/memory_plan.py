"""Memory of a run, planned before it begins: tokens of a micro-batch and what backward computes again.

The bytes come from the engine's own description of itself (csrc/train/memory.h).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from fastsft.planning.gpus import Gpu
from fastsft.planning.state_options import default_state_options

if TYPE_CHECKING:
    from fastsft import _C


@dataclass(frozen=True)
class Workload:
    """The most of one rank: tokens, labels and longest conversation of a micro-batch; the same of a step."""

    tokens: int = 0
    labels: int = 0
    longest: int = 0
    step_tokens: int = 0
    step_labels: int = 0
    micro_batches: int = 1

    def shapes(self) -> dict[str, tuple[int, int, int]]:
        """The arguments of `_C.plan_memory` and `_C.Engine.reserve`."""
        return {
            "micro_batch": (self.tokens, self.labels, self.longest),
            "step": (self.step_tokens, self.step_labels, self.micro_batches),
        }

    @classmethod
    def full(cls, tokens: int, longest: int, micro_batches: int = 1) -> Workload:
        """Micro-batches of `tokens` tokens, all of them learned."""
        step = tokens * micro_batches
        return cls(tokens, tokens, min(longest, tokens), step, step, micro_batches)


class CalledSizes(Protocol):
    """Layout of a generic model, and estimated bytes of its activations by purpose."""

    @property
    def layout(self) -> _C.CalledModel: ...
    def whole_bytes(self) -> int: ...
    def parts(self, recompute: str, tokens: int, labels: int, longest: int) -> Mapping[str, int]: ...


@dataclass(frozen=True)
class Setting:
    """Settings that a rank's bytes depend on. node_size: ranks that hybrid strategies shard over, 0: all.

    called: what is known of a model that is not native, else None.
    adapters: the engine's AdapterOptions; None: the whole model is trained.
    gpu: whose speed decides between plans that fit; None: not known.
    """

    config_json: str
    state: _C.StateOptions = field(default_factory=default_state_options)
    world_size: int = 1
    device: str = "cpu"
    threads: int = 1
    node_size: int = 0
    called: CalledSizes | None = None
    adapters: _C.AdapterOptions | None = None
    gpu: Gpu | None = None
    attention_kernel: str = "flash2"

    @property
    def may_reduce_once(self) -> bool:
        """Ranks share gradients that can be kept whole until a step's last micro-batch."""
        shared = self.world_size > 1 and self.state.strategy != "no_shard"
        return shared and self.state.grad_dtype == "float32"

    def with_generic(self, sizes: CalledSizes | None) -> Setting:
        """Return a copy with the activation estimates of a generic model."""
        return replace(self, called=sizes)

    def with_state(self, **changes: Any) -> Setting:
        """The same with other state options."""
        return replace(self, state=self.state.replace(**changes))


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes of one rank by what they are for, and the choices that they follow from.

    parts and outside: on its device, which may be the CPU. host: page-locked with a GPU. work: what it is
    planned for.
    """

    setting: Setting
    recompute: str
    token_budget: int
    parts: dict[str, int]
    outside: int
    host: int = 0
    work: Workload = Workload()

    @property
    def total(self) -> int:
        """The most bytes of the device at one time."""
        return sum(self.parts.values()) + self.outside

    @property
    def state(self) -> int:
        """Parameters, gradients and optimizer state of the device."""
        return sum(self.parts[name] for name in ("parameters", "gradients", "optimizer"))

    @property
    def staging(self) -> int:
        """Bytes of host memory that this rank copies its part of a checkpoint to; not in `total`.

        They are those of offloaded float32 masters and moments: with a GPU page-locked, and each piece a
        power of two. Where they are not there, training waits for saves instead (checkpoint/saver.py).
        """
        held = self.setting.with_state(
            strategy="full_shard", compute_dtype="bfloat16", master_dtype="float32", offload=True
        )
        on_host, on_device = (
            plan_memory(replace(setting, node_size=0), "none", 0, Workload())
            for setting in (held, held.with_state(offload=False))
        )
        return on_host.parts["optimizer on the host"] + on_host.host - on_device.host


def plan_memory(setting: Setting, recompute: str, token_budget: int, work: Workload) -> MemoryPlan:
    """The plan for one recompute policy and one budget. ValueError for an unknown model or name."""
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
        model=None if setting.called is None else setting.called.layout,
    )
    parts = dict(plan.parts)
    if setting.called is not None:
        parts.update(setting.called.parts(recompute, work.tokens, work.labels, work.longest))
    return MemoryPlan(setting, recompute, token_budget, parts, plan.outside, plan.host, work)
