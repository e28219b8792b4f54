"""vLLM's packed engine: chunks of bytes, cut by its rule (docs/spec/weight_sync.md, section 2.5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastsft.weight_sync.modes import SyncOptions, register

if TYPE_CHECKING:
    import torch

    from fastsft.weight_sync.plan import SyncPlan
    from fastsft.weight_sync.sources.source import Load
    from fastsft.weight_sync.tensor_stream import Feed
    from fastsft.weight_sync.transport import Transport


@register
class VllmPacked:
    """`bucket_bytes` is vLLM's packed_buffer_size_bytes: both sides must have the same."""

    name = "vllm_packed"
    handshakes = False
    every_rank = False

    def send(self, feed: Feed, plan: SyncPlan, transport: Transport, options: SyncOptions) -> None:
        import torch

        from fastsft import _C

        before: tuple[Any, str, torch.Tensor] | None = None
        for index, chunk in enumerate(plan.buckets("vllm_chunks", options.bucket_bytes)):
            tensors = feed.take(chunk.first, chunk.last)
            buffer = torch.empty(chunk.bytes, dtype=torch.uint8, device=transport.device)
            _C.pack_bucket(plan.native, chunk, chunk.first, tensors, buffer)
            if before is not None:
                transport.wait(*before[:2])
            before = transport.broadcast(buffer), f"chunk {index}", buffer
        if before is not None:
            transport.wait(*before[:2])

    def receive(self, plan: SyncPlan, transport: Transport, options: SyncOptions, load: Load) -> None:
        import torch

        from fastsft import _C

        for index, chunk in enumerate(plan.buckets("vllm_chunks", options.bucket_bytes)):
            buffer = torch.empty(chunk.bytes, dtype=torch.uint8, device=transport.device)
            transport.wait(transport.broadcast(buffer), f"chunk {index}")
            numbers = range(chunk.first, chunk.last + 1)
            tensors = [plan.empty(number, transport.device) for number in numbers]
            _C.unpack_bucket(plan.native, chunk, chunk.first, tensors, buffer)
            load([(plan.names[number], tensor) for number, tensor in zip(numbers, tensors, strict=True)])
