"""Writers of a checkpoint or a model: all ranks into one directory, or some for the others."""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from fastsft.ranks.agreement import Agreement
from fastsft.runtime.launch import launch

# Clients of these keep whole pages of what other machines write at the same time.
_UNSAFE_FOR_RANGES = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs"}
_ESCAPE = re.compile(rb"\\([0-3][0-7]{2})")  # the kernel's, of spaces and the like in a name

# parallel: every rank writes its bytes of every file. mixed: rank 0 writes the model files that it gathers,
# every rank its own state. stream: rank 0, or the first rank of every node, writes all.
Way = Literal["parallel", "mixed", "stream"]


@dataclass(frozen=True)
class Sight:
    """One rank's view of a directory that rank 0 made, and where it runs."""

    sees: bool
    host: str
    file_system: str


def look_at(directory: str | Path) -> Sight:
    """This rank's view of `directory`."""
    path = Path(directory)
    return Sight((path / ".fastsft-owner").exists(), socket.gethostname(), file_system_of(path))


def choose_way(wanted: str, sights: list[Sight]) -> tuple[Way, str]:
    """Way of writing files when the ranks see `sights`, and why when it is not as `wanted` or in parallel.

    wanted: --save_mode. ValueError when "parallel" is asked for and a rank does not see the directory.
    """
    blind = [rank for rank, sight in enumerate(sights) if not sight.sees]
    if blind:
        if wanted == "parallel":
            raise ValueError(
                f"--save_mode parallel: rank {blind[0]} does not see the directory that rank 0 made; put "
                "--output_dir on a shared file system, or leave out --save_mode"
            )
        return "stream", f"rank {blind[0]} does not see --output_dir"
    if wanted == "stream":
        return "mixed", ""
    kind = sights[0].file_system
    several = len({sight.host for sight in sights}) > 1
    if wanted == "auto" and several and kind in _UNSAFE_FOR_RANGES:
        return "mixed", f"{kind} does not let several machines write one file"
    return "parallel", ""


class SaveArguments(Protocol):
    """Of the arguments of a run, what says who writes."""

    @property
    def save_on_each_node(self) -> bool: ...
    @property
    def save_mode(self) -> str: ...


def agreed_way(args: SaveArguments, directory: str | Path, agreement: Agreement) -> tuple[Way, str]:
    """`choose_way` for a directory that rank 0 has made; collective."""
    if args.save_on_each_node:
        return "stream", ""
    if agreement.world_size == 1:
        return ("mixed", "") if args.save_mode == "stream" else ("parallel", "")
    return choose_way(args.save_mode, agreement.settle(look_at(directory)))


def writes_small_files(args: SaveArguments) -> bool:
    """True if this rank makes directories and their JSON files: rank 0, or the first of every node."""
    return launch().local_rank == 0 if args.save_on_each_node else launch().rank == 0


def file_system_of(path: Path) -> str:
    """The type of the mounted file system that holds `path`, as the kernel calls it; "" when unknown."""
    try:
        mounts = Path("/proc/self/mounts").read_bytes().splitlines()
    except OSError:
        return ""
    return _kind_of(os.fsencode(path.resolve()), mounts)


def _kind_of(place: bytes, mounts: list[bytes]) -> str:
    """Of the innermost mount point that holds `place`; names are bytes, which need not be UTF-8."""
    best = (b"", b"")
    for line in mounts:
        words = line.split(b" ")
        if len(words) < 3:
            continue
        point = _ESCAPE.sub(lambda found: bytes([int(found[1], 8)]), words[1])
        inside = place == point or place.startswith(point.rstrip(b"/") + b"/")
        if inside and len(point) >= len(best[0]):
            best = (point, words[2])
    return os.fsdecode(best[1])
