"""Network namespaces as machines: each has its own loopback and one end of a cable, and nothing else."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

CABLE = "cable0"  # of every host


@dataclass(frozen=True)
class Host:
    """A namespace and its address, which exists inside it only."""

    name: str
    address: str

    def command(self, words: list[str]) -> list[str]:
        """`words` as a command that runs on this host."""
        return ["ip", "netns", "exec", self.name, *words]

    def cut_cable(self) -> None:
        """Take the host's end of the cable down: packets vanish, connections stay open."""
        _ip("-n", self.name, "link", "set", CABLE, "down")


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")


def why_not() -> str | None:
    """Why hosts cannot be made here; None when they can."""
    if shutil.which("ip") is None:
        return "the command ip (iproute2) is not there"
    try:
        with two_hosts():
            return None
    except OSError as error:
        return f"network namespaces cannot be made: {error}"


@contextlib.contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Two hosts on one cable; gone afterwards, whatever happened. OSError when they cannot be made."""
    hosts = tuple(Host(f"fastsft-{os.getpid()}-{n}", f"10.77.0.{n + 1}") for n in range(2))
    made: list[Host] = []
    try:
        for host in hosts:
            _ip("netns", "add", host.name)
            made.append(host)
        ends = [word for host in hosts for word in ("name", CABLE, "netns", host.name)]
        _ip("link", "add", *ends[:4], "type", "veth", "peer", *ends[4:])
        for host in hosts:
            _ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", CABLE)
            for device in ("lo", CABLE):
                _ip("-n", host.name, "link", "set", device, "up")
        yield hosts[0], hosts[1]
    finally:
        for host in made:
            _ip("netns", "del", host.name)
