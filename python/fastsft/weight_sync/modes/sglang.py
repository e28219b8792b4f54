"""SGLang's update_weights_from_distributed: requests of bounded size, a broadcast for each of their tensors.

A receiver allocates all tensors of a request at once. Tensors without bytes are not sent.
Rules: docs/spec/weight_sync.md, section 2.6.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastsft.weight_sync.modes import SyncOptions, register
from fastsft.weight_sync.modes.trinity import on_wire

if TYPE_CHECKING:
    from fastsft.weight_sync.plan import SyncPlan
    from fastsft.weight_sync.sources.source import Load
    from fastsft.weight_sync.tensor_stream import Feed
    from fastsft.weight_sync.transport import Transport


@register
class SGLang:
    """`announce` gets names, dtypes, shapes, weight_version, and flush_cache, true for the last request only.

    It must not wait for the engine's answer, which comes after the broadcasts.
    """

    name = "sglang"
    handshakes = False
    every_rank = False

    def send(self, feed: Feed, plan: SyncPlan, transport: Transport, options: SyncOptions) -> None:
        batches = plan.buckets("tensor_batches", options.bucket_bytes)
        for index, batch in enumerate(batches):
            numbers = [piece.tensor for piece in batch.pieces]
            if options.announce is not None:
                options.announce(_request(plan, numbers, options.version, index + 1 == len(batches)))
            tensors = feed.take(batch.first, batch.last)
            sent = [
                (number, on_wire(tensors[number - batch.first], plan, number, transport))
                for number in numbers
            ]
            works = [(transport.broadcast(tensor), plan.names[number]) for number, tensor in sent]
            for work, name in works:
                transport.wait(work, name)

    def receive(self, plan: SyncPlan, transport: Transport, options: SyncOptions, load: Load) -> None:
        load(
            [
                (plan.names[i], plan.empty(i, transport.device))
                for i, size in enumerate(plan.sizes)
                if not size
            ]
        )
        for batch in plan.buckets("tensor_batches", options.bucket_bytes):
            numbers = [piece.tensor for piece in batch.pieces]
            tensors = [(plan.names[number], plan.empty(number, transport.device)) for number in numbers]
            works = [(transport.broadcast(tensor), name) for name, tensor in tensors]
            for work, name in works:
                transport.wait(work, name)
            load(tensors)


def _request(plan: SyncPlan, numbers: list[int], version: int, is_last: bool) -> dict[str, Any]:
    return {
        "names": [plan.names[number] for number in numbers],
        "dtypes": [plan.dtype_names[number] for number in numbers],
        "shapes": [plan.shapes[number] for number in numbers],
        "weight_version": str(version),
        "flush_cache": is_last,
    }
