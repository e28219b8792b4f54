"""The weight files of a model, written in an order of the caller's own."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from fastsft import _C

SPECS = [("a", "F32", [2]), ("b", "BF16", [3]), ("c", "F32", []), ("d", "F32", [0])]


def specs() -> list[_C.TensorSpec]:
    return [_C.TensorSpec(*spec) for spec in SPECS]


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_any_order_of_writing(tmp_path: Path) -> None:
    files = _C.WeightFiles(str(tmp_path), specs(), [2, 3, 0, 1], 10**9)
    for data in (struct.pack("f", 3), b"", struct.pack("2f", 1, 2), bytes(6)):
        files.write(data)
    digests = files.commit(6)
    assert names(tmp_path) == {"model.safetensors"}
    assert digests[0].crc32c == _C.digest_file(str(tmp_path / "model.safetensors")).crc32c
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert file.get_tensor("a").tolist() == [1, 2] and file.get_tensor("c").item() == 3
        assert file.get_tensor("b").shape == (3,) and file.get_tensor("d").shape == (0,)


def test_split_by_the_state_dict_not_by_the_order_of_writing(tmp_path: Path) -> None:
    specs = [_C.TensorSpec(name, "U8", [4]) for name in "abcd"]
    files = _C.WeightFiles(str(tmp_path), specs, [3, 0, 2, 1], 8)
    for value in (3, 0, 2, 1):
        files.write(bytes([value] * 4))
    assert {digest.name for digest in files.commit(16)} == names(tmp_path)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_parameters": 16, "total_size": 16}
    for value, name in enumerate("abcd"):
        file = f"model-0000{1 + value // 2}-of-00002.safetensors"
        assert index["weight_map"][name] == file
        assert load_file(tmp_path / file)[name].tolist() == [value] * 4


@pytest.mark.parametrize("order", [[], [0, 1, 2], [0, 1, 2, 2], [0, 1, 2, 4]])
def test_orders_that_are_none(tmp_path: Path, order: list[int]) -> None:
    with pytest.raises(ValueError, match="each of 4 tensors once"):
        _C.WeightFiles(str(tmp_path), specs(), order, 10**9)
    assert names(tmp_path) == set()


def test_tensors_must_be_aligned(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r'"a" would begin at byte 6.*larger elements first'):
        _C.WeightFiles(str(tmp_path), specs(), [1, 0, 2, 3], 10**9)
    assert names(tmp_path) == set()


def test_wrong_sizes_and_missing_tensors(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_text("old")
    files = _C.WeightFiles(str(tmp_path), specs(), [0, 2, 3, 1], 10**9)
    with pytest.raises(ValueError, match="saving a: expected 8 bytes, got 4"):
        files.write(bytes(4))
    files.write(bytes(8))
    with pytest.raises(ValueError, match="expected 4 tensors, got 1"):
        files.commit(0)
    files.discard()
    assert names(tmp_path) == {"model.safetensors"}
    assert (tmp_path / "model.safetensors").read_text() == "old"


def test_a_file_that_reads_back_differently_is_no_save(tmp_path: Path) -> None:
    files = _C.WeightFiles(str(tmp_path), [_C.TensorSpec("a", "U8", [4])], [0], 10**9)
    files.write(bytes(4))
    (path,) = tmp_path.iterdir()
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(RuntimeError, match="reads back differently"):
        files.commit(4)
    files.discard()
    assert names(tmp_path) == set()


def test_nothing_to_save(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected tensors to save"):
        _C.WeightFiles(str(tmp_path), [], [], 10**9)
