"""Broadcast modes. Each mode sends and receives in one wire format."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch

from fastsft import _C
from fastsft.ranks.exchange import Message
from fastsft.weight_sync import remote
from fastsft.weight_sync.groups import AgreedError, Transport
from fastsft.weight_sync.interfaces import Work
from fastsft.weight_sync.plan import SyncPlan
from fastsft.weight_sync.source import Load
from fastsft.weight_sync.tensor_stream import TensorStream


@dataclass(frozen=True)
class SyncOptions:
    """One sync's options.

    bucket_bytes: bucket, chunk or batch size. announce: called with each SGLang request. checksum: True
    to compare the buckets' checksums in the native modes, if the buckets are in host memory.
    """

    bucket_bytes: int
    version: int
    announce: Callable[[Message], object] | None = None
    checksum: bool = True


class Mode(ABC):
    """Sends and receives tensors in one wire format."""

    name: ClassVar[str]
    handshakes = False  # True if a sync always begins with a handshake; False if the callers decide
    every_rank = False  # True if each trainer rank sends its own rows, in its own group with the receivers

    @abstractmethod
    def send(self, stream: TensorStream, plan: SyncPlan, transport: Transport, options: SyncOptions) -> None:
        """Send all tensors in the plan. `stream` yields the tensors."""

    @abstractmethod
    def receive(self, plan: SyncPlan, transport: Transport, options: SyncOptions, load: Load) -> None:
        """Receive all tensors in the plan, and call `load` with tensors when they are complete."""


_IN_FLIGHT = 4


class Trinity(Mode):
    """A broadcast for each tensor, also for empty tensors, because Trinity's receivers expect them."""

    name = "trinity"

    def send(self, stream: TensorStream, plan: SyncPlan, transport: Transport, options: SyncOptions) -> None:
        under_way: deque[tuple[Work, str]] = deque()
        for number, name in enumerate(plan.names):
            (tensor,) = stream.take(number, number)
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
    """Return a contiguous tensor in the plan's dtype on the transport's device.

    RuntimeError if the shape differs from the plan's.
    """
    if tensor.shape != plan.torch_shapes[number]:
        name = plan.names[number]
        raise RuntimeError(f"tensor {name} changed its shape after the plan was made; make a new plan")
    dtype, device = plan.dtypes[number], transport.device
    if tensor.dtype != dtype or not (device == "cpu" and tensor.is_cpu):
        tensor = tensor.to(device, dtype)
    return tensor if tensor.is_contiguous() else tensor.contiguous()


class SGLang(Mode):
    """Batches of tensors as in SGLang's update requests, with a broadcast for each tensor.

    `announce` is called with each request: names, dtypes, shapes, weight_version, and flush_cache, which is
    True only in the last request. `announce` must not wait for SGLang's answer, which comes after the
    broadcasts.
    """

    name = "sglang"

    def send(self, stream: TensorStream, plan: SyncPlan, transport: Transport, options: SyncOptions) -> None:
        batches = plan.buckets("tensor_batches", options.bucket_bytes)
        for index, batch in enumerate(batches):
            numbers = [piece.tensor for piece in batch.pieces]
            if options.announce is not None:
                request = _request(plan, numbers, options.version, index + 1 == len(batches))
                remote.within(transport.deadline_s, "announce", functools.partial(options.announce, request))
            tensors = stream.take(batch.first, batch.last)
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


def _request(plan: SyncPlan, numbers: list[int], version: int, is_last: bool) -> Message:
    return {
        "names": [plan.names[number] for number in numbers],
        "dtypes": [plan.dtype_names[number] for number in numbers],
        "shapes": [plan.shapes[number] for number in numbers],
        "weight_version": str(version),
        "flush_cache": is_last,
    }


class VllmPacked(Mode):
    """vLLM's packed chunks. `bucket_bytes` must equal vLLM's packed_buffer_size_bytes."""

    name = "vllm_packed"

    def send(self, stream: TensorStream, plan: SyncPlan, transport: Transport, options: SyncOptions) -> None:

        before: tuple[Work, str, torch.Tensor] | None = None
        for index, chunk in enumerate(plan.buckets("vllm_chunks", options.bucket_bytes)):
            tensors = stream.take(chunk.first, chunk.last)
            buffer = torch.empty(chunk.bytes, dtype=torch.uint8, device=transport.device)
            _C.pack_bucket(plan.native, chunk, chunk.first, tensors, buffer)
            if before is not None:
                transport.wait(*before[:2])
            before = transport.broadcast(buffer), f"chunk {index}", buffer
        if before is not None:
            transport.wait(*before[:2])

    def receive(self, plan: SyncPlan, transport: Transport, options: SyncOptions, load: Load) -> None:

        for index, chunk in enumerate(plan.buckets("vllm_chunks", options.bucket_bytes)):
            buffer = torch.empty(chunk.bytes, dtype=torch.uint8, device=transport.device)
            transport.wait(transport.broadcast(buffer), f"chunk {index}")
            numbers = range(chunk.first, chunk.last + 1)
            tensors = [plan.empty(number, transport.device) for number in numbers]
            _C.unpack_bucket(plan.native, chunk, chunk.first, tensors, buffer)
            load([(plan.names[number], tensor) for number, tensor in zip(numbers, tensors, strict=True)])


