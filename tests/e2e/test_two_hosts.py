"""Two hosts of two ranks: the same run as on one host, and the end of it when the cable is cut."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.command_line import PACKAGE, TRAINER, descendants, kill_all, log_history, tensors, words
from hosts import Host, two_hosts, why_not
from warm_ranks import WarmRanks

FLAGS = {
    **json.loads((TRAINER / "h_resume.json").read_text())["flags"],
    "per_device_train_batch_size": 3, "gradient_accumulation_steps": 1, "weight_decay": 0.1,
    "save_strategy": "no",
}  # fmt: skip


@pytest.fixture
def hosts() -> Iterator[tuple[Host, Host]]:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with two_hosts() as pair:
        yield pair


@contextlib.contextmanager
def torchrun(hosts: tuple[Host, Host], flags: dict[str, Any], folder: Path) -> Iterator[list[Any]]:
    """The command of docs/multi_node.md on both hosts, each with a log; ended with all below it."""
    env = {k: v for k, v in os.environ.items() if k != "GLOO_SOCKET_IFNAME"}
    env |= {"PYTHONPATH": str(PACKAGE), "OMP_NUM_THREADS": "1"}
    running = []
    for number, host in enumerate(hosts):
        command = [
            sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc_per_node=2",
            "--rdzv_backend=c10d", f"--rdzv_endpoint={hosts[0].address}:29400", "--rdzv_id=test",
            f"--local_addr={host.address}", f"--rdzv_conf=is_host={number == 0}",
            "-m", "fastsft.train", "--output_dir", str(folder / "out"), *words(flags),
        ]  # fmt: skip
        with (folder / f"host-{number}.log").open("w") as log:
            running.append(
                subprocess.Popen(host.command(command), cwd=TRAINER, env=env, stdout=log, stderr=log)
            )
    try:
        yield running
    finally:
        for process in running:
            if process.poll() is None:
                kill_all(process.pid)
                process.wait()


def logs(folder: Path) -> str:
    return "\n".join(path.read_text()[-4000:] for path in sorted(folder.glob("host-*.log")))


def losses(folder: Path) -> list[float]:
    return [step["loss"] for step in log_history(folder) if "loss" in step]


@pytest.fixture(scope="module")
def on_one_host(
    warm: WarmRanks, tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[float], dict[str, Any]]:
    out = tmp_path_factory.mktemp("host")
    warm.train({**FLAGS, "fsdp": "full_shard auto_wrap"}, out, 4)
    assert len(losses(out)) > 2
    return losses(out), tensors(out)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "strategy", [pytest.param("full_shard auto_wrap", marks=pytest.mark.chaos), "hybrid_shard auto_wrap"]
)
def test_two_hosts_equal_one(hosts, on_one_host, strategy, tmp_path):
    """hybrid_shard: nodes are the hosts, without a word about their size."""
    expected_losses, expected = on_one_host
    with torchrun(hosts, {**FLAGS, "fsdp": strategy}, tmp_path) as running:
        for process in running:
            assert process.wait(timeout=240) == 0, logs(tmp_path)
    assert losses(tmp_path / "out") == pytest.approx(expected_losses, abs=2e-6, rel=0)
    weights = tensors(tmp_path / "out")
    assert weights.keys() == expected.keys()
    for name, weight in weights.items():
        assert (weight - expected[name]).norm() <= 1e-4 * expected[name].norm(), name


def ranks_below(process: Any) -> list[int]:
    """Processes of the training script under a torchrun."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return [p for p in descendants(process.pid) if "fastsft.train" in _arguments(p) and _is_rank(p)]
    return []


def _arguments(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def _is_rank(pid: int) -> bool:
    return "torch.distributed.run" not in _arguments(pid)


def alive(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(condition: Any, seconds: float, folder: Path) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, logs(folder)
        time.sleep(0.1)


@pytest.mark.parametrize("fault", ["cable", pytest.param("host", marks=pytest.mark.chaos)])
def test_a_lost_host_ends_every_rank_with_one_line(hosts, fault, tmp_path):
    """Within --ddp_timeout + 30 s. A cut cable leaves connections open, so only the timeout can tell."""
    timeout = 5
    endless = {**FLAGS, "num_train_epochs": 10_000, "ddp_timeout": timeout, "fsdp": "hybrid_shard auto_wrap"}
    with torchrun(hosts, endless, tmp_path) as running:
        history = tmp_path / "host-0.log"
        wait_until(lambda: "'loss'" in history.read_text(), 240, tmp_path)
        ranks = [pid for process in running for pid in ranks_below(process)]
        assert len(ranks) == 4
        if fault == "cable":
            hosts[0].cut_cable()
        else:
            kill_all(running[1].pid)
        wait_until(lambda: not any(alive(pid) for pid in ranks), timeout + 30, tmp_path)
    said = [line for line in logs(tmp_path).splitlines() if "error: rank " in line]
    by_rank = [len([line for line in said if f"error: rank {rank} of 4, step " in line]) for rank in range(4)]
    # torchrun ends the other rank of a host as soon as one has said it; a killed host says nothing.
    hosts_heard = [sum(by_rank[:2]) > 0, sum(by_rank[2:]) > 0]
    assert hosts_heard == [True, fault == "cable"] and max(by_rank) == 1, logs(tmp_path)
    assert all("last collective: " in line for line in said)
