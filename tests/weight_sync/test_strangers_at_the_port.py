"""Strangers at the ports of a group for weights: nonsense, silence and replays change no weights."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from fastsft.ranks.store import HeldPort, loopback_store
from fastsft.weight_sync.groups import Transport, WeightGroup
from weight_sync_parts.receivers import in_threads

TIMEOUT = timedelta(seconds=60)


@pytest.fixture
def port() -> Iterator[int]:
    held = HeldPort()
    yield held.number
    held.close()


def client(port: int) -> Any:
    return TCPStore("127.0.0.1", port, 2, is_master=False, timeout=TIMEOUT, wait_for_workers=False)


def send(port: int, content: bytes) -> socket.socket:
    """An open connection on which `content` was sent."""
    stranger = socket.create_connection(("127.0.0.1", port), 10)
    with contextlib.suppress(OSError):
        stranger.sendall(content)
    return stranger


def listening() -> set[int]:
    """Ports of IPv4 that this process listens at."""
    own = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            own.add(os.readlink(f"/proc/self/fd/{name}"))
    with open("/proc/net/tcp") as table:
        rows = [line.split() for line in table][1:]
    return {int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own}


def broadcast(store: Any, rank: int, before: Callable[[], None] = lambda: None) -> torch.Tensor:
    """What rank 0 sends, on either rank."""
    group = WeightGroup(store, rank, 2, timeout_s=60.0)
    before()
    transport = Transport(group, 60.0)
    tensor = torch.arange(100_000, dtype=torch.float32) if rank == 0 else torch.zeros(100_000)
    with transport.transfer():
        transport.wait(transport.broadcast(tensor), "the test's")
    return tensor


def garbage() -> list[bytes]:
    chosen = random.Random(0)
    random_bytes = [chosen.randbytes(size) for size in (1, 7, 64, 4096, 1 << 20)]
    # The first bytes that the store expects, and then none of its messages; a length without an end.
    almost = [b"\x00" * 9, b"\x0d\xef\xbe\xad\xde" + b"\xff" * 64, b"\x00" + b"\xff" * 7 + b"\x7f"]
    return [
        b"",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        *almost,
        *random_bytes,
    ]


def test_nonsense_and_silent_connections_change_nothing(port: int) -> None:
    """At the store's port, before members come and while they meet; all connections stay open."""
    server = loopback_store(0, 2, TIMEOUT, port)
    open_ones = [send(port, content) for content in garbage()]
    open_ones += [send(port, b"\x01") for _ in range(100)]  # who says one byte, and no more
    try:
        first, second = in_threads([
            lambda: broadcast(server, 0, lambda: open_ones.extend(send(port, each) for each in garbage())),
            lambda: broadcast(client(port), 1),
        ])  # fmt: skip
    finally:
        for stranger in open_ones:
            stranger.close()
    assert torch.equal(first, second) and first[-1] == 99_999


def test_nonsense_at_the_ports_of_gloo_changes_nothing(port: int) -> None:
    before = listening()
    server, made, told = loopback_store(0, 2, TIMEOUT, port), threading.Barrier(2), threading.Barrier(2)
    open_ones: list[socket.socket] = []

    def knock() -> None:
        if made.wait(60) == 0:
            ports = listening() - before - {port}
            assert ports, "gloo listens at no port"
            open_ones.extend(send(each, content) for each in ports for content in garbage())
        told.wait(60)

    try:
        first, second = in_threads([
            lambda: broadcast(server, 0, knock), lambda: broadcast(client(port), 1, knock),
        ])  # fmt: skip
    finally:
        for stranger in open_ones:
            stranger.close()
    assert torch.equal(first, second) and first[-1] == 99_999


class Recorder:
    """Passes a connection on to `port`, and keeps what the client says."""

    def __init__(self, port: int) -> None:
        self.said = b""
        self._target = socket.create_connection(("127.0.0.1", port), 10)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        threading.Thread(target=self._pass, args=(self._target, client, False), daemon=True).start()
        self._pass(client, self._target, True)

    def _pass(self, source: socket.socket, target: socket.socket, keep: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self.said += data if keep else b""
                target.sendall(data)

    def close(self) -> None:
        self._listener.close()
        self._target.close()


def said_by_rank_1(port: int) -> bytes:
    """All that rank 1 says to the store of a job at `port` while it joins a group and receives."""
    store, recorder = loopback_store(0, 2, TIMEOUT, port), Recorder(port)
    try:
        sent, got = in_threads([lambda: broadcast(store, 0), lambda: broadcast(client(recorder.port), 1)])
    finally:
        recorder.close()
    assert torch.equal(sent, got) and b"seat/1" in recorder.said
    return recorder.said


def test_a_joining_replayed_before_the_members_come_changes_nothing(port: int) -> None:
    """What rank 1 of one job said, said again to the store of the next: the true rank 1 takes the seat."""
    with contextlib.closing(HeldPort()) as other:
        said = said_by_rank_1(other.number)
    server = loopback_store(0, 2, TIMEOUT, port)
    with send(port, said):
        server.wait(["weights/seat/1"], TIMEOUT)
        sent, got = in_threads([lambda: broadcast(server, 0), lambda: broadcast(client(port), 1)])
    assert torch.equal(sent, got) and got[-1] == 99_999


def test_a_joining_replayed_over_a_member_is_refused_by_name(port: int) -> None:
    """Rank 1, which waits for rank 0 in its seat, hears in time that another has taken the seat."""
    with contextlib.closing(HeldPort()) as other:
        said = said_by_rank_1(other.number)
    server, strangers = loopback_store(0, 2, TIMEOUT, port), contextlib.ExitStack()

    def replay() -> None:
        server.wait(["weights/seat/1"], TIMEOUT)
        strangers.enter_context(send(port, said))

    def join() -> None:
        with pytest.raises(ValueError, match=r"rank 1: process .* has joined this group under the same rank"):
            WeightGroup(client(port), 1, 2, timeout_s=20.0)

    with strangers:
        in_threads([replay, join])
