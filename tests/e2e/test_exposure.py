"""What a run shows to others: where it listens, and secrets (docs/spec/reliability.md, rows S7 and S8)."""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import json
import os
import resource
import socket
import struct
import subprocess
import time
from pathlib import Path

import pytest

from e2e.command_line import TRAINER, command_and_environment
from fastsft.ranks.store import HeldPort, is_one_machine

SHORT = json.loads((TRAINER / "h_resume.json").read_text())["flags"]
TWO_RANKS = {**SHORT, "per_device_train_batch_size": 2, "fsdp": "full_shard auto_wrap", "max_steps": 2}
SECRET = "hf_" + "kEePmEsEcReT" * 2


def listening(pid: int) -> set[str]:
    """The addresses, in hexadecimal, on which a process accepts TCP connections; as `ss -ltnp` finds them."""
    return {own for own, _, state in sockets(pid) if state == "0A"}


def connected(pid: int) -> set[str]:
    """The addresses that a process has connected to by TCP or sends to by UDP, without its name servers.

    torch's store looks up the name of every address that it connects to, 127.0.0.1 too (`getnameinfo`); where
    /etc/hosts does not answer, the C library asks the name servers of the machine.
    """
    ends = {tuple(other.split(":")) for _, other, state in sockets(pid) if state != "0A"} - name_servers()
    return {address for address, _ in ends if address.strip("0")}


@functools.cache
def name_servers() -> set[tuple[str, ...]]:
    """Address and port of the machine's name servers, in hexadecimal as in /proc/net."""
    found = set()
    with contextlib.suppress(OSError):
        for line in Path("/etc/resolv.conf").read_text().splitlines():
            with contextlib.suppress(ValueError):
                keyword, address = line.split()[:2]
                packed = ipaddress.ip_address(address).packed
                words = struct.unpack(f"={len(packed) // 4}I", packed)
                if keyword == "nameserver":
                    found.add(("".join(f"{word:08X}" for word in words), "0035"))
    return found


def sockets(pid: int) -> set[tuple[str, str, str]]:
    """Own address, the other one with its port, and the state of each socket of a process."""
    inodes = set()
    with contextlib.suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                inodes.add(os.readlink(descriptor).removeprefix("socket:[").rstrip("]"))
    found = set()
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[9] in inodes:
                found.add((fields[1].split(":")[0], fields[2], fields[3]))
    return found


LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


# Writes whom a process looks up and connects to by Python, into a file of its folder.
WATCH = """
import os, sys

def note(event, values):
    if event in ("socket.getaddrinfo", "socket.gethostbyname", "socket.connect", "socket.sendto"):
        address = values[0] if event in ("socket.getaddrinfo", "socket.gethostbyname") else values[1]
        with open(os.path.join(os.path.dirname(__file__), f"asked-{os.getpid()}"), "a") as file:
            print(address[0] if isinstance(address, tuple) else address, file=file)

sys.addaudithook(note)
"""


def watched(folder: Path, env: dict[str, str]) -> dict[str, str]:
    """The environment of a process whose look-ups `asked` finds in `folder`."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(WATCH)
    return {**env, "PYTHONPATH": os.pathsep.join([str(folder), env.get("PYTHONPATH", "")])}


def asked(folder: Path) -> set[str]:
    """Names and addresses."""
    return {line for path in folder.glob("asked-*") for line in path.read_text().splitlines()}


def secrets_in(text: str, folder: Path) -> list[str]:
    """Where the token is written."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    found = [str(path) for path in files if SECRET.encode() in path.read_bytes()]
    return found + ["output"] * (SECRET in text)


