"""Two processes with one RANK, and one that refuses its own, are named within seconds."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from fastsft.ranks import rendezvous, store
from fastsft.ranks.rendezvous import Claim
from fastsft.ranks.store import HeldPort, loopback_store
from forked_programs import Program, Programs

LIMIT_S = 60.0  # far below --ddp_timeout, which both would wait for
PROGRAM = """
import sys
from fastsft.ranks import process_group as launcher
from fastsft.program.main import run_script
def script():
    launcher.meet(600)
    print("met", flush=True)
    sys.stdin.readline()
run_script(script)
"""


class Ranks:
    """Processes that meet, with the variables that each is given."""

    def __init__(self) -> None:
        self._port = HeldPort()
        self._processes: list[Program] = []

    def start(
        self, rank: int, ranks: int, *, only: dict[str, str] | None = None, **variables: str
    ) -> Program:
        """only: the variables of its place, instead of torchrun's."""
        place = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": ranks}
        place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": self._port.number}
        given = {name: str(value) for name, value in place.items()} if only is None else only
        process = Programs.of(
            "torch.distributed", "fastsft.ranks.process_group", "fastsft.program.main"
        ).start(PROGRAM, environment={**os.environ, **given, **variables})
        self._processes.append(process)
        return process

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()
        self._port.close()


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    started = Ranks()
    yield started
    started.close()


def refused(*processes: Program) -> list[str]:
    """The line that each of them ends with, status 1."""
    began, lines = time.monotonic(), []
    for process in processes:
        _, text = process.communicate(timeout=LIMIT_S - (time.monotonic() - began))
        assert process.returncode == 1 and "Traceback" not in text, text[-3000:]
        lines.append(next(line for line in text.splitlines() if "error: " in line))
    return lines


def test_a_second_rank_1_is_named_on_all_that_wait(ranks: Ranks) -> None:
    started = [ranks.start(rank, 3) for rank in (0, 1, 1)]
    lines = refused(*started)
    for line, rank in zip(lines, (0, 1, 1), strict=True):
        assert line.startswith(f"rank {rank}: error: RANK: two processes say they are rank 1 of 3: process ")
        assert all(str(process.pid) in line for process in started[1:])


def test_a_second_rank_0_is_named_on_both(ranks: Ranks) -> None:
    started = [ranks.start(0, 2), ranks.start(0, 2)]
    for line in refused(*started):
        assert line.startswith("rank 0: error: RANK: two processes say they are rank 0 of 2: process ")
        assert all(str(process.pid) in line for process in started)


@pytest.mark.variants("RANK-one")
@pytest.mark.parametrize(("variable", "value"), [("RANK", "2"), ("RANK", "one"), ("WORLD_SIZE", "0")])
def test_a_process_that_refuses_its_own_place_ends_those_that_wait(
    ranks: Ranks, variable: str, value: str
) -> None:
    wrong = ranks.start(1, 2, **{variable: value})
    first, second = refused(ranks.start(0, 2), wrong)
    assert second.startswith(f"error: {variable}: expected a number from ")
    assert first.startswith(f"rank 0: error: process {wrong.pid} on ")
    assert second.removeprefix("error: ") in first


def slurm_place(rank: str) -> dict[str, str]:
    """Variables of one of two tasks on this machine, without MASTER_ADDR; the port follows from the job."""
    return {
        "SLURM_JOB_ID": "9917", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": rank,
        "SLURM_LOCALID": rank, "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
    }  # fmt: skip


def test_a_task_of_slurm_that_refuses_its_own_place_ends_the_others(ranks: Ranks) -> None:
    first = ranks.start(0, 2, only=slurm_place("0"))
    wrong = ranks.start(1, 2, only=slurm_place("two"))
    line, own = refused(first, wrong)
    assert own.startswith("error: SLURM_PROCID: expected a number from 0 to 1, got 'two'")
    assert line.startswith(f"rank 0: error: process {wrong.pid} on ")


@pytest.mark.parametrize("name", ["TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_STEP_ID"])
def test_a_refused_process_of_another_run_ends_nobody(ranks: Ranks, name: str) -> None:
    first = ranks.start(0, 2, **{name: "7"})
    refused(ranks.start(1, 2, RANK="2", **{name: "8"}))
    second = ranks.start(1, 2, **{name: "7"})
    for process in (first, second):
        assert process.stdout.readline() == "met\n"


def test_a_server_that_says_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's client would wait for its answer without a limit."""
    monkeypatch.setattr(store, "_LIMIT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", str(server.getsockname()[1]))
        teller = threading.Thread(target=store.tell_waiting_ranks, args=("why", "m"), daemon=True)
        teller.start()
        teller.join(LIMIT_S)
        assert not teller.is_alive()


def test_one_that_comes_when_all_have_met_is_refused_alone(ranks: Ranks) -> None:
    started = [ranks.start(rank, 2) for rank in (0, 1)]
    for process in started:
        assert process.stdout.readline() == "met\n"
    (line,) = refused(ranks.start(1, 2))
    assert line.startswith("rank 1: error: RANK: two processes say they are rank 1 of 2: process ")
    for process in started:
        process.communicate("\n", timeout=LIMIT_S)
        assert process.returncode == 0


def test_a_rank_that_ended_may_come_again(ranks: Ranks) -> None:
    first, lost = ranks.start(0, 3), ranks.start(1, 3)
    time.sleep(0.3)  # it may or may not have come: both must do
    lost.kill()
    lost.wait()
    others = [ranks.start(rank, 3) for rank in (1, 2)]
    for process in (first, *others):
        assert process.stdout.readline() == "met\n"


def test_other_places_that_make_no_sense(ranks: Ranks) -> None:
    assert refused(ranks.start(2, 2))[0].startswith("error: RANK: expected a number from 0 to 1, got '2'")
    lines = refused(ranks.start(0, 2), ranks.start(1, 3))
    for rank, line in enumerate(lines):
        expected = "ranks of the run (WORLD_SIZE): rank 0 has 2, rank 1 has 3; all ranks need the same"
        assert line.startswith(f"rank {rank}: error: {expected}")


def test_one_on_another_machine_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    port = HeldPort()
    store: Any = loopback_store(0, 2, timedelta(seconds=30), port.number)
    try:
        waiting = Claim("m", 1, 2, restarts=True)
        waiting.take(store, met=False)
        far = {**json.loads(store.get(waiting.key)), "namespace": "of another machine", "host": "far"}
        store.set(waiting.key, json.dumps(far))
        ended = threading.Event()

        def answer() -> None:
            while not ended.wait(0.02):
                waiting.answer(store)

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            with pytest.raises(ValueError, match=r"rank 1 of 2: process \d+ on far, and process"):
                Claim("m", 1, 2, restarts=True).take(store, met=False)
        finally:
            ended.set()
            thread.join()
        monkeypatch.setattr(rendezvous, "_ANSWER_S", 0.2)
        with pytest.raises(ValueError, match="two processes"):
            Claim("m", 1, 2, restarts=False).take(store, met=True)
        Claim("m", 1, 2, restarts=True).take(store, met=True)  # a launcher's new one after a silent one
    finally:
        port.close()
