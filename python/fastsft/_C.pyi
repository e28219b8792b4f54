"""
fastsft: native core
"""

from __future__ import annotations

import collections.abc
import typing

import numpy
import numpy.typing
import torch

__all__: list[str] = [
    "Engine",
    "GroupPlan",
    "Schedule",
    "StepResult",
    "TokenDataset",
    "epoch_order",
    "micro_batch_count",
    "plan_group",
    "rank_micro_batches",
    "schedule_names",
    "torch_version",
    "with_cuda",
]

class TokenDataset:
    def __init__(self) -> None: ...
    def __len__(self) -> int: ...
    def append(
        self,
        ids: typing.Annotated[numpy.typing.ArrayLike, numpy.int32],
        learned: collections.abc.Sequence[
            tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex]
        ],
    ) -> None: ...
    def ids(self, row: typing.SupportsInt | typing.SupportsIndex) -> numpy.typing.NDArray[numpy.int32]: ...
    def learned(self, row: typing.SupportsInt | typing.SupportsIndex) -> list[tuple[int, int]]: ...
    def length(self, row: typing.SupportsInt | typing.SupportsIndex) -> int: ...
    def lengths(self) -> numpy.typing.NDArray[numpy.int64]: ...
    def num_targets(self, row: typing.SupportsInt | typing.SupportsIndex) -> int: ...
    def target_counts(self) -> numpy.typing.NDArray[numpy.int64]: ...
    @property
    def num_tokens(self) -> int: ...

class GroupPlan:
    @property
    def micro_batches(self) -> list[numpy.typing.NDArray[numpy.int64]]: ...
    @property
    def num_targets(self) -> int: ...
    @property
    def weights(self) -> list[numpy.typing.NDArray[numpy.float64]]: ...

class Schedule:
    def __init__(
        self,
        name: str,
        *,
        learning_rate: typing.SupportsFloat | typing.SupportsIndex,
        warmup_steps: typing.SupportsInt | typing.SupportsIndex,
        total_steps: typing.SupportsInt | typing.SupportsIndex,
        options: collections.abc.Mapping[str, typing.SupportsFloat | typing.SupportsIndex | str] = {},
    ) -> None: ...
    def rate(self, step: typing.SupportsInt | typing.SupportsIndex) -> float: ...

class StepResult:
    @property
    def finite(self) -> bool: ...
    @property
    def grad_norm(self) -> float: ...
    @property
    def loss(self) -> float: ...

class Engine:
    def __init__(
        self,
        config_json: str,
        *,
        compute_dtype: str = "float32",
        strategy: str = "no_shard",
        recompute: str = "selective",
        gather_group: str = "",
        reduce_group: str = "",
        num_threads: typing.SupportsInt | typing.SupportsIndex = 0,
        max_positions: typing.SupportsInt | typing.SupportsIndex = 0,
    ) -> None: ...
    def gradients(
        self,
        dataset: TokenDataset,
        rows: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
        weights: typing.Annotated[numpy.typing.ArrayLike, numpy.float64],
        *,
        label_smoothing: typing.SupportsFloat | typing.SupportsIndex = 0.0,
    ) -> tuple[float, dict[str, torch.Tensor]]: ...
    def logits(
        self,
        input_ids: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
        lengths: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
    ) -> torch.Tensor: ...
    def loss(
        self,
        dataset: TokenDataset,
        rows: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
        weights: typing.Annotated[numpy.typing.ArrayLike, numpy.float64],
        *,
        label_smoothing: typing.SupportsFloat | typing.SupportsIndex = 0.0,
    ) -> float: ...
    def memory(self) -> dict[str, int]: ...
    def named_parameters(self) -> dict[str, torch.Tensor]: ...
    def publish(self) -> None: ...
    def set_parameter(self, name: str, value: torch.Tensor) -> None: ...
    def train_step(
        self,
        dataset: TokenDataset,
        micro_batches: collections.abc.Sequence[typing.Annotated[numpy.typing.ArrayLike, numpy.int64]],
        weights: collections.abc.Sequence[typing.Annotated[numpy.typing.ArrayLike, numpy.float64]],
        *,
        learning_rate: typing.SupportsFloat | typing.SupportsIndex,
        beta1: typing.SupportsFloat | typing.SupportsIndex = 0.9,
        beta2: typing.SupportsFloat | typing.SupportsIndex = 0.999,
        eps: typing.SupportsFloat | typing.SupportsIndex = 1e-08,
        weight_decay: typing.SupportsFloat | typing.SupportsIndex = 0.0,
        max_grad_norm: typing.SupportsFloat | typing.SupportsIndex = 1.0,
        label_smoothing: typing.SupportsFloat | typing.SupportsIndex = 0.0,
    ) -> StepResult: ...
    @property
    def config_json(self) -> str: ...
    @property
    def num_non_embedding_parameters(self) -> int: ...
    @property
    def num_parameters(self) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def step_count(self) -> int: ...
    @step_count.setter
    def step_count(self, arg1: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    @property
    def unit_hashes(self) -> list[str]: ...
    @property
    def unit_names(self) -> list[str]: ...
    @property
    def unit_sizes(self) -> list[int]: ...
    @property
    def world_size(self) -> int: ...

def epoch_order(
    size: typing.SupportsInt | typing.SupportsIndex,
    seed: typing.SupportsInt | typing.SupportsIndex,
    epoch: typing.SupportsInt | typing.SupportsIndex,
) -> numpy.typing.NDArray[numpy.int64]: ...
def micro_batch_count(
    size: typing.SupportsInt | typing.SupportsIndex,
    batch_size: typing.SupportsInt | typing.SupportsIndex,
    world_size: typing.SupportsInt | typing.SupportsIndex = 1,
    drop_last: bool = False,
) -> int: ...
def plan_group(
    lengths: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
    target_counts: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
    group: collections.abc.Sequence[
        collections.abc.Sequence[collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]]
    ],
    rank: typing.SupportsInt | typing.SupportsIndex = 0,
    loss_norm: str = "global_tokens",
    average_tokens_across_devices: bool = True,
    *,
    micro_batch_tokens: typing.SupportsInt | typing.SupportsIndex,
) -> GroupPlan: ...
def rank_micro_batches(
    order: typing.Annotated[numpy.typing.ArrayLike, numpy.int64],
    batch_size: typing.SupportsInt | typing.SupportsIndex,
    rank: typing.SupportsInt | typing.SupportsIndex = 0,
    world_size: typing.SupportsInt | typing.SupportsIndex = 1,
    drop_last: bool = False,
) -> list[numpy.typing.NDArray[numpy.int64]]: ...
def schedule_names() -> list[str]: ...

torch_version: str
with_cuda: bool