def test_ranks_of_one_machine_listen_on_loopback_only(tmp_path: Path) -> None:
    """And a whole run connects to nobody else but name servers, and leaves no token behind."""
    command, env = command_and_environment(TWO_RANKS, tmp_path / "out", 1, "fastsft.train")
    port = HeldPort()
    env |= {
        "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": socket.gethostname(),
        "MASTER_PORT": str(port.number), "HF_TOKEN": SECRET, "HUGGING_FACE_HUB_TOKEN": SECRET,
        "WANDB_API_KEY": SECRET,
    }  # fmt: skip
    env.pop("TORCHELASTIC_USE_AGENT_STORE", None)
    env = watched(tmp_path / "watched", env)
    ranks = [
        subprocess.Popen(
            [*command, "--hub_token", SECRET],
            cwd=TRAINER, env={**env, "RANK": str(rank), "LOCAL_RANK": str(rank)}, text=True,
            stdout=(tmp_path / f"log-{rank}").open("w"), stderr=subprocess.STDOUT,
        )
        for rank in range(2)
    ]  # fmt: skip
    seen: set[str] = set()
    met: set[str] = set()
    deadline = time.monotonic() + 120
    try:
        while any(rank.poll() is None for rank in ranks) and time.monotonic() < deadline:
            for rank in ranks:
                seen |= listening(rank.pid)
                met |= connected(rank.pid)
            time.sleep(0.05)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
        port.close()
    logs = "".join((tmp_path / f"log-{rank}").read_text() for rank in range(2))
    assert [rank.returncode for rank in ranks] == [0, 0], logs
    assert seen and seen <= LOOPBACK, seen
    assert met and met <= LOOPBACK, met
    assert asked(tmp_path / "watched") <= {"127.0.0.1", "localhost", socket.gethostname()}
    assert (tmp_path / "out" / "model.safetensors").exists()
    assert secrets_in(logs, tmp_path) == []


def test_a_listener_for_everybody_is_seen() -> None:
    """The test above could fail."""
    with socket.socket() as everywhere:
        everywhere.bind(("0.0.0.0", 0))
        everywhere.listen()
        assert "00000000" in listening(os.getpid())


def test_a_connection_is_seen() -> None:
    with socket.create_server(("127.0.0.2", 0)) as server, socket.create_connection(server.getsockname()):
        assert "0200007F" in connected(os.getpid())


def test_a_look_up_is_seen(tmp_path: Path) -> None:
    program = "import socket\ntry: socket.create_connection(('name.invalid', 1), 0.1)\nexcept OSError: pass"
    subprocess.run(["python", "-c", program], env=watched(tmp_path / "watched", dict(os.environ)), check=True)
    assert asked(tmp_path / "watched") == {"name.invalid"}


def test_only_port_53_of_a_name_server_is_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.2", 0)) as server, socket.create_connection(server.getsockname()):
        monkeypatch.setattr(f"{__name__}.name_servers", lambda: {("0200007F", "0035")})
        assert "0200007F" in connected(os.getpid())
        port = f"{server.getsockname()[1]:04X}"
        monkeypatch.setattr(f"{__name__}.name_servers", lambda: {("0200007F", port)})
        assert "0200007F" not in connected(os.getpid()) - {"0100007F"}


@pytest.mark.parametrize("crash", ["no data", "disk full"])
def test_no_token_after_a_crash(tmp_path: Path, crash: str) -> None:
    flags = {**SHORT, "max_steps": 2, "save_steps": 1}
    if crash == "no data":
        flags["data_path"] = "data/missing.json"
    command, env = command_and_environment(flags, tmp_path / "out", 1, "fastsft.train")

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, 3_000_000))

    done = subprocess.run(
        command, cwd=TRAINER, env={**env, "HF_TOKEN": SECRET, "HUGGING_FACE_HUB_TOKEN": SECRET},
        capture_output=True, text=True, timeout=300,
        preexec_fn=small_files if crash == "disk full" else None,
    )  # fmt: skip
    text = done.stdout + done.stderr
    assert done.returncode != 0 and ("missing.json" in text or "cannot write" in text), text
    assert secrets_in(text, tmp_path) == []


@pytest.mark.parametrize(
    ("environ", "one"),
    [
        ({"RANK": "0", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "somewhere"}, True),
        ({"RANK": "0", "MASTER_ADDR": "localhost"}, True),
        ({"RANK": "0", "MASTER_ADDR": "10.0.0.7"}, False),  # how many ranks are here nobody said
        ({"SLURM_STEP_NUM_TASKS": "2", "MASTER_ADDR": "10.0.0.7"}, True),
        ({"RANK": "0", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_USE_AGENT_STORE": "True"}, False),
    ],
)
def test_who_makes_the_store(environ: dict[str, str], one: bool) -> None:
    assert is_one_machine(2, 2, environ) is one
    assert not is_one_machine(1, 2, environ)
