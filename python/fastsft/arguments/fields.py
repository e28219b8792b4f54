"""The base class of TrainingArguments: all fields by subject, and properties that are derived from them."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import fields
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fastsft.arguments.device_fields import PrecisionArguments, ShardingArguments
from fastsft.arguments.engine_flags import DeepSpeedPlan, fsdp_tokens, node_size, strategy_of
from fastsft.arguments.for_transformers import (
    ArgumentSetters,
    DistributedState,
    ForTransformers,
    ParallelMode,
    process_log_level,
)
from fastsft.arguments.given import RecordsGiven
from fastsft.arguments.output_fields import CheckpointArguments, FaultArguments, HubArguments, ReportArguments
from fastsft.arguments.training_fields import (
    BatchArguments,
    EvaluationArguments,
    OptimizerArguments,
    RunArguments,
)
from fastsft.arguments.values import plain
from fastsft.ranks.process_group import barrier
from fastsft.runtime.launch import launch

if TYPE_CHECKING:
    import accelerate
    import torch
    import transformers


# A dataclass takes the fields of its bases from the last base to the first, so output_dir is the first field.
class ArgumentFields(
    ForTransformers,
    ArgumentSetters,
    HubArguments,
    FaultArguments,
    ShardingArguments,
    PrecisionArguments,
    CheckpointArguments,
    EvaluationArguments,
    ReportArguments,
    OptimizerArguments,
    BatchArguments,
    RunArguments,
    RecordsGiven,
):
    """Base class of the dataclass TrainingArguments; the rules in `resolve` work on this class."""

    _device: str = "cpu"
    _deepspeed_plan: DeepSpeedPlan | None = None
    _order_seed: int | None = None
    _source: object = None  # the transformers.TrainingArguments that this object was made from
    _source_values: Mapping[str, object] = MappingProxyType({})
    # values of _source's attributes at the last comparison
    _source_seen: Mapping[str, object] = MappingProxyType({})

    @property
    def order_seed(self) -> int:
        """Seed of the row order.

        The value is data_seed if given. Otherwise, it is torch's seed at the start of `train`, as in
        accelerate's SeedableRandomSampler (torch.random.initial_seed()); before `train` starts, it is `seed`.
        """
        if self._order_seed is not None:
            return self._order_seed
        return self.seed if self.data_seed is None else self.data_seed

    @property
    def world_size(self) -> int:
        """The job's rank count."""
        return launch().world_size

    @property
    def process_index(self) -> int:
        """Global rank of this process."""
        return launch().rank

    @property
    def data_parallel_size(self) -> int:
        """Number of groups of context_parallel_size ranks; each group computes its own conversations."""
        return self.world_size // self.context_parallel_size

    @property
    def data_parallel_rank(self) -> int:
        """Number of the group that this rank belongs to."""
        return self.process_index // self.context_parallel_size

    @property
    def local_process_index(self) -> int:
        """This process's local rank."""
        return launch().local_rank

    @property
    def parallel_mode(self) -> ParallelMode | transformers.training_args.ParallelMode:
        """DISTRIBUTED if there are several ranks, else NOT_PARALLEL.

        If transformers' Trainer uses these arguments, the value is a member of transformers' own enum.
        """
        if self._theirs is not None:
            return self._theirs.parallel_mode
        return ParallelMode.DISTRIBUTED if self.world_size > 1 else ParallelMode.NOT_PARALLEL

    @property
    def distributed_state(self) -> DistributedState | accelerate.PartialState:
        """Ranks and device under the names of accelerate's PartialState.

        If transformers' Trainer uses these arguments, the value is a real PartialState.
        """
        if self._theirs is not None:
            return self._theirs.distributed_state
        return DistributedState(launch(), self.device)

    @property
    def ddp_timeout_delta(self) -> timedelta:
        """Timeout after which a collective fails."""
        return timedelta(seconds=self.ddp_timeout)

    @property
    def offload(self) -> bool:
        """True if --fsdp offload, fsdp_config's cpu_offload or a DeepSpeed file offloads optimizer state."""
        if self._deepspeed_plan is not None:
            return self._deepspeed_plan.offload
        return "offload" in fsdp_tokens(self.fsdp) or bool(self._fsdp_settings.get("cpu_offload"))

    @property
    def deepspeed_plan(self) -> DeepSpeedPlan | None:
        """Settings that the --deepspeed file requests; None if there is no such file."""
        return self._deepspeed_plan

    @property
    def sharding_strategy(self) -> str:
        """Name of the engine's sharding strategy, such as `full_shard`; by default `no_shard`."""
        if self._deepspeed_plan is not None:
            return self._deepspeed_plan.strategy
        return strategy_of(fsdp_tokens(self.fsdp))

    @property
    def node_size(self) -> int:
        """How many ranks a hybrid strategy shards over; 0 for other strategies.

        ValueError as in `engine_flags.node_size`.
        """
        return node_size(self.sharding_strategy, self._fsdp_settings, launch())

    @property
    def _fsdp_settings(self) -> dict[str, Any]:
        return self.fsdp_config if isinstance(self.fsdp_config, dict) else {}

    @property
    def n_gpu(self) -> int:
        """How many GPUs this process uses: 1, or 0 on the CPU."""
        return 0 if self._device == "cpu" else 1

    @property
    def device(self) -> torch.device:
        """Device of this rank: `cpu` or `cuda:<local rank>`."""
        import torch

        return torch.device(self._device)

    @property
    def train_batch_size(self) -> int:
        """Conversations in a rank's micro-batch; split_batches divides the flag's value among the ranks.

        With --context_parallel_size, the micro-batch is that of a group of ranks.
        """
        return self.per_device_train_batch_size // self._shares

    @property
    def eval_batch_size(self) -> int:
        """Conversations per rank and micro-batch in evaluations."""
        return self.per_device_eval_batch_size // self._shares

    @property
    def _shares(self) -> int:
        return self.data_parallel_size if self.split_batches else 1

    @property
    def should_log(self) -> bool:
        """True if this process logs: local rank 0 if log_on_each_node is True, else only global rank 0."""
        return (self.local_process_index if self.log_on_each_node else self.process_index) == 0

    @property
    def should_save(self) -> bool:
        """True if this process writes files: local rank 0 with save_on_each_node, else global rank 0."""
        return (self.local_process_index if self.save_on_each_node else self.process_index) == 0

    @property
    def place_model_on_device(self) -> bool:
        """True, as scripts for transformers expect; the engine puts the model on the device."""
        return True

    def get_process_log_level(self) -> int:
        """Return Python's logging level for log_level if this process logs, else for log_level_replica."""
        return process_log_level(self.log_level if self.should_log else self.log_level_replica)

    def get_warmup_steps(self, num_training_steps: int) -> int:
        """Return the warm-up step count; a fraction of the training steps is rounded up.

        See docs/spec/trainer_semantics.md, section 12.
        """
        if self.warmup_steps >= 1:
            return int(self.warmup_steps)
        return math.ceil(num_training_steps * (self.warmup_steps or self.warmup_ratio or 0.0))

    @contextlib.contextmanager
    def main_process_first(self, local: bool = True, desc: str = "work") -> Iterator[None]:
        """Let rank 0, or local rank 0 if `local` is True, run the block before the other ranks.

        Collective.
        """
        first = (self.local_process_index if local else self.process_index) == 0
        if not first:
            barrier()
        try:
            yield
        finally:
            if first:
                barrier()

    def to_dict(self) -> dict[str, Any]:
        """Return all fields by name; values of fields whose names end in `_token` are masked."""
        values = {item.name: getattr(self, item.name) for item in fields(self) if item.init}
        return {
            name: f"<{name.upper()}>" if name.endswith("_token") else plain(value)
            for name, value in values.items()
        }

    def to_json_string(self) -> str:
        """Return `to_dict()` as JSON, indented by 2."""
        return json.dumps(self.to_dict(), indent=2)

    def to_sanitized_dict(self) -> dict[str, Any]:
        """Return `to_dict()` and the batch sizes; values except bool, int and float become strings."""
        values = {
            **self.to_dict(),
            "train_batch_size": self.train_batch_size,
            "eval_batch_size": self.eval_batch_size,
        }
        return {
            name: value if isinstance(value, bool | int | float | str) else str(value)
            for name, value in values.items()
        }

    def __str__(self) -> str:
        """Return all fields, sorted by name, one per line; access tokens are masked."""
        lines = "".join(f"{name}={value},\n" for name, value in sorted(self.to_dict().items()))
        return f"{type(self).__name__}(\n{lines})"

    __repr__ = __str__
