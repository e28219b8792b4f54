"""Data that the doctor refuses or warns of, and how much of it is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from doctor_patient import DATA, Patient
from fastsft import _C
from fastsft.doctor import data as doctor_data
from fastsft.sources.data_files import DataFile


def _write(path: Path, *records: object) -> str:
    path.write_text("\n".join(json.dumps(record) for record in records) + "\n")
    return str(path)


TURNS = [{"from": "human", "value": "Hello"}, {"from": "gpt", "value": "Hello yourself"}]
UNLEARNED = {"conversations": [TURNS[0]]}


def test_data_that_is_not_there(patient: Patient, tmp_path: Path) -> None:
    mark, text = patient(data_path=str(tmp_path / "no.json"))["data"]
    assert mark == "failed" and "--data_path" in text and "is not a file" in text
    assert patient(data_path="-")["data"][0] == "not checked"


def test_data_of_which_nothing_is_learned(patient: Patient, tmp_path: Path) -> None:
    path = _write(tmp_path / "bad.jsonl", *[UNLEARNED] * 3)
    found = patient(data_path=str(DATA), eval_data_path=path, mask_policy="spans", template="vicuna_v1.1")
    assert found["data"][0] == "ok" and found["eval data"][0] == "failed", patient.text
    assert "nothing in this file is learned" in found["eval data"][1]


def test_records_that_stop_a_run(patient: Patient, tmp_path: Path) -> None:
    path = _write(tmp_path / "bad.jsonl", {"conversations": TURNS}, {"conversation": TURNS})
    mark, text = patient(data_path=path)["data"]
    assert mark == "failed" and "bad.jsonl" in text and "record 1" in text
    (tmp_path / "torn.json").write_text(json.dumps([{"conversations": TURNS}] * 3)[:-20])
    mark, text = patient(data_path=str(tmp_path / "torn.json"))["data"]
    assert mark == "failed" and "torn.json" in text


def test_drops_among_the_first_records_only_warn(patient: Patient, tmp_path: Path) -> None:
    flags = {"mask_policy": "spans", "template": "vicuna_v1.1"}
    path = _write(tmp_path / "some.jsonl", UNLEARNED, {"conversations": TURNS}, {"conversations": TURNS})
    assert patient("--records", "2", data_path=path, **flags)["data"][0] == "warning"
    mark, text = patient("--records", "3", data_path=path, **flags)["data"]
    assert mark == "failed" and "--max_dropped 0.05 allows fewer" in text


@pytest.mark.parametrize("form", ["array", "lines"])
@pytest.mark.parametrize("wanted", [1, 4, 5, 6])
def test_heads_are_the_first_records(form: str, wanted: int, tmp_path: Path) -> None:
    """Brackets, quotes and backslashes in texts neither begin nor end a record."""
    texts = ["a", 'he said "[", {', "\\", '\\"]', "b,c"]
    records = [{"conversations": [{"from": "human", "value": text}], "more": [[], {}]} for text in texts]
    text = json.dumps(records, indent=1) if form == "array" else "\n\n".join(map(json.dumps, records)) + "\n"
    (tmp_path / "data.json").write_text(text)
    read, whole = [], False

    def take(name: str, reader: Callable[[int], bytes], weight: float, limit: int, kind: str) -> None:
        read.append(reader(1 << 20))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_C, "DataInput", take)
        _, whole = doctor_data.head_of(DataFile(str(tmp_path / "data.json")), wanted)
    got = read[0].decode()
    parsed = json.loads(got) if form == "array" else [json.loads(line) for line in got.split("\n") if line]
    assert parsed == records[:wanted] and whole == (wanted >= 5)


def test_long_files_are_read_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that end inside texts, and the limit of bytes."""
    record = {"conversations": [{"from": "human", "value": '"]' * 40}]}
    data = json.dumps([record] * 50).encode()
    asked: list[int] = []
    monkeypatch.setattr(doctor_data, "_BLOCK", 333)

    def read(size: int, at: list[int] = [0]) -> bytes:  # noqa: B006  where it stands
        asked.append(size)
        at[0] += size
        return data[at[0] - size : at[0]]

    cut, whole = doctor_data._read_head(read, 7, "x")
    assert json.loads(cut) == [record] * 7 and not whole and sum(asked) < len(data)
    monkeypatch.setattr(doctor_data, "_MOST_BYTES", 333)
    with pytest.raises(ValueError, match="hold no whole record"):
        doctor_data._read_head(lambda size: b"[" + b'"' + b"a" * (size - 2), 7, "x")
