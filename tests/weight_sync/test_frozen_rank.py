"""A rank 0 that is stopped (SIGSTOP), and with it the store: the other ranks raise in time, and say where."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from fastsft.ranks.store import HeldPort, loopback_store
from fastsft.weight_sync import WeightGroup
from ranks import run_ranks
from weight_sync_parts import frozen_world

DEADLINE_S = 1.0
SERVER = """
import sys, time
from datetime import timedelta
from fastsft.ranks.store import loopback_store
store = loopback_store(0, 2, timedelta(seconds=60), int(sys.argv[1]))
print("there", flush=True)
time.sleep(120)
"""
PHASES = {  # what rank 0 does not come to post, and what the others do; "call": it does not come at all
    "save": {
        "call": "waiting for rank 0 to begin", "tag": "waiting for rank 0 to begin",
        "decision": "waiting for rank 0's decision", "done": "waiting for rank 0's manifest",
    },
    "upload": {
        "call": "agreeing on the call", "facts": "agreeing on the call", "hash": "agreeing on the plan",
        "outcome": "ending together",
    },
    "broadcast": {
        "call": "agreeing on the call", "hash": "agreeing on the plan", "outcome": "ending together",
    },
    "plan": {"call": "agreeing on the call", "hash": "agreeing on the plan"},
}  # fmt: skip


def check(folder: Path, cases: list[tuple[str, str]]) -> None:
    """Rank 0 goes on only when the others have raised: it hears of that, and the next call succeeds."""
    port = HeldPort()
    try:
        ranks = run_ranks(3, frozen_world.frozen, str(folder), port.number, cases, DEADLINE_S, seconds=110)
    finally:
        port.close()
    for rank, found in enumerate(ranks):
        for (function, kind), (said, after) in zip(cases, found, strict=True):
            if rank != 0:
                silent = r"(the store of the ranks has not answered|rank 0 did not report) within 1 seconds"
                assert re.search(f"{PHASES[function][kind]}: {silent}", said), (function, kind, said)
            elif kind != "done":  # all was done by then
                left = "rank [12] failed|gave this save up|the store of the ranks, was stopped"
                assert re.search(left, said), (function, kind, said)
            assert after == "nothing", (function, kind, after)


def test_the_ranks_that_live_raise_in_time(tmp_path: Path) -> None:
    check(tmp_path, [("upload", "outcome")])


@pytest.mark.chaos
def test_in_every_phase_of_every_function(tmp_path: Path) -> None:
    check(tmp_path, [(function, kind) for function, kinds in PHASES.items() for kind in kinds])


def test_a_group_over_a_store_that_is_silent_is_not_made() -> None:
    """As a receiver finds it when the trainer's rank 0 is frozen before they have met."""
    port = HeldPort()
    command = [sys.executable, "-c", SERVER, str(port.number)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None and server.stdout.readline() == "there\n"
        store = loopback_store(1, 2, timedelta(seconds=60), port.number)
        server.send_signal(signal.SIGSTOP)
        with pytest.raises(
            RuntimeError, match=r"joining a group for weights: .*has not answered within 0\.2 seconds"
        ):
            WeightGroup(store, 1, 2, timeout_s=0.2)
    finally:
        server.kill()
        server.wait(30)
        port.close()
