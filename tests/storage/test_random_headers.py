"""Thousands of random safetensors files: the reader's verdict, and what it reads, are the library's."""

from __future__ import annotations

import copy
import json
import os
import random
import struct
import time
from pathlib import Path
from typing import Any

import pytest
import safetensors
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from fastsft import _C

BITS = {"F32": 32, "BF16": 16, "I64": 64, "U8": 8, "BOOL": 8, "F8_E4M3": 8, "F4": 4, "F6_E2M3": 6, "C64": 64}
ODD_VALUES = (None, -1, 0, 1, 4, 0.5, 4.0, 1 << 63, 1 << 64, "4", [], [4], {}, {"x": 1}, True, "F32")
ODD_TEXTS = (
    "{",
    "}",
    "]",
    ",",
    ":",
    '"',
    "\\",
    "\0",
    " ",
    "\n",
    "\t",
    "1e3",
    "-0",
    "\ufeff",
    "\\ud800",
    "NaN",
)


def library_reads(content: bytes) -> dict[str, tuple[str, list[int], bytes]] | None:
    try:
        tensors = safetensors.deserialize(content)
    except safetensors.SafetensorError:
        return None
    return {name: (t["dtype"], list(t["shape"]), bytes(t["data"])) for name, t in tensors}


def we_read(path: Path, content: bytes) -> dict[str, tuple[str, list[int], bytes]] | None:
    path.write_bytes(content)
    try:
        reader = _C.SafetensorsReader(str(path))
    except ValueError as error:
        assert str(path) in str(error)
        return None
    return {tensor.name: (tensor.dtype, tensor.shape, reader.bytes(tensor.name)) for tensor in reader.tensors}


@st.composite
def layouts(draw: st.DrawFn) -> tuple[dict[str, Any], int]:
    """A header as it should be, and the size of its data."""
    header: dict[str, Any] = {}
    end = 0
    for number in range(draw(st.integers(0, 4))):
        dtype = draw(st.sampled_from(sorted(BITS)))
        shape = draw(st.lists(st.sampled_from([0, 1, 2, 3, 4, 8]), max_size=3))
        elements = 1
        for size in shape:
            elements *= size
        begin, end = end, end + elements * BITS[dtype] // 8
        header[f"t{number}"] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    if draw(st.booleans()):
        header["__metadata__"] = {"format": "pt"}
    return header, end


def odd(source: random.Random, *more: Any) -> Any:
    return copy.deepcopy(source.choice([*more, *ODD_VALUES]))


def spoil(header: dict[str, Any], source: random.Random) -> None:
    """One change to a header, which may leave it valid."""
    names = [name for name in header if name != "__metadata__" and isinstance(header[name], dict)]
    if not names:
        header["x"] = odd(source)
        return
    entry = header[source.choice(names)]
    match source.randrange(7):
        case 0:
            key = source.choice(["dtype", "shape", "data_offsets"])
            entry[key] = odd(source)
        case 1 if isinstance(entry.get("data_offsets"), list) and entry["data_offsets"]:
            place = source.randrange(len(entry["data_offsets"]))
            entry["data_offsets"][place] = odd(source, nudged(entry["data_offsets"][place]))
        case 2 if isinstance(entry.get("shape"), list):
            entry["shape"] = [*entry["shape"], odd(source)]
        case 3:
            entry.pop(source.choice(["dtype", "shape", "data_offsets"]), None)
        case 4:
            entry["more"] = odd(source)
        case 5:
            header["__metadata__"] = odd(source, {"a": "b"}, {"a": 1}, {"a": None})
        case _:
            entry["dtype"] = source.choice([*sorted(BITS), "F33", "f32", ""])


def nudged(value: Any) -> Any:
    return value + 1 if isinstance(value, int) else value


def spoil_text(text: str, source: random.Random) -> str:
    place = source.randrange(len(text) + 1)
    if source.random() < 0.5:
        return text[:place] + source.choice(ODD_TEXTS) + text[place:]
    return text[:place] + text[place + 1 + source.randrange(3) :]


