"""Files of rows whose places are not what a save writes: refused, never memory as it was found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from fastsft.weight_sync.formats import save_format


def write(folder: Path, *ranks: Any) -> list[str]:
    """Each rank: its tensor, and what stands as its place."""
    names = []
    for rank, (tensor, place) in enumerate(ranks):
        names.append(f"model-{rank:05d}-of-{len(ranks):05d}.safetensors")
        save_file({"w": tensor}, folder / names[-1], {"fastsft_rows": json.dumps({"w": place})})
    return names


def test_rows_become_the_tensor(tmp_path: Path) -> None:
    whole = torch.arange(15.0).reshape(5, 3)
    parts = [
        (whole[:2].clone(), [0, [5, 3]]),
        (whole[2:].clone(), [2, [5, 3]]),
        (whole[:0].clone(), [5, [5, 3]]),
    ]
    read = save_format("native").read(tmp_path, write(tmp_path, *parts))
    assert torch.equal(read["w"], whole)


ROWS = torch.ones(2, 3)


@pytest.mark.parametrize(
    ("ranks", "reason"),
    [
        ([(ROWS, [0, [1000, 3]])], "expected 1000 rows, got 2"),
        ([(ROWS, [5, [7, 3]])], "expected what follows 0 rows"),
        ([(ROWS, [0, [4, 3]]), (ROWS, [0, [4, 3]])], "expected what follows 2 rows"),
        ([(ROWS, [0, [4, 3]]), (ROWS, [2, [5, 3]])], "expected what follows 2 rows"),
        ([(ROWS, [0, [1, 3]])], "expected what follows 0 rows"),
        ([(ROWS, [0, [2, 30]])], "expected what follows 0 rows"),
        ([(ROWS, [-2, [2, 3]])], "as its place, got"),
        ([(ROWS, ["0", [2, 3]])], "as its place, got"),
        ([(ROWS, [0, []])], "as its place, got"),
        ([(ROWS, 7)], "as its place, got"),
    ],
)
def test_rows_that_leave_a_hole_or_do_not_fit(ranks: Any, reason: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=reason):
        save_format("native").read(tmp_path, write(tmp_path, *ranks))


@pytest.mark.parametrize("metadata", [None, {"fastsft_rows": "["}, {"fastsft_rows": "[1]"}])
def test_metadata_without_places(metadata: Any, tmp_path: Path) -> None:
    save_file({"w": ROWS}, tmp_path / "model-00000-of-00001.safetensors", metadata)
    with pytest.raises(ValueError, match='expected "fastsft_rows" in its metadata'):
        save_format("native").read(tmp_path, ["model-00000-of-00001.safetensors"])


class Calls:
    def __reduce__(self) -> Any:
        from torch.distributed.device_mesh import DeviceMesh

        return DeviceMesh, ("cpu", [0])


def test_a_file_of_verl_makes_no_process_group(tmp_path: Path) -> None:
    name = "model_world_size_1_rank_0.pt"
    torch.save({"w": Calls()}, tmp_path / name)
    with pytest.raises(Exception, match="expected a DTensor, got Inert"):
        save_format("verl_pt").read(tmp_path, [name])
    assert not torch.distributed.is_initialized()
