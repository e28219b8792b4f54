"""The reader agrees with the safetensors library, on hostile files too; the library opens what we write."""

import json
import struct
from pathlib import Path

import pytest
import safetensors
import safetensors.torch
import torch

from fastsft import _C


def raw_file(header: str | bytes, data: bytes = b"", length: int | None = None) -> bytes:
    text = header.encode() if isinstance(header, str) else header
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def one(
    dtype: str = "F32", shape: object = (1,), offsets: object = (0, 4), extra: str = "", name: str = "a"
) -> str:
    fields = (
        f'"dtype":{json.dumps(dtype)},"shape":{json.dumps(shape)},"data_offsets":{json.dumps(offsets)}{extra}'
    )
    return json.dumps(name) + ":{" + fields + "}"


A = one()
B = one(offsets=(4, 8), name="b")
VALID = {
    "plain": raw_file("{" + A + "}", bytes(4)),
    "no tensors": raw_file("{}"),
    "metadata": raw_file('{"__metadata__":{"format":"pt","x":"y"},' + A + "}", bytes(4)),
    "metadata last": raw_file("{" + A + ',"__metadata__":{}}', bytes(4)),
    "null metadata": raw_file('{"__metadata__":null,' + A + "}", bytes(4)),
    "trailing spaces": raw_file("{" + A + "}    ", bytes(4)),
    "empty tensor": raw_file("{" + one(shape=[0, 5], offsets=[0, 0]) + "}"),
    "rank zero": raw_file("{" + one(shape=[]) + "}", bytes(4)),
    "two": raw_file("{" + A + "," + B + "}", bytes(8)),
    "two out of order": raw_file("{" + B + "," + A + "}", bytes(8)),
    "empty between": raw_file(
        "{" + A + "," + one(shape=[0], offsets=[4, 4], name="e") + "," + B + "}", bytes(8)
    ),
    "unknown key": raw_file("{" + one(extra=',"extra":{"x":[1,null,{"y":-1.5}]}') + "}", bytes(4)),
    "unicode name": raw_file("{" + one(name="\u00e4\u4e2d\U0001f600") + "}", bytes(4)),
    "escaped name": raw_file('{"\\u0041\\n":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', bytes(4)),
    "nan values": raw_file("{" + A + "}", b"\xff" * 4),
    "four bits": raw_file("{" + one("F4", [2], [0, 1]) + "}", bytes(1)),
}
HOSTILE = {
    "empty file": b"",
    "seven bytes": bytes(7),
    "zero header": bytes(8),
    "length 2^63": raw_file("{}", length=1 << 63),
    "length 2^64-1": raw_file("{}", length=(1 << 64) - 1),
    "beyond the file": raw_file("{}", length=3),
    "header 100,000,001": raw_file("{}", length=100_000_001),
    "not JSON": raw_file("hello"),
    "array": raw_file("[]"),
    "string": raw_file('"x"'),
    "cut JSON": raw_file("{" + A, bytes(4)),
    "garbage after": raw_file("{" + A + "}x", bytes(4)),
    "NUL after": raw_file("{" + A + "}\0", bytes(4)),
    "NUL and garbage after": raw_file("{" + A + "}\0{]", bytes(4)),
    "byte-order mark": raw_file(b"\xef\xbb\xbf{" + A.encode() + b"}", bytes(4)),
    "bad UTF-8": raw_file(b'{"\xff\xfe":' + A.encode()[4:] + b"}", bytes(4)),
    "overlong UTF-8": raw_file(b'{"\xc0\x80":' + A.encode()[4:] + b"}", bytes(4)),
    "lone surrogate": raw_file('{"\\ud800":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', bytes(4)),
    "cut data": raw_file("{" + A + "}", bytes(3)),
    "trailing data": raw_file("{" + A + "}", bytes(5)),
    "data without tensors": raw_file("{}", bytes(4)),
    "overlap": raw_file("{" + A + "," + one(offsets=(2, 6), name="b") + "}", bytes(6)),
    "same range": raw_file("{" + A + "," + one(name="b") + "}", bytes(4)),
    "hole": raw_file("{" + A + "," + one(offsets=(5, 9), name="b") + "}", bytes(9)),
    "hole at the start": raw_file("{" + one(offsets=(4, 8)) + "}", bytes(8)),
    "end before begin": raw_file("{" + one(offsets=(4, 0)) + "}", bytes(4)),
    "shape too small": raw_file("{" + one(shape=[0]) + "}", bytes(4)),
    "shape too large": raw_file("{" + one(shape=[2]) + "}", bytes(4)),
    "shape overflow": raw_file("{" + one(shape=[1 << 32, 1 << 32], offsets=(0, 0)) + "}"),
    "overflow before zero": raw_file("{" + one(shape=[1 << 63, 2, 0], offsets=(0, 0)) + "}"),
    "byte overflow": raw_file("{" + one(shape=[1 << 62], offsets=(0, 0)) + "}"),
    "half a byte": raw_file("{" + one("F4", [1], [0, 1]) + "}", bytes(1)),
    "negative offset": raw_file("{" + one(offsets=(-4, 0)) + "}", bytes(4)),
    "minus zero": raw_file("{" + one().replace("[0, 4]", "[-0, 4]") + "}", bytes(4)),
    "float offset": raw_file("{" + one(offsets=(0, 4.0)) + "}", bytes(4)),
    "exponent offset": raw_file(
        "{" + one(shape=[250], offsets=(0, 1000)).replace("1000", "1e3") + "}", bytes(1000)
    ),
    "huge offset": raw_file("{" + one(offsets=(0, 1 << 64)) + "}", bytes(4)),
    "text offset": raw_file("{" + one(offsets=("0", "4")) + "}", bytes(4)),
    "three offsets": raw_file("{" + one(offsets=(0, 2, 4)) + "}", bytes(4)),
    "one offset": raw_file("{" + one(offsets=(4,)) + "}", bytes(4)),
    "offsets no list": raw_file("{" + one(offsets=4) + "}", bytes(4)),
    "nested shape": raw_file("{" + one(shape=[[1]]) + "}", bytes(4)),
    "shape object": raw_file("{" + one(shape={}) + "}", bytes(4)),
    "null shape": raw_file("{" + one(shape=None) + "}", bytes(4)),
    "unknown dtype": raw_file("{" + one("F33") + "}", bytes(4)),
    "small dtype": raw_file("{" + one("f32") + "}", bytes(4)),
    "no dtype": raw_file('{"a":{"shape":[1],"data_offsets":[0,4]}}', bytes(4)),
    "no shape": raw_file('{"a":{"dtype":"F32","data_offsets":[0,4]}}', bytes(4)),
    "no offsets": raw_file('{"a":{"dtype":"F32","shape":[1]}}', bytes(4)),
    "duplicate dtype": raw_file("{" + one(extra=',"dtype":"F32"') + "}", bytes(4)),
    "duplicate metadata": raw_file('{"__metadata__":{},"__metadata__":{},' + A + "}", bytes(4)),
    "number in metadata": raw_file('{"__metadata__":{"x":1},' + A + "}", bytes(4)),
    "nested metadata": raw_file('{"__metadata__":{"x":{"y":"z"}},' + A + "}", bytes(4)),
    "metadata list": raw_file('{"__metadata__":[],' + A + "}", bytes(4)),
    "tensor is text": raw_file('{"a":"b"}'),
    "tensor is null": raw_file('{"a":null}'),
    "deep": raw_file("{" + one(extra=',"x":' + "[" * 1000 + "]" * 1000) + "}", bytes(4)),
    "deep and open": raw_file("{" + one(extra=',"x":' + "[" * 100000), bytes(4)),
}
# Where we are strict on purpose: the format forbids these, the reference library keeps the last one.
STRICTER = {
    "duplicate tensor": raw_file("{" + A + "," + A + "}", bytes(4)),
    "duplicate metadata key": raw_file('{"__metadata__":{"x":"1","x":"2"},' + A + "}", bytes(4)),
}