def has_duplicate_keys(text: bytes) -> bool:
    """Where we are stricter on purpose: the format forbids duplicates, the library keeps the last one."""
    found = []

    def look(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found.append(len(dict(pairs)) < len(pairs))
        return dict(pairs)

    try:
        json.loads(text, object_pairs_hook=look)
    except ValueError:
        return False
    return any(found)


@settings(max_examples=1500, deadline=None, database=None, derandomize=True, phases=[Phase.generate],
          suppress_health_check=list(HealthCheck))  # fmt: skip
@given(layouts(), st.integers(0, 2), st.integers(0, 2), st.integers(-2, 2), st.randoms(use_true_random=False))
def test_random_headers(
    tmp_path_factory: pytest.TempPathFactory,
    layout: tuple[dict[str, Any], int],
    changes: int,
    text_changes: int,
    more_data: int,
    source: random.Random,
) -> None:
    header, size = json.loads(json.dumps(layout[0])), layout[1]
    for _ in range(changes):
        spoil(header, source)
    path = tmp_path_factory.getbasetemp() / f"random-{os.getpid()}.safetensors"
    data = source.randbytes(max(0, size + (more_data if source.random() < 0.2 else 0)))
    for indent in (None, 1):
        text = json.dumps(header, indent=indent, ensure_ascii=bool(indent))
        for _ in range(text_changes if indent else 0):
            text = spoil_text(text, source)
        raw = text.encode("utf-8", "surrogatepass")
        content = struct.pack("<Q", len(raw)) + raw + data
        if not has_duplicate_keys(raw):
            assert we_read(path, content) == library_reads(content), raw


def test_random_bytes(tmp_path: Path) -> None:
    """Real headers with bytes changed, added, taken away and moved."""
    source = random.Random(5)
    text = json.dumps(
        {
            "__metadata__": {"format": "pt"},
            "a": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]},
            "b": {"dtype": "F32", "shape": [16], "data_offsets": [12, 76]},
        }
    ).encode()
    whole = struct.pack("<Q", len(text)) + text + bytes(76)
    accepted = 0
    for _ in range(2500):
        content = bytearray(whole)
        for _ in range(source.randint(1, 2)):
            place = source.randrange(len(content))
            match source.randrange(4):
                case 0:
                    content[place] = source.randrange(256)
                case 1:
                    content[place:place] = source.randbytes(1)
                case 2:
                    del content[place : place + source.randint(1, 4)]
                case _:
                    other = source.randrange(len(content))
                    content[place], content[other] = content[other], content[place]
        header = bytes(content[8 : 8 + struct.unpack("<Q", content[:8])[0]])
        if has_duplicate_keys(header):
            continue
        ours = we_read(tmp_path / "x", bytes(content))
        assert ours == library_reads(bytes(content)), bytes(content)
        accepted += ours is not None
    assert 50 < accepted < 2400  # both verdicts were met


def peak_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])


def refuse(path: Path) -> tuple[float, int]:
    """CPU seconds and bytes that refusing a file takes."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before, begin = peak_bytes(), time.process_time()
    with pytest.raises(ValueError, match=str(path)):
        _C.SafetensorsReader(str(path))
    return time.process_time() - begin, peak_bytes() - before


def many_tensors(count: int, end: str) -> bytes:
    """A header with `count` empty tensors, and `end` before its last brace."""
    entry = '"%x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'
    return ("{" + ",".join(entry % number for number in range(count)) + end + "}").encode()


@pytest.mark.parametrize(
    ("header", "length"),
    [
        (b"{}", 1 << 63),
        (b"{}", 100_000_001),
        (b"{" + b'"a":{' * 200_000, None),
        (b"[" * 5_000_000, None),
        (b'{"' + b"a" * 20_000_000, None),
        (b'{"a":{"dtype":"F32","shape":[' + b"1," * 2_000_000 + b"1]", None),
        (many_tensors(200_000, ',"z":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}'), None),
    ],
    ids=["2^63", "100,000,001", "open objects", "open arrays", "long name", "long shape", "hole at the end"],
)
def test_refusing_is_cheap(tmp_path: Path, header: bytes, length: int | None) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", len(header) if length is None else length) + header)
    seconds, size = refuse(path)
    assert size < 256 * 2**20
    assert seconds < 1  # of this thread's work; means "does not go on and on"


@pytest.mark.chaos
def test_ten_million_tensors(tmp_path: Path) -> None:
    """Above the limit of a header they are refused unread; below it, by the time all are seen."""
    path = tmp_path / "x.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", 10_000_000 * 55))
        file.write(many_tensors(10_000_000, ""))
    seconds, size = refuse(path)
    assert seconds < 1 and size < 256 * 2**20
    header = many_tensors(1_600_000, ',"z":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}')
    assert 80_000_000 < len(header) < 100_000_000
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    seconds, size = refuse(path)
    print(f"{len(header):,} bytes of header: {seconds:.2f} s, {size / 2**20:.0f} MiB")
    assert size < 256 * 2**20
