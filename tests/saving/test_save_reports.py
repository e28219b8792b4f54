"""Reports of the ranks of a save: who writes slowly is waited for, who is gone is not."""

import threading
import time

import pytest
import torch.distributed as dist

from fastsft.checkpoint import save_reports
from fastsft.checkpoint.save_reports import Deadline, Report, ReportBox
from fastsft.ranks.timed_store import BoundedStore


@pytest.fixture
def boxes(monkeypatch):
    """Those of rank 0 and rank 1 of one save; ranks are lost after half a second of silence."""
    store = BoundedStore(dist.HashStore, 30.0)
    monkeypatch.setattr(save_reports, "own_store", lambda: store)
    monkeypatch.setattr(save_reports, "exchange_number", lambda occasion: 7)
    monkeypatch.setattr(save_reports, "_SILENCE", 0.5)
    monkeypatch.setattr(save_reports, "_PULSE", 0.05)
    made = [ReportBox(rank, 2) for rank in (0, 1)]
    made[0].post(Report())
    yield made
    store.close()


def test_a_rank_that_writes_for_long_is_waited_for(boxes):
    def write():
        with boxes[1].at_work():
            time.sleep(1.5)
        boxes[1].post(Report(files=["part"]))

    thread = threading.Thread(target=write)
    thread.start()
    assert [report.files for report in boxes[0].collect(Deadline())] == [[], ["part"]]
    thread.join()


def test_a_rank_that_is_gone_fails_the_save(boxes):
    with boxes[1].at_work():
        time.sleep(0.2)
    with pytest.raises(RuntimeError, match="rank 1 has not reported its part"):
        boxes[0].collect(Deadline())


def test_a_rank_that_never_began_fails_the_save(boxes):
    with pytest.raises(RuntimeError, match="rank 1 has not reported its part"):
        boxes[0].collect(Deadline())


def test_the_last_chance_of_a_save_ends_before_the_silence(boxes):
    deadline = Deadline()
    deadline.set(0)
    with boxes[1].at_work(), pytest.raises(RuntimeError, match="rank 1"):
        boxes[0].collect(deadline)
