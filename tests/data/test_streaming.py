"""Streams: memory does not grow with the data, and a pipe without a writer is waited for, not for ever."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import fastsft
from fastsft.sources import readers as waiting_pipe
from fastsft.sources.readers import open_data
from golden_text import GOLDEN, human_gpt, read_records

FOLDER = GOLDEN / "tokenizers" / "llama2_legacy"
SOURCE = Path(fastsft.__file__).parents[1]
MEGABYTE = 10**6
LONG = int(os.environ.get("FASTSFT_STREAM_MEGABYTES", "20000"))  # of the chaos tests

# Prints the bytes of the rows' arrays (rows alone), how many records there were, and how much the most
# resident memory was above what it was before.
PROGRAM = """
import json, sys
from pathlib import Path
from types import SimpleNamespace
from fastsft import _C
from fastsft import data
from fastsft.inspection import inspect as inspection
from fastsft.data.chat import labelling
from fastsft.tokenizer import Tokenizer

def resident(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name + ":")) * 1024

way, folder, cache = sys.argv[1:]
tokenizer = Tokenizer.from_pretrained(folder, model_max_length=4096 if way == "rows" else 96)
settings = labelling.LabelSettings(mask_policy="spans", template="vicuna_v1.1")
before = resident("VmRSS")
if way != "report":
    options = SimpleNamespace(
        data_path="-", eval_data_path=None, lazy_preprocess=False, max_dropped=1.0,
        data_cache=cache if way == "cache" else "none",
        mask_policy="spans", template="vicuna_v1.1",
    )
    dataset = data.make_supervised_data_module(tokenizer, options)["train_dataset"]
    count = json.loads(dataset.report.to_json())["records"]
    if way == "rows":
        rows = dataset.native
        spans = sum(len(rows.learned(i)) for i in range(0, len(rows), 50)) * 50
        print(4 * int(rows.lengths().sum()) + 8 * spans + 16 * len(rows))
else:
    survey = inspection.prepare(folder, settings, 96).survey("-", _C.SurveyChoice(count=0))
    count = survey.summary["records"]
print(count, resident("VmHWM") - before)
"""


def block_of_records(shape: str) -> tuple[bytes, int]:
    """JSON lines of some megabytes and their number."""
    if shape == "long":  # a record of a megabyte, then small ones
        records = [{"id": "long", "conversations": human_gpt("Hi", "word " * 200_000)}]
        records += [{"id": "short", "conversations": human_gpt("Hi", "Ho")}] * 100
    elif shape == "bad":  # each loses its last message, and is listed
        records = [{"id": "bad", "conversations": human_gpt("Hi", "Ho " * 900, "and")}] * 1000
    else:
        records = read_records("sharegpt_multi_turn")
    return b"".join(json.dumps(record).encode() + b"\n" for record in records), len(records)


def stream(way: str, shape: str, megabytes: int, cache: Path) -> tuple[int, ...]:
    """Labels that many megabytes in a process; records written, and what the program prints."""
    block, num_records = block_of_records(shape)
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-c", PROGRAM, way, str(FOLDER), str(cache)]
    blocks = -(-megabytes * MEGABYTE // len(block))
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, bufsize=0
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        limit = threading.Timer(100 + megabytes / 10, process.kill)
        limit.start()
        try:
            for _ in range(blocks):
                _write_all(process.stdin.fileno(), block)
            process.stdin.close()
            output = process.stdout.read()
            assert process.wait() == 0
        finally:
            limit.cancel()
            process.kill()
    return blocks * num_records, *map(int, output.split()[-3 if way == "rows" else -2 :])


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


@pytest.mark.variants("cache")
@pytest.mark.parametrize("way", ["cache", "report"])
def test_a_hundred_megabytes(way: str, tmp_path: Path) -> None:
    written, counted, memory = stream(way, "usual", 100, tmp_path)
    assert counted == written
    assert memory < 80 * MEGABYTE


@pytest.mark.variants("90")
@pytest.mark.parametrize("megabytes", [60, 90, 130])
def test_rows_in_memory_take_their_arrays_alone(megabytes: int, tmp_path: Path) -> None:
    """Without a cache. The arrays grow in place: nothing holds them twice meanwhile."""
    written, arrays, counted, memory = stream("rows", "usual", megabytes, tmp_path)
    assert counted == written
    assert memory < 1.05 * arrays + 40 * MEGABYTE


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("way", "shape"), [("cache", "usual"), ("report", "usual"), ("cache", "long"), ("cache", "bad")]
)
def test_memory_is_bounded(way: str, shape: str, tmp_path: Path) -> None:
    written, counted, memory = stream(way, shape, LONG, tmp_path)
    print(f"{way}, {shape}: {LONG} MB, {written} records, {memory / MEGABYTE:.0f} MB of memory")
    assert counted == written
    assert memory < 600 * MEGABYTE


def test_nobody_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr(waiting_pipe, "SECONDS_UNTIL_TOLD", 0.05)
    monkeypatch.setattr(waiting_pipe, "SECONDS_TO_WAIT", 0.1)
    with pytest.raises(
        ValueError, match=r"pipe: expected data, got a pipe to which nobody has written for 0\.1 s"
    ):
        open_data(str(tmp_path / "pipe"))
    assert "pipe is a pipe: waiting for somebody to write to it" in capsys.readouterr().out


def test_a_writer_that_comes_late_and_writes_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr(waiting_pipe, "SECONDS_UNTIL_TOLD", 0.05)

    def write() -> None:
        time.sleep(0.3)
        with (tmp_path / "pipe").open("wb", buffering=0) as file:
            time.sleep(0.3)
            file.write(b"one")
            time.sleep(0.3)
            file.write(b"two")

    writer = threading.Thread(target=write)
    writer.start()
    with open_data(str(tmp_path / "pipe")) as file:
        assert file.read() == b"onetwo"
    writer.join()


def test_a_writer_that_writes_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").open("wb").close())
    writer.start()
    with open_data(str(tmp_path / "pipe")) as file:
        assert file.read() == b""
    writer.join()


def test_a_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("s")
        with pytest.raises(ValueError, match="s: the data file cannot be read"):
            open_data("s")
