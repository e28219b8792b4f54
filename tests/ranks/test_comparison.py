"""How differences are told, what is exempt, and the meeting of ranks."""

from __future__ import annotations

import dataclasses
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from fastsft.arguments import DataArguments, ModelArguments, TrainingArguments
from fastsft.data.digests import sampled_digest
from fastsft.model.weight_identity import tensor_digests
from fastsft.ranks import rendezvous
from fastsft.ranks.comparison import RANK_LOCAL, start_facts
from fastsft.ranks.comparison_text import difference, named_ranks
from fastsft.ranks.output_directory import _kind_of
from fastsft.ranks.rendezvous import RollCall
from fastsft.runtime.launch import check_network, launch, threads_per_rank


def test_the_first_difference_is_told_with_ranks_and_values() -> None:
    same = {"--seed": "42", "--learning_rate": "1e-05"}
    reports = {0: same, 1: same, 2: same, 3: {"--seed": "42", "--learning_rate": "2e-05"}}
    expected = "--learning_rate: ranks 0 to 2 have 1e-05, rank 3 has 2e-05; all ranks need the same"
    assert difference(reports) == expected
    assert difference({0: {"a": '"x"', "b": "1"}, 1: {"a": "null"}}) == (
        "a: rank 0 has x, rank 1 has none; all ranks need the same; different, too: b"
    )
    assert difference({0: {"a": '"1"'}, 1: {"a": "1"}}) != difference({0: {"a": "1"}, 1: {"a": "1"}})
    assert named_ranks([0, 2, 3, 5, 6, 7]) == "ranks 0, 2, 3, 5 to 7"


def test_every_argument_is_compared_but_those_that_are_exempt_for_a_reason() -> None:
    args = TrainingArguments(output_dir="out", use_cpu=True)
    kinds: tuple[Any, ...] = (ModelArguments, DataArguments, TrainingArguments)
    names = {field.name for kind in kinds for field in dataclasses.fields(kind) if field.init}
    compared = {name[2:] for name in start_facts(args, ModelArguments(), DataArguments()) if name[:2] == "--"}
    assert compared == names - set(RANK_LOCAL)
    assert set(RANK_LOCAL) <= names and all(len(reason) > 5 for reason in RANK_LOCAL.values())


def test_a_digest_of_tensors_sees_every_element() -> None:
    tensors = {"a": torch.arange(1000.0), "b": torch.ones(3, 5, dtype=torch.bfloat16)}
    before = tensor_digests(tensors.items())
    tensors["a"][717] += 1e-3
    after = tensor_digests(tensors.items())
    assert after["a"] != before["a"] and after["b"] == before["b"]


