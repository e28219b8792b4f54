"""What scripts read from the arguments besides their fields: ranks, device, batch sizes, JSON."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from fastsft.launcher import barrier, launch
from fastsft.sharding_arguments import fsdp_tokens, node_size, strategy_of


class ArgumentViews:
    """Read-only views of a TrainingArguments and of the launch; names are those of transformers."""

    per_device_train_batch_size: int
    per_device_eval_batch_size: int
    fsdp: list[str] | str | None
    fsdp_config: dict[str, Any] | str | None
    _device: str = "cpu"

    @property
    def world_size(self) -> int:
        """Ranks that train together."""
        return launch().world_size

    @property
    def process_index(self) -> int:
        """Global rank of this process."""
        return launch().rank

    @property
    def local_process_index(self) -> int:
        """Rank of this process on its machine."""
        return launch().local_rank

    @property
    def offload(self) -> bool:
        """Whether optimizer state lives on the host: `offload` in --fsdp, `cpu_offload` in fsdp_config."""
        return "offload" in fsdp_tokens(self.fsdp) or bool(self._fsdp_settings.get("cpu_offload"))

    @property
    def node_size(self) -> int:
        """Ranks that hybrid strategies shard over; 0 for other strategies. ValueError: sharding_arguments."""
        return node_size(strategy_of(fsdp_tokens(self.fsdp)), self._fsdp_settings, launch())

    @property
    def _fsdp_settings(self) -> dict[str, Any]:
        return self.fsdp_config if isinstance(self.fsdp_config, dict) else {}

    @property
    def n_gpu(self) -> int:
        """1 on a GPU: one process each. 0 on the CPU."""
        return 0 if self.device == "cpu" else 1

    @property
    def device(self) -> str:
        """Where this rank computes: `cpu`, or its GPU, `cuda:<local rank>`."""
        return self._device

    @property
    def train_batch_size(self) -> int:
        """Conversations of one micro-batch of one rank."""
        return self.per_device_train_batch_size

    @property
    def eval_batch_size(self) -> int:
        """The same, for evaluation."""
        return self.per_device_eval_batch_size

    @property
    def should_log(self) -> bool:
        """Whether this process writes logs: global rank 0."""
        return self.process_index == 0

    @property
    def should_save(self) -> bool:
        """Whether this process writes files: global rank 0."""
        return self.process_index == 0

    @contextlib.contextmanager
    def main_process_first(self, local: bool = True, desc: str = "work") -> Iterator[None]:
        """Let (local) rank 0 run the block before the others."""
        first = (self.local_process_index if local else self.process_index) == 0
        if not first:
            barrier()
        yield
        if first:
            barrier()

    def to_dict(self) -> dict[str, Any]:
        """All fields; values of names that end in `_token` are masked."""
        values = {item.name: getattr(self, item.name) for item in fields(self) if item.init}  # type: ignore[arg-type]
        return {
            name: f"<{name.upper()}>" if name.endswith("_token") else value for name, value in values.items()
        }

    def to_json_string(self) -> str:
        """`to_dict()` as JSON with indent 2."""
        return json.dumps(self.to_dict(), indent=2)

    def to_sanitized_dict(self) -> dict[str, Any]:
        """`to_dict()` and the batch sizes; what is no bool, int, float or str becomes a string."""
        values = {
            **self.to_dict(),
            "train_batch_size": self.train_batch_size,
            "eval_batch_size": self.eval_batch_size,
        }
        return {
            name: value if isinstance(value, bool | int | float | str) else str(value)
            for name, value in values.items()
        }
