"""Safetensors files of a save whose headers say too much, too little, or something twice: all are refused."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from fastsft.weight_sync.formats import save_format

NATIVE, HF = "model-{rank:05d}-of-{ranks:05d}.safetensors", "model.safetensors"
ROWS, WHOLE = torch.arange(6.0).reshape(2, 3), torch.arange(5)
PLACES = {"w": [0, [2, 3]], "v": None}
HUGE = 137438953472  # rows of 4 bytes: 549 GB


def write(folder: Path, *ranks: tuple[dict[str, torch.Tensor], Any]) -> list[str]:
    """Each rank: its tensors, and its places as they are, or as text."""
    names = [NATIVE.format(rank=rank, ranks=len(ranks)) for rank in range(len(ranks))]
    for name, (tensors, places) in zip(names, ranks, strict=True):
        text = places if isinstance(places, str) else json.dumps(places)
        save_file(tensors, folder / name, {"fastsft_rows": text})
    return names


def read(folder: Path, names: list[str], name: str = "native") -> dict[str, torch.Tensor]:
    return save_format(name).read(folder, names)


def test_the_whole_tensors_come_from_all_files(tmp_path: Path) -> None:
    tensors = {"w": ROWS, "v": WHOLE, "empty": torch.empty(0, 4), "half": ROWS.to(torch.bfloat16)}
    second = {**tensors, "w": ROWS + 6, "half": (ROWS + 6).to(torch.bfloat16)}
    rows = [{"w": [n, [4, 3]], "v": None, "empty": None, "half": [n, [4, 3]]} for n in (0, 2)]
    found = read(tmp_path, write(tmp_path, (tensors, rows[0]), (second, rows[1])))
    whole = torch.arange(12.0).reshape(4, 3)
    assert torch.equal(found["w"], whole) and torch.equal(found["half"], whole.to(torch.bfloat16))
    assert torch.equal(found["v"], WHOLE) and found["empty"].shape == (0, 4)
    found["w"].zero_()  # memory of its own
    assert torch.equal(read(tmp_path, [NATIVE.format(rank=r, ranks=2) for r in (0, 1)])["w"], whole)


@pytest.mark.parametrize(("ranks", "message"), [
    ([({"w": ROWS, "v": WHOLE}, {"w": PLACES["w"]})], "v: expected a tensor and its place, got no place"),
    ([({"w": ROWS, "v": WHOLE}, {**PLACES, "x": None})], "x: expected a tensor and its place, got no tensor"),
    ([({"w": ROWS, "v": WHOLE}, '{"w": [0, [2, 3]], "v": null, "v": null}')], "v is there twice"),
    ([({"w": ROWS}, {"w": [0, [HUGE, 3]]})], f"w: expected {HUGE} rows, got 2"),
    ([({"w": ROWS[:0]}, {"w": [0, [HUGE, 3]]})], f"w: expected {HUGE} rows, got 0"),
    ([({"w": ROWS[:0]}, {"w": [0, [0, HUGE]]})], "w: expected what follows 0 rows"),
    ([({"w": ROWS, "v": WHOLE}, PLACES), ({"w": ROWS}, {"w": [2, [4, 3]]})], "v is not in all files"),
    ([({"w": ROWS}, {"w": None}), ({"w": ROWS}, {"w": [0, [2, 3]]})], "expected what follows 0 rows of None"),
    ([({"w": ROWS}, {"w": [0, [2, 3]]}), ({"w": ROWS}, {"w": None})], "w: expected rows of"),
    ([({"w": ROWS}, {"w": None}), ({"w": ROWS[:1]}, {"w": None})], r"w: expected all of \[2, 3\]"),
    ([({"w": ROWS}, {"w": [0, [4, 3]]}), ({"w": ROWS.to(torch.int32)}, {"w": [2, [4, 3]]})],
     "w: expected F32, as in .*, got I32"),
])  # fmt: skip
def test_files_that_are_no_whole_model_are_refused(tmp_path: Path, ranks: Any, message: str) -> None:
    names = write(tmp_path, *ranks)
    with pytest.raises(ValueError, match=message) as caught:
        read(tmp_path, names)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("listed", [[0], [1], [0, 1], [1, 2]])
def test_files_of_some_ranks_are_no_save(tmp_path: Path, listed: list[int]) -> None:
    names = write(tmp_path, *[({"v": WHOLE}, {"v": None})] * 3)
    with pytest.raises(ValueError, match="expected a file of each of 3 ranks of one save"):
        read(tmp_path, [names[rank] for rank in listed])


TENSOR = '"w":{"dtype":"F32","shape":[2],"data_offsets":[%d,%d]}'


@pytest.mark.parametrize(("header", "message"), [
    ("{" + TENSOR % (0, 8) + "," + TENSOR % (8, 16) + "}", 'two tensors are called "w"'),
    ('{"__metadata__":{"a":"1","a":"2"},' + TENSOR % (0, 16) + "}", 'duplicate key "a"'),
    ('{"w":{"dtype":"F32","dtype":"F32","shape":[4],"data_offsets":[0,16]}}', 'duplicate key "dtype"'),
    (f'{{"w":{{"dtype":"F32","shape":[{HUGE}],"data_offsets":[0,{4 * HUGE}]}}}}', "the file was cut"),
    ('{"w":{"dtype":"C64","shape":[2],"data_offsets":[0,16]}}', "w: expected one of BOOL, .*, got C64"),
    ("{", "the header is not JSON"),
])  # fmt: skip
@pytest.mark.parametrize("name", ["hf", "native"])
def test_headers_of_others_are_refused(tmp_path: Path, header: str, message: str, name: str) -> None:
    if name == "native" and "C64" in header:
        header = header.replace("{", '{"__metadata__":{"fastsft_rows":"{\\"w\\":null}"},', 1)
    path = tmp_path / (HF if name == "hf" else NATIVE.format(rank=0, ranks=1))
    path.write_bytes(struct.pack("<Q", len(header)) + header.encode() + bytes(16))
    with pytest.raises(ValueError, match=message) as caught:
        read(tmp_path, [path.name], name)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("kind", ["missing", "a FIFO", "garbage", "empty"])
@pytest.mark.parametrize("name", ["hf", "native"])
def test_what_is_no_file_of_weights_is_named(tmp_path: Path, kind: str, name: str) -> None:
    path = tmp_path / (HF if name == "hf" else NATIVE.format(rank=0, ranks=1))
    if kind == "a FIFO":
        os.mkfifo(path)
    elif kind != "missing":
        path.write_bytes(b"" if kind == "empty" else b"no weights")
    with pytest.raises((ValueError, RuntimeError), match=path.name):
        read(tmp_path, [path.name], name)
