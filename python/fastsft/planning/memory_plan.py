"""Plans memory: the bytes that a rank needs, by purpose, for a token budget and a recompute policy.

The engine computes the bytes from the model configuration, without allocating anything (csrc/train/memory.h).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from fastsft.arguments.device_fields import FLOAT32_MASTERS
from fastsft.arguments.engine_flags import default_state_options
from fastsft.planning.gpus import Gpu

if TYPE_CHECKING:
    from fastsft import _C


@dataclass(frozen=True)
class BatchShape:
    """Upper bounds for a rank's batches.

    tokens, labels: in a micro-batch. max_seqlen: tokens of the longest conversation, which ranks may share.
    step_*: in a step. micro_batches: micro-batches of a step.
    """

    tokens: int = 0
    labels: int = 0
    max_seqlen: int = 0
    step_tokens: int = 0
    step_labels: int = 0
    micro_batches: int = 1

    def shapes(self) -> dict[str, tuple[int, int, int]]:
        """Return the bounds as keyword arguments of `_C.plan_memory` and `_C.Engine.reserve`."""
        return {
            "micro_batch": (self.tokens, self.labels, self.max_seqlen),
            "step": (self.step_tokens, self.step_labels, self.micro_batches),
        }

    def shared_by(self, ranks: int) -> BatchShape:
        """Return the bounds for each of `ranks` ranks that share the tokens of these micro-batches.

        All labels of a micro-batch may be among the tokens of a single rank.
        """
        if ranks == 1:
            return self
        tokens, step_tokens = -(-self.tokens // ranks), -(-self.step_tokens // ranks) + self.micro_batches
        return replace(
            self, tokens=tokens, labels=min(tokens, self.labels), step_tokens=step_tokens,
            step_labels=min(step_tokens, self.step_labels),
        )  # fmt: skip

    @classmethod
    def full(cls, tokens: int, max_seqlen: int, micro_batches: int = 1) -> BatchShape:
        """Return the shape of micro-batches with `tokens` tokens, all of which are targets."""
        step = tokens * micro_batches
        return cls(tokens, tokens, min(max_seqlen, tokens), step, step, micro_batches)


class GenericSizes(Protocol):
    """Layout and estimated activation memory [bytes] by purpose, for a generic model."""

    @property
    def layout(self) -> _C.GenericModel: ...
    def whole_bytes(self) -> int: ...
    def parts(self, recompute: str, tokens: int, labels: int, max_seqlen: int) -> Mapping[str, int]: ...


@dataclass(frozen=True)
class EngineSettings:
    """Settings that a rank's memory use depends on.

    config_json: the model configuration. threads: CPU threads of the engine.
    node_size: how many ranks a hybrid strategy shards over; 0: all ranks.
    generic: layout and activation sizes of a generic model; None for a native model.
    adapters: the engine's AdapterOptions; None: the whole model is trained.
    gpu: data sheet of the GPU for which the speed of plans is compared; None: unknown.
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
        """True if gradients are sharded, but could stay whole until the last micro-batch of a step."""
        shared = self.world_size > 1 and self.state.strategy != "no_shard"
        return shared and self.state.grad_dtype == "float32"

    @property
    def may_keep_fp8_weights(self) -> bool:
        """True if the model computes in 8 bits, and each rank has its weights between micro-batches."""
        from fastsft import _C

        whole = self.world_size == 1 or self.state.strategy in _C.strategies_with_whole_weights()
        return self.state.fp8 != "none" and whole

    def with_generic(self, sizes: GenericSizes | None) -> EngineSettings:
        """Return a copy with the activation estimates of a generic model."""
        return replace(self, generic=sizes)

    def with_state(self, **changes: Any) -> EngineSettings:
        """Return a copy with other state options."""
        return replace(self, state=self.state.replace(**changes))


@dataclass(frozen=True)
class MemoryPlan:
    """The bytes that one rank needs, and the settings from which they were computed.

    parts: device bytes by purpose; the device may be the CPU. outside: device bytes of the attention kernel's
    scratch memory. host: bytes of page-locked host memory in a GPU run. work: the planned batch shape.
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
        """Peak memory on the device in bytes."""
        return sum(self.parts.values()) + self.outside

    @property
    def state(self) -> int:
        """Bytes of parameters, gradients and optimizer state on the device."""
        return sum(self.parts[name] for name in ("parameters", "gradients", "optimizer"))

    @property
    def has_useful_tiles(self) -> bool:
        """True if micro-batches are not divided into tiles, or are larger than a tile."""
        tile: int = self.setting.state.tile_tokens
        return tile == 0 or tile < self.work.tokens

    @property
    def how_computed(self) -> str:
        """The recompute policy as text, with tiles and offloaded inputs if the plan has them."""
        state = self.setting.state
        inputs = ", inputs of blocks on the host" if state.offload_inputs else ""
        return f"{self.recompute}{inputs}" + (
            f", tiles of {state.tile_tokens:,} tokens" if state.tile_tokens else ""
        )

    @property
    def staging(self) -> int:
        """Host memory [bytes] into which this rank copies its part of a checkpoint; not counted in `total`.

        The copy is as large as offloaded float32 master weights and moments. With a GPU, the memory consists
        of page-locked pieces whose sizes are powers of two. If the host has too little memory for the copy,
        training waits until a save is finished (checkpoint/saver.py).
        """
        held = self.setting.with_state(
            strategy="full_shard",
            offload=True,
            offload_inputs=False,
            keep_fp8_weights=False,
            **FLOAT32_MASTERS,
        )
        on_host, on_device = (
            plan_memory(replace(setting, node_size=0), "none", 0, BatchShape())
            for setting in (held, held.with_state(offload=False))
        )
        return on_host.parts["optimizer on the host"] + on_host.host - on_device.host


def plan_memory(setting: EngineSettings, recompute: str, token_budget: int, work: BatchShape) -> MemoryPlan:
    """Plan memory for one recompute policy and token budget. ValueError for an unknown model or policy."""
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
