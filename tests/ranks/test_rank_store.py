"""The second connection to the store: made once, and never waiting for a rank 0 that is gone."""

import functools
import itertools
import os
import signal
import subprocess
import sys
import time
import weakref
from collections import defaultdict
from datetime import timedelta

import pytest

from fastsft.ranks import store as rank_store

SERVER = """
import sys, time
from datetime import timedelta
from fastsft.ranks.store import loopback_store
store = loopback_store(0, 2, timedelta(seconds=60), int(sys.argv[1]))
print("there", flush=True)
time.sleep(120)
"""


@pytest.fixture
def served(monkeypatch):
    """Rank 1's store, as the default one, and the process of rank 0."""
    from torch.distributed import PrefixStore, distributed_c10d

    held = rank_store.HeldPort()
    command = [sys.executable, "-c", SERVER, str(held.number)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout.readline() == "there\n"
        store = PrefixStore("default", rank_store.loopback_store(1, 2, timedelta(seconds=1800), held.number))
        monkeypatch.setattr(distributed_c10d, "_get_default_store", lambda: store)
        monkeypatch.setattr(rank_store, "_own", None)
        yield store, server
    finally:
        server.kill()
        server.wait(30)
        held.close()


def test_one_connection_of_its_own(served):
    store, _ = served
    own = rank_store.own_store()
    own.set("key", "value")
    assert store.get("key") == b"value" and own is not store and rank_store.own_store() is own
    assert store.timeout == own.run(lambda raw: raw.timeout) == timedelta(seconds=1800)


def test_a_lost_store_is_an_error_soon(served, monkeypatch):
    """Not after the 30 minutes that a collective may take, as a kill at that moment once showed."""
    store, server = served
    monkeypatch.setattr(rank_store, "_CONNECT_SECONDS", 0.5)
    os.kill(server.pid, signal.SIGKILL)
    server.wait(30)
    started = time.monotonic()
    with pytest.raises(RuntimeError, match=r"timed out|refused|reset"):
        rank_store.open_own_store()
    assert time.monotonic() - started < 60 and store.timeout == timedelta(seconds=1800)


def test_exchanges_are_counted_anew_in_a_new_group(monkeypatch):
    """A process that takes a dead one's place knows nothing of the group before."""
    from torch.distributed import HashStore, distributed_c10d

    monkeypatch.setattr(rank_store, "_counted", (None, defaultdict(itertools.count)))
    monkeypatch.setattr(distributed_c10d, "is_initialized", lambda: True)
    groups = [HashStore(), HashStore()]
    for number in range(2):
        monkeypatch.setattr(
            distributed_c10d, "_get_default_store", functools.partial(groups.__getitem__, number)
        )
        assert [rank_store.exchange_number(name) for name in ("a", "b", "a")] == [0, 0, 1]
    held = weakref.ref(groups[1])
    groups.clear()
    assert held() is None  # rank 0 listens at a port as long as somebody keeps its store
