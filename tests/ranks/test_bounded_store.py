"""Calls of a store that never answers end in time; what was asked for is done when it goes on."""

import threading
import time

import pytest
import torch.distributed as dist

from fastsft.ranks.timed_store import BoundedStore, SilentStoreError

LIMIT_S = 30.0


class Gate:
    """A store of this process behind a gate: while that is shut no call returns."""

    def __init__(self):
        self.store, self.open, self.reached = dist.HashStore(), threading.Event(), threading.Event()

    def __getattr__(self, name):
        def call(*args):
            self.reached.set()
            assert self.open.wait(LIMIT_S)
            return getattr(self.store, name)(*args)

        return call


@pytest.fixture
def gate():
    made = Gate()
    yield made
    made.open.set()


@pytest.fixture
def bounded(gate):
    made = BoundedStore(lambda: gate, LIMIT_S)
    yield made
    gate.open.set()
    made.close()


def test_calls_reach_the_store(gate, bounded):
    gate.open.set()
    bounded.set("key", "value")
    assert bounded.get("key") == b"value" and bounded.check(["key"]) and not bounded.check(["key", "other"])
    assert [bounded.add("count", 2), bounded.add("count", 1)] == [2, 3]
    assert bounded.num_keys() == 2 and bounded.delete_key("key") and bounded.num_keys() == 1


def test_a_silent_store_is_an_error_and_its_calls_are_made_in_order_later(gate, bounded):
    with pytest.raises(SilentStoreError, match=r"has not answered within 0\.1 seconds.*end all ranks"):
        bounded.run(lambda store: store.set("key", "first"), 0.1)
    bounded.later(lambda store: store.set("key", "second"))
    assert not gate.store.check(["key"])
    gate.open.set()
    assert bounded.get("key") == b"second"


def test_one_call_that_waits_does_not_keep_the_other_callers(gate, bounded):
    first = threading.Thread(target=bounded.set, args=("key", "value"))
    first.start()
    assert gate.reached.wait(LIMIT_S)
    with pytest.raises(SilentStoreError):
        bounded.run(lambda store: store.get("key"), 0.05)
    gate.open.set()
    first.join(LIMIT_S)
    assert not first.is_alive()


def test_a_store_that_cannot_be_reached_fails_every_call():
    def refused():
        raise RuntimeError("connection refused")

    store = BoundedStore(refused, LIMIT_S)
    for work in (lambda: store.open(LIMIT_S), lambda: store.get("key"), lambda: store.add("key", 1)):
        with pytest.raises(RuntimeError, match="connection refused"):
            work()
    assert store.failed()
    store.close()


def test_a_connection_that_does_not_come_is_an_error_in_time(gate):
    store = BoundedStore(lambda: gate.check([]), LIMIT_S)
    with pytest.raises(SilentStoreError):
        store.open(0.1)
    assert not store.failed()
    gate.open.set()
    store.open(LIMIT_S)
    store.close()


def test_what_a_call_raises_is_raised(gate, bounded):
    gate.open.set()

    def work(store):
        raise TimeoutError("of its own")

    with pytest.raises(TimeoutError, match="of its own"):
        bounded.run(work, LIMIT_S)


def test_signs_of_life_come_while_somebody_works_and_end_with_it(gate, bounded):
    gate.open.set()
    end = time.monotonic() + LIMIT_S
    with bounded.beating("life", 0.01):
        while bounded.add("life", 0) < 3:
            assert time.monotonic() < end
    last = bounded.add("life", 0)
    time.sleep(0.1)
    assert bounded.add("life", 0) == last


def test_after_the_end_no_call_waits(gate, bounded):
    gate.open.set()
    bounded.close()
    bounded.close()
    with pytest.raises(RuntimeError, match="has been closed"):
        bounded.get("key")