def test_a_digest_of_a_large_file_sees_size_begin_and_end(tmp_path: Path) -> None:
    path = tmp_path / "file"
    data = bytearray(3_000_000)
    path.write_bytes(data)
    digests = {sampled_digest(path)}
    for place in (0, len(data) - 1):
        changed = bytearray(data)
        changed[place] = 1
        path.write_bytes(changed)
        digests.add(sampled_digest(path))
    path.write_bytes(data[:-1])
    assert len(digests | {sampled_digest(path)}) == 4


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"RANK": "-1", "WORLD_SIZE": "2"}, r"^RANK: expected a number from 0 to 1, got '-1'"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, r"^RANK: expected"),
        ({"RANK": "1", "WORLD_SIZE": "1"}, r"^RANK: expected a number from 0 to 0, got '1'"),
        ({"RANK": "0", "WORLD_SIZE": "two"}, r"^WORLD_SIZE: expected"),
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "2"}, r"^LOCAL_RANK: expected a number from 0 to 1"),
        ({"SLURM_STEP_NUM_TASKS": "abc"}, r"^SLURM_STEP_NUM_TASKS: expected"),
        ({"SLURM_STEP_NUM_TASKS": "2"}, r"^SLURM_PROCID: expected a number from 0 to 1, got nothing"),
    ],
)
def test_a_place_that_makes_no_sense_is_one_line(env: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        launch(env)


@pytest.mark.parametrize("port", ["99999", "-1", "x", "0"])
def test_a_port_that_is_none(port: str) -> None:
    with pytest.raises(ValueError, match=r"^MASTER_PORT: expected a number from 1 to 65535"):
        check_network({"MASTER_PORT": port})


def test_an_interface_that_is_not_there() -> None:
    check_network({"GLOO_SOCKET_IFNAME": "lo", "MASTER_PORT": "29500"})
    with pytest.raises(
        ValueError, match=r"^GLOO_SOCKET_IFNAME: this machine has no interface 'nope'; it has"
    ):
        check_network({"GLOO_SOCKET_IFNAME": "lo,nope"})


def test_a_command_with_a_bad_place_ends_with_one_line() -> None:
    env = {"PATH": "/bin", "PYTHONPATH": ":".join(sys.path), "RANK": "-1", "WORLD_SIZE": "2"}
    done = subprocess.run(
        [sys.executable, "-m", "fastsft.train", "--use_cpu", "True"], env=env, capture_output=True, text=True
    )
    assert done.returncode == 1 and done.stderr.splitlines()[-1].startswith("error: RANK: expected a number")
    assert "Traceback" not in done.stderr


def test_threads_are_bounded_with_a_line(caplog: pytest.LogCaptureFixture) -> None:
    assert threads_per_rank({"OMP_NUM_THREADS": "9999"}) < 9999
    assert "OMP_NUM_THREADS 9999: this machine has" in caplog.text


def test_mount_points_are_bytes() -> None:
    mounts = [b"a / ext4 rw 0 0", b"b /m\xff\xfe nfs4 rw 0 0", b"c /m\xff\xfe/with\\040space tmpfs rw", b""]
    assert _kind_of(b"/m\xff\xfe/x", mounts) == "nfs4"
    assert _kind_of(b"/m\xff\xfe/with space/x", mounts) == "tmpfs"
    assert _kind_of(b"/m\xff\xfex", mounts) == "ext4"


class Store:
    """As a TCPStore, in this process."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def set(self, key: str, value: str) -> None:
        self.values[key] = value.encode()

    def get(self, key: str) -> bytes:
        return self.values[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        with self._lock:
            if self.values.get(key, b"").decode() == expected:
                self.values[key] = desired.encode()
            return self.values[key]

    def add(self, key: str, amount: int) -> int:
        with self._lock:
            self.values[key] = b"%d" % (int(self.values.get(key, b"0")) + amount)
            return int(self.values[key])


def call(store: Store, rank: int, ranks: int, version: str = "1") -> RollCall:
    return RollCall(lambda: store, rank, ranks, where=("here", 1), version=version, serves=True)


def meet(*calls: RollCall) -> list[Any]:
    results: list[Any] = [None] * len(calls)

    def hold(number: int) -> None:
        try:
            results[number] = calls[number].hold(20)
        except Exception as error:
            results[number] = error

    threads = [threading.Thread(target=hold, args=(number,)) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_ranks_meet_and_those_of_another_version_are_named_on_all() -> None:
    store = Store()
    assert meet(*(call(store, rank, 3) for rank in range(3))) == [store] * 3
    store = Store()
    told = meet(call(store, 0, 3), call(store, 1, 3), call(store, 2, 3, version="2"))
    expected = "version of fastsft: rank 0 has 1, rank 2 has 2; all ranks need the same"
    assert [str(error) for error in told] == [expected] * 3


def test_who_is_missing_is_told(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    for name in ("_FIRST_WORD_S", "_LOOK_S"):
        monkeypatch.setattr(rendezvous, name, 0.2)
    store = Store()
    for rank in (0, 2):
        store.set(f"fastsft/meeting/0/{rank}", "{}")
    with pytest.raises(RuntimeError, match=r"waiting for ranks 1, 3 of 4 at here:1, in vain for 1 seconds"):
        call(store, 0, 4).hold(1)
    assert "rank 0: waiting for ranks 1, 3 of 4 at here:1, for 0 s; --ddp_timeout 1" in capfd.readouterr().err


def test_a_launchers_store_that_refuses_is_gone() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        gone = RollCall(
            Store, 1, 2, where=("127.0.0.1", held.getsockname()[1]), version="1", serves=False, refusals_s=0.3
        )
        with pytest.raises(RuntimeError, match=r"the launcher's store is gone: .* nobody listens"):
            gone.hold(20)