def library_accepts(content: bytes) -> bool:
    try:
        safetensors.deserialize(content)
    except safetensors.SafetensorError:
        return False
    return True


def ours_accepts(tmp_path: Path, content: bytes) -> bool:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    try:
        _C.SafetensorsReader(str(path))
    except ValueError as error:
        assert str(path) in str(error)
        return False
    return True


@pytest.mark.parametrize("name", VALID)
def test_valid_files(tmp_path, name):
    assert library_accepts(VALID[name])
    assert ours_accepts(tmp_path, VALID[name])


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files(tmp_path, name):
    assert not library_accepts(HOSTILE[name])
    assert not ours_accepts(tmp_path, HOSTILE[name])


@pytest.mark.parametrize("name", STRICTER)
def test_duplicates_are_refused(tmp_path, name):
    assert not ours_accepts(tmp_path, STRICTER[name])


def test_leading_white_space(tmp_path):
    """Writers pad headers; the reference reader's verdict on leading spaces is ours."""
    content = raw_file("   {" + A + "}", bytes(4))
    assert library_accepts(content) and ours_accepts(tmp_path, content)


@pytest.mark.parametrize(
    "dtype", [*sorted(safetensors.torch._TYPES), "F8_E8M0", "F6_E2M3", "F6_E3M2", "F4", "X8"]
)
def test_every_dtype(tmp_path, dtype):
    for size in range(0, 72, 3):
        content = raw_file("{" + one(dtype, [8], [0, size]) + "}", bytes(size))
        assert ours_accepts(tmp_path, content) == library_accepts(content), (dtype, size)


