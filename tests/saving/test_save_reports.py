"""Reports of the ranks of a save: a rank that writes slowly is waited for, a rank that is gone is not."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import asdict

import pytest
import torch.distributed as dist

from fastsft.checkpoint import save
from fastsft.checkpoint.save import Report, ReportExchange
from fastsft.ranks import exchange
from fastsft.ranks.timed_store import BoundedStore


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ReportExchange]]:
    """Rank 0, which has reported, and rank 1 of one save; ranks are lost after half a second of silence."""
    store = BoundedStore(dist.HashStore, 30.0)
    monkeypatch.setattr(exchange, "own_store", lambda: store)
    monkeypatch.setattr(exchange, "exchange_number", lambda occasion: 7)
    monkeypatch.setattr(save, "_SILENCE_S", 0.5)
    made = [ReportExchange(rank, 2) for rank in (0, 1)]
    made[0].post("report", **asdict(Report()))
    yield made
    store.close()


def test_a_rank_that_writes_for_long_is_waited_for(ranks: list[ReportExchange]) -> None:
    def write() -> None:
        with ranks[1].alive():
            time.sleep(1.5)
        ranks[1].post("report", **asdict(Report(error="part")))

    thread = threading.Thread(target=write)
    thread.start()
    assert [report.error for report in ranks[0].reports()] == [None, "part"]
    thread.join()


def test_a_rank_that_is_gone_fails_the_save(ranks: list[ReportExchange]) -> None:
    with ranks[1].alive():
        time.sleep(0.2)
    with pytest.raises(RuntimeError, match="rank 1 has not reported its part"):
        ranks[0].reports()


def test_a_rank_that_never_began_fails_the_save(ranks: list[ReportExchange]) -> None:
    with pytest.raises(RuntimeError, match="rank 1 has not reported its part"):
        ranks[0].reports()


def test_the_last_chance_of_a_save_ends_before_the_silence(ranks: list[ReportExchange]) -> None:
    ranks[0].give_up_in(0)
    with ranks[1].alive(), pytest.raises(RuntimeError, match="rank 1"):
        ranks[0].reports()
