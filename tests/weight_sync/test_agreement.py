"""What ranks must agree on: steps, plans, options. Who differs is named, in time, and the next call works."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

from fastsft.ranks import exchange
from fastsft.ranks.timed_store import BoundedStore
from fastsft.weight_sync import agreement, read_state_dict
from ranks import run_ranks
from weight_sync_parts import agreement_world


def test_the_store_does_not_grow_with_every_sync(tmp_path: Path) -> None:
    for counts in run_ranks(2, agreement_world.keys_left, str(tmp_path), 4):
        assert len(set(counts)) == 1, counts


def test_another_model_on_a_rank_is_named_with_the_first_difference(tmp_path: Path) -> None:
    words = (
        "the model of rank 2 is not that of rank 0: tensor embed.weight is float32 [11, 4] in rank 0's plan "
        "and float32 [12, 4] in rank 2's plan"
    )
    for outcome in run_ranks(3, agreement_world.other_models, str(tmp_path)):
        for function, heard in outcome.items():
            assert words in heard, (function, heard)
        assert all(outcome[name].startswith("ValueError") for name in ("upload", "broadcast", "plan"))
    assert not (tmp_path / "save" / "manifest.json").exists()


def test_ranks_that_differ_are_told_and_can_go_on(tmp_path: Path) -> None:
    first, second = run_ranks(2, agreement_world.other_steps, str(tmp_path))
    for outcome in (first, second):
        assert "step: rank 0 has 1, this one 2" in outcome["save"]
        assert "format: rank 0 has native, this one hf" in outcome["save format"]
        assert "save_dtype: expected float32" in outcome["save failing"]
        assert outcome["save after"] == outcome["upload after"] == "nothing"
        assert "step: rank 0 has 1, rank 1 2" in outcome["upload"]
        assert "save_dtype: expected float32" in outcome["upload failing"]
        assert "version: rank 0 has 5, rank 1 6" in outcome["broadcast"]
    assert "rank 1 failed: ValueError: save_dtype" in first["upload failing"]
    assert "rank 1 did not report within 1 seconds" in first["upload alone"]
    assert second["upload alone"] == "nothing"
    assert read_state_dict(tmp_path / "save", checksums=True)


def test_a_rank_late_with_its_plan_does_not_go_on_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It finds that the other has gone, not the hash that the other had posted before."""
    gone, store = threading.Event(), BoundedStore(dist.HashStore, 30.0)
    monkeypatch.setattr(exchange, "own_store", lambda: store)
    monkeypatch.setattr(exchange, "exchange_number", lambda occasion: 0)
    monkeypatch.setattr(agreement, "ranks_of", lambda engine: (engine, 2))
    plan: Any = SimpleNamespace(hash="the same")

    def late() -> None:
        with agreement.TransferAgreement(1, "test", "sync", 30.0) as own:
            own.agree({"version": 1})
            assert gone.wait(30)
            own.agree_on_plan(plan)

    def early() -> None:
        with agreement.TransferAgreement(0, "test", "sync", 1.0) as own:
            own.agree({"version": 1})
            own.agree_on_plan(plan)

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(late)
        try:
            with pytest.raises(RuntimeError, match="rank 1 did not"):
                early()
        finally:
            gone.set()
        with pytest.raises(RuntimeError, match=r"rank 0 failed: .*agreeing on the plan: rank 1 did not"):
            other.result(60)
