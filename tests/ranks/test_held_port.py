"""A port that is held: nobody else is given it, rank 0 listens on it."""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta

import pytest
import torch.distributed as dist

from fastsft.ranks.store import HeldPort, loopback_store

LOOPBACK = "127.0.0.1"
IP_LOCAL_PORT_RANGE = 51  # of Linux 6.3: the ports that the kernel may give to a socket that asks for any
LIMIT = timedelta(seconds=30)


@pytest.fixture
def port() -> Iterator[HeldPort]:
    with closing(HeldPort()) as held:
        yield held


def contented_with(number: int, *, shares: bool = False) -> socket.socket:
    """A socket that asks for any port and can only be given this one."""
    asking = socket.socket()
    if shares:
        asking.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        asking.setsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, struct.pack("I", number << 16 | number))
    except OSError:
        pytest.skip("this kernel gives ports of one range only")
    return asking


@pytest.mark.parametrize("shares", [False, True])
def test_nobody_is_given_it(port: HeldPort, shares: bool) -> None:
    with contented_with(port.number, shares=shares) as server, pytest.raises(OSError) as refused:
        server.bind((LOOPBACK, 0))
    assert refused.value.errno == errno.EADDRINUSE
    port.close()
    with contented_with(port.number, shares=shares) as server:
        server.bind((LOOPBACK, 0))
        assert server.getsockname()[1] == port.number


def test_no_connection_begins_at_it(port: HeldPort) -> None:
    with socket.socket() as listener, contented_with(port.number) as client:
        listener.bind((LOOPBACK, 0))
        listener.listen()
        with pytest.raises(OSError) as refused:
            client.connect(listener.getsockname())
    assert refused.value.errno == errno.EADDRNOTAVAIL


@pytest.mark.parametrize("made_by", ["fastsft", "torch"])
def test_rank_0_listens_on_it(port: HeldPort, made_by: str) -> None:
    """By fastsft, or by a script that calls torch itself."""
    if made_by == "fastsft":
        store = loopback_store(0, 1, LIMIT, port.number)
    else:
        store = dist.TCPStore(LOOPBACK, port.number, 1, is_master=True, timeout=LIMIT)
    other = dist.TCPStore(LOOPBACK, port.number, 1, is_master=False, timeout=LIMIT)
    store.set("key", "value")
    assert other.get("key") == b"value" and other.port == port.number
