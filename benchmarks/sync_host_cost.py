"""What a repeated sync costs the sender's host for each tensor, with nothing on the wire."""

from __future__ import annotations

import statistics
import time
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from fastsft.weight_sync import fsdp_sync_weight_nccl

COUNTS = (500, 4000)  # tensors of 8 numbers


class Nowhere:
    """A group whose broadcasts are done at once, and whose other member votes as the sender does."""

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 2

    def name(self) -> str:
        return "gloo"

    def broadcast(self, tensors: Any, options: Any) -> Nowhere:
        return self

    def allgather(self, outputs: Any, inputs: Any, options: Any) -> Nowhere:
        for output in outputs[0]:
            output.copy_(inputs[0])
        return self

    def wait(self, *_: Any) -> bool:
        return True


def engine_of(count: int) -> Any:
    module = nn.Module()
    module.tensors = nn.ParameterList([nn.Parameter(torch.zeros(8)) for _ in range(count)])
    return SimpleNamespace(module=module)


def host_cost_us(mode: str, repeats: int) -> dict[str, float]:
    """Microseconds of processor time a tensor: the slope between both counts of the median sync; the plan was
    made before."""
    group, medians = Nowhere(), {}
    for count in COUNTS:
        engine = engine_of(count)
        seconds = []
        for _ in range(repeats + 1):
            began = time.thread_time()
            fsdp_sync_weight_nccl(engine, group, mode=mode, bucket_bytes=1 << 20)
            seconds.append(time.thread_time() - began)
        medians[count] = statistics.median(seconds[1:])
    few, many = COUNTS
    slope = (medians[many] - medians[few]) / (many - few)
    return {"us_per_tensor": 1e6 * slope, "ms_at_few": 1e3 * medians[few], "ms_at_many": 1e3 * medians[many]}
