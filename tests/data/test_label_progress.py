"""Progress of labelling: nothing for short jobs, lines without a terminal, a bar on one."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from fastsft.data import label_files as label_progress
from fastsft.data.label_files import LabelProgress
from fastsft.sources.data_files import DataFile, bytes_to_read


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(label_progress, "time", clock)
    return clock


def test_lines_where_there_is_no_terminal(clock: Clock) -> None:
    stream = io.StringIO()
    progress = LabelProgress(400_000_000, stream=stream)
    for second in range(1, 41):
        clock.now = 100.0 + second * 0.5
        progress(second * 10_000_000, second * 1000)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2  # after two seconds, then every ten
    assert lines[0] == "labelling: 4,000 records, 2,000 records/s, 20.0 MB/s, 10 %, 18 s left"


def test_short_jobs_and_other_ranks_say_nothing(clock: Clock) -> None:
    stream = io.StringIO()
    LabelProgress(100, stream=stream)(50, 1)
    hidden = LabelProgress(100, shown=False, stream=stream)
    clock.now += 60
    hidden(50, 1)
    assert stream.getvalue() == ""


def test_streams_have_no_end_to_tell(clock: Clock) -> None:
    stream = io.StringIO()
    progress = LabelProgress(None, stream=stream)
    clock.now += 5
    progress(10_000_000, 10)
    assert stream.getvalue() == "labelling: 10 records, 2 records/s, 2.0 MB/s\n"


def test_a_bar_on_a_terminal(clock: Clock) -> None:
    stream = Terminal()
    progress = LabelProgress(200_000_000, stream=stream)
    clock.now += 4
    progress(100_000_000, 5000)
    progress.close()
    assert "labelling:  50%" in stream.getvalue()
    assert "1,250 records/s" in stream.getvalue()


def test_files_that_are_converted_have_no_known_size(tmp_path: Path) -> None:
    """A Parquet file of 1 MB is 1.4 MB of JSON: the line would say 137 % and 0 s left."""
    for name in ("a.jsonl", "b.json", "c.parquet", "d.json.gz", "e.csv", "f.txt"):
        (tmp_path / name).write_bytes(b"12345")
    names = {name: bytes_to_read([DataFile(str(tmp_path / name))]) for name in ("a.jsonl", "b.json", "f.txt")}
    assert set(names.values()) == {5}
    for name in ("c.parquet", "d.json.gz", "e.csv"):
        assert bytes_to_read([DataFile(str(tmp_path / "a.jsonl")), DataFile(str(tmp_path / name))]) is None
