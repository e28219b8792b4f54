"""fastsft's own receivers: version, plan, checksums, and an agreement on every bucket.

While bucket k is broadcast, bucket k + 1 is gathered and packed. After each broadcast all members vote: one
that failed, on either side, stops all of them at the same bucket.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastsft.weight_sync.modes import SyncOptions, register
from fastsft.weight_sync.transport import AgreedError

if TYPE_CHECKING:
    import torch

    from fastsft.weight_sync.plan import SyncPlan
    from fastsft.weight_sync.sources.source import Load
    from fastsft.weight_sync.tensor_stream import Feed
    from fastsft.weight_sync.transport import Transport


@register
class Native:
    """Buckets of `bucket_bytes` (a multiple of 16), the last one as long as it is; two in memory."""

    name = "native"
    handshakes = True
    every_rank = False

    def send(self, feed: Feed, plan: SyncPlan, transport: Transport, options: SyncOptions) -> None:
        buckets = plan.buckets("native_buckets", options.bucket_bytes)
        buffers = _buffers(buckets, transport)
        before: tuple[str, Any, dict[str, Any]] | None = None
        for index, bucket in enumerate(buckets):
            buffer = buffers[index % 2][: bucket.bytes]
            note = _pack(feed, plan, bucket, buffer, options)
            if before is not None:
                _settle(transport, *before)
            before = f"bucket {index}", transport.broadcast(buffer), note
            if "error" in note:
                break
        if before is not None:
            _settle(transport, *before)
        transport.vote(_last_word(feed), f"version {options.version}")

    def receive(self, plan: SyncPlan, transport: Transport, options: SyncOptions, load: Load) -> None:
        buckets = plan.buckets("native_buckets", options.bucket_bytes)
        buffers = _buffers(buckets, transport)
        arriving: dict[int, torch.Tensor] = {}
        note = _loaded(
            load, [(plan.names[i], plan.empty(i)) for i, size in enumerate(plan.sizes) if size == 0]
        )
        for index, bucket in enumerate(buckets):
            buffer = buffers[index % 2][: bucket.bytes]
            _settle(transport, f"bucket {index}", transport.broadcast(buffer), note, buffer, options)
            complete = _unpack(plan, bucket, buffer, arriving, transport.device)
            note = _loaded(load, complete)
        transport.vote(note, f"version {options.version}")


def _buffers(buckets: list[Any], transport: Transport) -> list[torch.Tensor]:
    import torch

    size = max((bucket.bytes for bucket in buckets), default=0)
    return [torch.empty(size, dtype=torch.uint8, device=transport.device) for _ in range(2)]


def _pack(
    feed: Feed, plan: SyncPlan, bucket: Any, buffer: torch.Tensor, options: SyncOptions
) -> dict[str, Any]:
    """Message about the bucket. Its failure goes the same way as the bytes, so that none waits."""
    from fastsft import _C

    try:
        tensors = feed.take(bucket.first, bucket.last)
        _C.pack_bucket(plan.native, bucket, bucket.first, tensors, buffer)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return _checksum(buffer, options)


def _last_word(feed: Feed) -> dict[str, Any]:
    try:
        feed.drain()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {}


def _checksum(buffer: torch.Tensor, options: SyncOptions) -> dict[str, Any]:
    from fastsft import _C

    if not options.checksum or not buffer.is_cpu:
        return {}
    return {"crc32c": _C.buffer_checksum(buffer, buffer.numel())}


def _settle(
    transport: Transport,
    what: str,
    work: Any,
    note: dict[str, Any],
    received: torch.Tensor | None = None,
    options: SyncOptions | None = None,
) -> None:
    """The broadcast is done and everybody has the same bytes; else RuntimeError on all."""
    transport.wait(work, what)
    if received is not None and options is not None:
        note = {**_checksum(received, options), **note}
    notes = transport.vote(note, what)
    sums = {each["crc32c"] for each in notes if "crc32c" in each}
    if len(sums) > 1:
        raise AgreedError(f"{what}: checksums differ between the sender and a receiver; sync again")


def _unpack(
    plan: SyncPlan, bucket: Any, buffer: torch.Tensor, arriving: dict[int, torch.Tensor], device: Any
) -> list[tuple[str, torch.Tensor]]:
    """The tensors that this bucket completes; a sliced one waits in `arriving`."""
    from fastsft import _C

    numbers = range(bucket.first, bucket.last + 1)
    for number in numbers:
        if number not in arriving:
            arriving[number] = plan.empty(number, device)
    _C.unpack_bucket(plan.native, bucket, bucket.first, [arriving[number] for number in numbers], buffer)
    complete = [p.tensor for p in bucket.pieces if p.begin + p.bytes == plan.sizes[p.tensor]]
    for number in set(numbers) - {piece.tensor for piece in bucket.pieces}:
        del arriving[number]  # without bytes: loaded at the beginning
    return [(plan.names[number], arriving.pop(number)) for number in complete]


def _loaded(load: Load, tensors: list[tuple[str, torch.Tensor]]) -> dict[str, Any]:
    try:
        if tensors:
            load(tensors)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {}
