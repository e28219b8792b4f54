"""One broadcast a tensor, in the order of the plan: what the original's receivers take part in."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from fastsft.weight_sync.modes import SyncOptions, register

if TYPE_CHECKING:
    import torch

    from fastsft.weight_sync.plan import SyncPlan
    from fastsft.weight_sync.sources.source import Load
    from fastsft.weight_sync.tensor_stream import Feed
    from fastsft.weight_sync.transport import Transport

_IN_FLIGHT = 4


@register
class Trinity:
    """Tensors without elements are broadcast too, as receivers that go by the metadata expect."""

    name = "trinity"
    handshakes = False
    every_rank = False

    def send(self, feed: Feed, plan: SyncPlan, transport: Transport, options: SyncOptions) -> None:
        under_way: deque[tuple[Any, str]] = deque()
        for number, name in enumerate(plan.names):
            (tensor,) = feed.take(number, number)
            under_way.append((transport.broadcast(on_wire(tensor, plan, number, transport)), name))
            if len(under_way) > _IN_FLIGHT:
                transport.wait(*under_way.popleft())
        while under_way:
            transport.wait(*under_way.popleft())

    def receive(self, plan: SyncPlan, transport: Transport, options: SyncOptions, load: Load) -> None:
        for number, name in enumerate(plan.names):
            tensor = plan.empty(number, transport.device)
            transport.wait(transport.broadcast(tensor), name)
            load([(name, tensor)])


def on_wire(tensor: torch.Tensor, plan: SyncPlan, number: int, transport: Transport) -> torch.Tensor:
    """The tensor as the plan says it is sent. RuntimeError when it has another shape by now."""
    if tensor.shape != plan.torch_shapes[number]:
        name = plan.names[number]
        raise RuntimeError(f"tensor {name} changed its shape after the plan was made; make a new plan")
    dtype, device = plan.dtypes[number], transport.device
    if tensor.dtype != dtype or not (device == "cpu" and tensor.is_cpu):
        tensor = tensor.to(device, dtype)
    return tensor if tensor.is_contiguous() else tensor.contiguous()