class Native(Mode):
    """Buckets of `bucket_bytes`, a multiple of 16. The last bucket may be shorter.

    Two buckets are in memory.
    """

    name = "native"
    handshakes = True

    def send(self, stream: TensorStream, plan: SyncPlan, transport: Transport, options: SyncOptions) -> None:
        buckets = plan.buckets("native_buckets", options.bucket_bytes)
        buffers = _buffers(buckets, transport)
        before: tuple[str, Work, Message] | None = None
        for index, bucket in enumerate(buckets):
            buffer = buffers[index % 2][: bucket.bytes]
            note = _pack(stream, plan, bucket, buffer, options)
            if before is not None:
                _settle(transport, *before)
            before = f"bucket {index}", transport.broadcast(buffer), note
            if "error" in note:
                break
        if before is not None:
            _settle(transport, *before)
        transport.vote(_final_vote(stream), f"version {options.version}")

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


def _buffers(buckets: list[_C.SyncBucket], transport: Transport) -> list[torch.Tensor]:

    size = max((bucket.bytes for bucket in buckets), default=0)
    return [torch.empty(size, dtype=torch.uint8, device=transport.device) for _ in range(2)]


def _pack(
    stream: TensorStream, plan: SyncPlan, bucket: _C.SyncBucket, buffer: torch.Tensor, options: SyncOptions
) -> Message:
    """Pack a bucket. Return its checksum or an error, for the vote.

    An error is returned rather than raised, so that receivers do not wait for a sender that has failed.
    """
    try:
        tensors = stream.take(bucket.first, bucket.last)
        _C.pack_bucket(plan.native, bucket, bucket.first, tensors, buffer)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return _checksum(buffer, options)


def _final_vote(stream: TensorStream) -> Message:
    try:
        stream.drain()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {}


def _checksum(buffer: torch.Tensor, options: SyncOptions) -> Message:

    if not options.checksum or not buffer.is_cpu:
        return {}
    return {"crc32c": _C.buffer_checksum(buffer, buffer.numel())}


def _settle(
    transport: Transport,
    what: str,
    work: Work,
    note: Message,
    received: torch.Tensor | None = None,
    options: SyncOptions | None = None,
) -> None:
    """Finish a broadcast, and vote on errors and checksums.

    AgreedError on all members if there is a problem.
    """
    transport.wait(work, what)
    if received is not None and options is not None:
        note = {**_checksum(received, options), **note}
    notes = transport.vote(note, what)
    sums = {note["crc32c"] for note in notes if "crc32c" in note}
    if len(sums) > 1:
        raise AgreedError(f"{what}: checksums differ between the sender and a receiver; sync again")


def _unpack(
    plan: SyncPlan,
    bucket: _C.SyncBucket,
    buffer: torch.Tensor,
    arriving: dict[int, torch.Tensor],
    device: torch.device | str,
) -> list[tuple[str, torch.Tensor]]:
    """Return the tensors that this bucket completes.

    arriving: keeps incomplete tensors between calls, by number.
    """
    numbers = range(bucket.first, bucket.last + 1)
    for number in numbers:
        if number not in arriving:
            arriving[number] = plan.empty(number, device)
    _C.unpack_bucket(plan.native, bucket, bucket.first, [arriving[number] for number in numbers], buffer)
    complete = [p.tensor for p in bucket.pieces if p.begin + p.bytes == plan.sizes[p.tensor]]
    for number in set(numbers) - {piece.tensor for piece in bucket.pieces}:
        del arriving[number]  # empty tensors, which were loaded at the beginning
    return [(plan.names[number], arriving.pop(number)) for number in complete]


def _loaded(load: Load, tensors: list[tuple[str, torch.Tensor]]) -> Message:
    try:
        if tensors:
            load(tensors)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {}


class NativeMultiroot(Native):
    """The native mode with a group for each trainer rank. A sync ends when all groups have agreed."""

    name = "native_multiroot"
    every_rank = True


MODES: dict[str, Mode] = {
    mode.name: mode for mode in (Trinity(), VllmPacked(), SGLang(), Native(), NativeMultiroot())
}


def sync_mode(name: str) -> Mode:
    """Return the mode with this name. For other names, raise ValueError that lists all modes."""
    if name not in MODES:
        raise ValueError(f"mode: expected one of {', '.join(sorted(MODES))}, got {name!r}")
    return MODES[name]
