"""run_ranks, which many tests stand on: results, failures, and ranks that never end."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ranks import run_ranks


def summed(groups: dict[str, str], value: int) -> int:
    tensor = torch.tensor([value + dist.get_rank()])
    dist.all_reduce(tensor)
    return int(tensor)


def refuse(groups: dict[str, str]) -> None:
    if dist.get_rank() == 1:
        raise ValueError("this rank refuses")


def leave(groups: dict[str, str]) -> None:
    if dist.get_rank() == 1:
        os._exit(7)


def wait_for_ever(groups: dict[str, str]) -> None:
    if dist.get_rank() == 1:
        threading.Event().wait()


def threads(groups: dict[str, str]) -> list[Any]:
    return [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]


def test_results_come_back_in_order_of_ranks() -> None:
    assert run_ranks(3, summed, 10) == [33, 33, 33]


def test_an_exception_names_its_rank() -> None:
    with pytest.raises(RuntimeError, match=r"rank 1:\n(?s:.*)this rank refuses"):
        run_ranks(2, refuse)


def test_a_rank_that_leaves_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="rank 1 ended with status 7"):
        run_ranks(2, leave)


def test_a_rank_that_never_ends_is_killed_and_shows_where_it_stood() -> None:
    with pytest.raises(RuntimeError, match=r"rank 1 was still running (?s:.*)wait_for_ever"):
        run_ranks(2, wait_for_ever, seconds=3)
    assert run_ranks(2, summed, 0) == [1, 1]


def test_ranks_have_no_threads_of_this_process() -> None:
    release = threading.Event()
    thread = threading.Thread(target=release.wait, args=(60,), name="of the parent")
    thread.start()
    try:
        assert run_ranks(2, threads) == [[], []]
    finally:
        release.set()
        thread.join(60)