def test_every_cut_of_a_real_file(tmp_path):
    path = tmp_path / "whole.safetensors"
    safetensors.torch.save_file(
        {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(3, dtype=torch.bfloat16)}, path
    )
    content = path.read_bytes()
    assert ours_accepts(tmp_path, content)
    for cut in range(len(content)):
        assert not ours_accepts(tmp_path, content[:cut]), cut
    for position in range(len(content)):
        damaged = content[:position] + bytes([content[position] ^ 4]) + content[position + 1 :]
        if library_accepts(damaged):
            continue  # data, or a name: no rule of the format is broken
        assert not ours_accepts(tmp_path, damaged), position


def test_reader_gives_what_the_library_wrote(tmp_path):
    torch.manual_seed(0)
    tensors = {
        "f32": torch.randn(3, 5),
        "bf16": torch.randn(7).bfloat16(),
        "f16": torch.randn(2, 2, 2).half(),
        "i64": torch.arange(4),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 3),
    }
    path = tmp_path / "x.safetensors"
    safetensors.torch.save_file(tensors, path, metadata={"format": "pt", "who": "library"})
    reader = _C.SafetensorsReader(str(path))
    assert reader.metadata == {"format": "pt", "who": "library"}
    assert {entry.name for entry in reader.tensors} == set(tensors)
    for entry in reader.tensors:
        tensor = tensors[entry.name]
        assert entry.shape == list(tensor.shape)
        assert reader.bytes(entry.name) == tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    with pytest.raises(ValueError, match='no tensor "missing"'):
        reader.bytes("missing")


def test_library_opens_what_we_write(tmp_path):
    path = tmp_path / "x.safetensors"
    specs = [
        _C.TensorSpec('quote " \u00e4', "BF16", [2, 3]),
        _C.TensorSpec("scalar", "F32", []),
        _C.TensorSpec("e", "F32", [0]),
    ]
    writer = _C.SafetensorsWriter(str(path), specs, {"who": "fastsft"})
    first = torch.arange(6).bfloat16().reshape(2, 3)
    raw = first.view(torch.uint8).numpy().tobytes()
    writer.write(raw[:5])
    writer.write(raw[5:])
    writer.write(struct.pack("<f", 1.5))
    digest = writer.finish()
    content = path.read_bytes()
    assert struct.unpack("<Q", content[:8])[0] % 8 == 0
    assert (digest.name, digest.size, digest.crc32c) == ("x.safetensors", len(content), _C.crc32c(content))
    with safetensors.safe_open(path, "pt") as file:
        assert file.metadata() == {"format": "pt", "who": "fastsft"}
        assert torch.equal(file.get_tensor('quote " \u00e4'), first)
        assert file.get_tensor("scalar").item() == 1.5
        assert file.get_tensor("e").shape == (0,)


def test_incomplete_write_is_refused(tmp_path):
    writer = _C.SafetensorsWriter(str(tmp_path / "x"), [_C.TensorSpec("a", "F32", [2])])
    writer.write(bytes(4))
    with pytest.raises(RuntimeError):
        writer.finish()
    with pytest.raises(RuntimeError):
        writer.write(bytes(8))
