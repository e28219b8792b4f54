"""`fastsft doctor`: what is sound is ok, each thing that is broken is named, and nothing stays on disk."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import distributed_c10d

from fastsft import _C
from fastsft.cli import main as cli
from fastsft.cli.random_model import small_config, write_random_model
from fastsft.dataset.sources import DataFile
from fastsft.doctor import communication, data_head, disk, exchange, memory
from fastsft.doctor.result import ProblemError
from fastsft.launcher import Groups, Launch
from golden_text import conversation_file
from inspected_models import LLAMA

DATA = conversation_file("dummy_conversation")
MARKS = ("ok", "warning", "failed", "not checked")


@pytest.fixture(scope="module")
def sound_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound") / "model"
    sizes = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "intermediate_size": 24}
    write_random_model(folder, small_config(vocab_size=32000, **sizes))
    for file in LLAMA.iterdir():
        if file.name != "config.json":
            shutil.copy(file, folder)
    return folder


@pytest.fixture
def model(sound_model: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(sound_model, tmp_path / "model"))


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "2000")
    for name in ("RANK", "WORLD_SIZE", "FASTSFT_NUM_PROCESSES"):
        monkeypatch.delenv(name, raising=False)


class Patient:
    """Runs the doctor on one command line; each call returns the checks as name -> (mark, text)."""

    def __init__(self, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.output, self._capsys, self.status = tmp_path / "out", capsys, 0
        self.words = {
            "--model_name_or_path": str(model), "--data_path": str(DATA), "--output_dir": str(self.output),
            "--model_max_length": "256", "--save_total_limit": "1", "--use_cpu": "True",
        }  # fmt: skip

    def __call__(self, *more: str, skip: str = "disk_rate", **words: str) -> dict[str, tuple[str, str]]:
        flags = {**self.words, **{f"--{name}": value for name, value in words.items()}}
        line = [part for pair in flags.items() for part in pair]
        self.status = cli.main(["doctor", "--skip", skip, *line, *more])
        self.text = self._capsys.readouterr().out
        return checks_of(self.text)


def checks_of(text: str) -> dict[str, tuple[str, str]]:
    found: dict[str, tuple[str, str]] = {}
    name = ""
    for line in text.splitlines()[:-1]:
        if line[:13].strip():
            name = line[13:28].strip()
            found[name] = line[:13].strip(), line[28:]
        else:
            found[name] = found[name][0], f"{found[name][1]}\n{line[28:]}"
    assert all(mark in MARKS for mark, _ in found.values()), text
    return found


@pytest.fixture
def patient(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Patient:
    return Patient(model, tmp_path, capsys)


def tree(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in folder.rglob("*")}


def test_a_sound_run(patient: Patient, tmp_path: Path) -> None:
    before = tree(tmp_path)
    found = patient(skip="", eval_data_path=str(DATA))
    assert patient.status == 0, patient.text
    assert {mark for mark, _ in found.values()} == {"ok"}, patient.text
    assert patient.text.splitlines()[-1] == "13 ok, 0 warnings, 0 failed"
    parameters = sum(int(size) for size in [2 * 32000 * 16, 4 * 16 * 16, 3 * 16 * 24, 3 * 16])
    for name, part in (
        ("configuration", "7 flags set"),
        ("model", f"{parameters:,} parameters"),
        ("weights", "F32"),
        ("template", "vicuna_v1.1 (fastchat): replies are learned up to </s>"),
        ("data", "the first 200 records, 0.0% of them cut off: 200 conversations"),
        ("eval data", "the first 200 records, 0.0% of them cut off: 200 conversations"),
        ("disk rate", "64.0 MiB written and synced"),
        ("communication", "one rank: none is needed"),
    ):
        assert part in found[name][1]
    assert tree(tmp_path) == before, "the doctor left something"


def test_the_installation(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor"]) == 0
    found = checks_of(capsys.readouterr().out)
    assert _C.torch_version in found["torch"][1]
    assert list(found) == ["python", "torch", "GPUs", "threads", "extras"]
    assert "there: parquet" in found["extras"][1]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--output_dri", "x"], "output_dir"),
        (["--max_steps", "many"], "--max_steps"),
        (["--config", "nowhere.yaml"], "nowhere.yaml"),
    ],
)
def test_bad_words(words: list[str], part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", *words]) == 2
    printed = capsys.readouterr()
    assert part in printed.err and not printed.out


@pytest.mark.parametrize("words", [["--skip", "wheather"], ["--records", "0"]])
def test_bad_words_of_its_own(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["doctor", *words])
    assert end.value.code == 2 and words[0] in capsys.readouterr().err


def test_every_refusal_is_listed_and_what_is_ignored_is_named(patient: Patient) -> None:
    found = patient(fp16="True", optim="sgd", logging_steps="0", hub_always_push="True")
    mark, text = found["configuration"]
    assert (mark, patient.status) == ("failed", 1)
    for part in ("--fp16", "--optim", "--logging_steps", "--hub_always_push True"):
        assert part.split()[0] in text, text
    assert found["data"][0] == "ok", "the other checks go on"
    mark, text = patient(hub_always_push="True")["configuration"]
    assert (mark, patient.status) == ("warning", 0) and "--hub_always_push has no effect" in text


def test_flags_of_a_file(patient: Patient, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("save_only_model: true\neval_strategy: steps\neval_steps: 5\n")
    mark, text = patient("--config", str(tmp_path / "run.yaml"))["configuration"]
    assert mark == "warning" and "nothing is evaluated" in text


def _remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def _tear(folder: Path) -> None:
    os.truncate(folder / "model.safetensors", (folder / "model.safetensors").stat().st_size - 1)


def _other_family(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "mamba"}))


def _other_sizes(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 32}))


def _missing_shard(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    index = {
        "metadata": {"total_size": 1},
        "weight_map": {"lm_head.weight": "model-00001-of-00002.safetensors"},
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _bad_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.model").write_bytes(b"not a tokenizer")


@pytest.mark.parametrize(
    ("damage", "check", "part", "unchecked"),
    [
        (_remove("config.json"), "model", "config.json", ["weights", "tokenizer", "data", "memory"]),
        (_other_family, "model", "mamba", ["weights"]),
        (_remove("model.safetensors"), "weights", "expected model.safetensors", ["disk space"]),
        (_missing_shard, "weights", "model-00001-of-00002.safetensors", ["disk space"]),
        (_tear, "weights", "model.safetensors", ["disk space"]),
        (_other_sizes, "weights", "expected shape", []),
        (_bad_tokenizer, "tokenizer", "tokenizer.model", ["template", "data"]),
    ],
)
def test_a_damaged_model(
    damage: Callable[[Path], None], check: str, part: str, unchecked: list[str],
    model: Path, patient: Patient,
) -> None:  # fmt: skip
    damage(model)
    found = patient()
    assert patient.status == 1
    assert found[check][0] == "failed" and part in found[check][1] and "-> " in found[check][1], patient.text
    assert all(found[name][0] == "not checked" for name in unchecked), patient.text
    assert found["output"][0] == "ok"


def test_a_template_that_the_tokenizer_cannot_do(patient: Patient) -> None:
    mark, text = patient(mask_policy="spans", template="chatml")["template"]
    assert mark == "failed" and "<|im_end|>" in text


def test_a_model_of_the_hub_is_not_fetched(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    mark, text = patient(model_name_or_path="nobody/nothing")["model"]
    assert mark == "not checked" and "fetches nothing" in text


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

    def take(name: str, reader: Callable[[int], bytes], weight: float) -> None:
        read.append(reader(1 << 20))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_C, "DataInput", take)
        _, whole = data_head.head_of(DataFile(str(tmp_path / "data.json")), wanted)
    got = read[0].decode()
    parsed = json.loads(got) if form == "array" else [json.loads(line) for line in got.split("\n") if line]
    assert parsed == records[:wanted] and whole == (wanted >= 5)


def test_long_files_are_read_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that end inside texts, and the limit of bytes."""
    record = {"conversations": [{"from": "human", "value": '"]' * 40}]}
    data = json.dumps([record] * 50).encode()
    asked: list[int] = []
    monkeypatch.setattr(data_head, "_BLOCK", 333)

    def read(size: int, at: list[int] = [0]) -> bytes:  # noqa: B006  where it stands
        asked.append(size)
        at[0] += size
        return data[at[0] - size : at[0]]

    cut, whole = data_head._read_head(read, 7, "x")
    assert json.loads(cut) == [record] * 7 and not whole and sum(asked) < len(data)
    monkeypatch.setattr(data_head, "_MOST_BYTES", 333)
    with pytest.raises(ValueError, match="hold no whole record"):
        data_head._read_head(lambda size: b"[" + b'"' + b"a" * (size - 2), 7, "x")


def test_an_output_directory_that_is_a_file(patient: Patient) -> None:
    patient.output.write_text("")
    found = patient(skip="")
    mark, text = found["output"]
    assert mark == "failed" and "is a file" in text and "-> choose another --output_dir" in text
    assert {found[name][0] for name in ("checkpoints", "disk space", "disk rate")} == {"not checked"}


def test_the_output_directory_of_another_run(patient: Patient) -> None:
    patient.output.mkdir()
    lock = _C.RunLock(str(patient.output))
    try:
        mark, text = patient()["output"]
        assert mark == "failed" and f"process {os.getpid()}" in text and os.uname().nodename in text
    finally:
        lock.release()
    (patient.output / ".fastsft-lock").write_text("left by a killed run\n")
    assert patient()["output"][0] == "ok"


def test_checkpoints_that_are_there(patient: Patient) -> None:
    whole = _C.AtomicDirectory(str(_made(patient.output)), "checkpoint")
    digest = _C.write_file(f"{whole.path}/fastsft_state.json", '{"only_model": false, "format_version": 2}')
    whole.commit("checkpoint-3", _C.Manifest(3, 1, "", [digest]))
    mark, text = patient()["checkpoints"]
    assert mark == "ok" and "resumes from checkpoint-3" in text and "checksums" in text
    assert "put aside" in patient(no_resume="True")["checkpoints"][1]
    (patient.output / "checkpoint-9").mkdir()
    mark, text = patient()["checkpoints"]
    assert mark == "warning" and "resumes from checkpoint-3" in text and "checkpoint-9: " in text
    shutil.rmtree(patient.output / "checkpoint-3")
    mark, text = patient()["checkpoints"]
    assert mark == "failed" and "--no_resume True" in text


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_a_full_disk(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_C, "available_bytes", lambda path: 1 << 20)
    found = patient(skip="")
    assert found["disk space"][0] == "failed" and "1.0 MiB free" in found["disk space"][1]
    assert found["disk rate"][0] == "not checked"


def test_checkpoints_without_a_limit_are_warned_of(patient: Patient) -> None:
    del patient.words["--save_total_limit"]
    mark, text = patient()["disk space"]
    assert mark == "warning" and "--save_total_limit bounds them" in text


def test_a_plan_that_is_too_large(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_host_memory", lambda: 1 << 20)
    mark, text = patient()["memory"]
    assert mark == "failed" and "this run does not fit" in text


def test_the_plan_is_of_all_ranks(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTSFT_NUM_PROCESSES", "4")
    text = patient("--fsdp", "full_shard", skip="communication,disk rate")["memory"][1]
    assert "4 ranks, full_shard" in text and "RANK" not in os.environ


def test_a_check_that_throws_is_a_failed_one(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    def throw(*_: object) -> None:
        raise KeyError("surprise")

    monkeypatch.setattr(disk, "lock_holder", throw)
    found = patient()
    assert found["output"] == ("failed", "KeyError: 'surprise'\n-> choose another --output_dir")
    assert found["memory"][0] == "ok" and patient.status == 1


def test_two_ranks_talk_to_each_other() -> None:
    found = communication.started_ranks(2, "cpu", 60)
    assert found["bytes"] == 1 << 24 and found["seconds"] > 0


LATE = """
import time
time.sleep(100)
"""
FAILING = """
import os, time
if os.environ["RANK"] == "1":
    raise ValueError("no network today")
time.sleep(100)
"""


@pytest.mark.parametrize(
    ("program", "seconds", "said"),
    [
        (LATE, 0.5, "of 2 ranks, 0, 1 did not start within 0.5 s"),
        (FAILING, 60, "rank 1 of 2 left with status 1; .* no network today"),
    ],
)
def test_ranks_that_do_not_come(
    program: str, seconds: float, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "exchange.py").write_text(program)
    monkeypatch.setattr(communication, "__file__", str(tmp_path / "communication.py"))
    started: list[communication.Ranks] = []

    class Kept(communication.Ranks):
        def __init__(self, *words: object, **more: object) -> None:
            super().__init__(*words, **more)  # type: ignore[arg-type]
            started.append(self)

    monkeypatch.setattr(communication, "Ranks", Kept)
    with pytest.raises(ProblemError, match=said):
        communication.started_ranks(2, "cpu", seconds)
    assert all(rank.process.poll() is not None for rank in started[0].ranks), "a rank is left"


class Waiting:
    """A rank that still runs."""

    def __init__(self, number: int, *lines: str) -> None:
        self.number, self.lines = number, lines


@pytest.mark.parametrize(
    ("lines", "said"),
    [((), "of 2 ranks, 1 did not start"), (("came",), "of 2 ranks, 0, 1 did not finish the exchange")],
)
def test_who_is_missing(lines: tuple[str, ...], said: str) -> None:
    ranks: list[Any] = [Waiting(0, "came"), Waiting(1, *lines)]
    with pytest.raises(ProblemError, match=said):
        communication._complain([], ranks, 2, 30)


def test_a_wrong_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ranks whose values do not arrive."""
    monkeypatch.setattr(exchange, "join", lambda seconds, device: Groups("gather", "reduce"))
    monkeypatch.setattr(exchange, "launch", lambda: Launch(0, 0, 2, 2))
    monkeypatch.setattr(distributed_c10d, "_resolve_process_group", lambda name: name)
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda values, group: None)
    with pytest.raises(RuntimeError, match=r"rank 0: .* gave 1.0 to 1.0, expected 3.0"):
        exchange.exchange("cpu", 1)


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_of_a_launcher(rank: int, patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    """All take part, the first one looks at the rest and prints."""
    asked = []

    def exchanged(device: str, seconds: float) -> dict[str, float]:
        asked.append(device)
        return {"bytes": 2.0**20, "seconds": 1.0}

    monkeypatch.setattr(communication, "exchange", exchanged)
    for name, value in (("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", 2), ("LOCAL_WORLD_SIZE", 2)):
        monkeypatch.setenv(name, str(value))
    found = patient()
    assert asked == ["cpu"] and patient.status == 0
    if rank == 0:
        assert (
            found["communication"][1] == "2 ranks met over gloo; an all_reduce of 1.0 MiB is right, 1.0 MiB/s"
        )
        assert "2 ranks, no_shard" in found["memory"][1]
    else:
        assert not patient.text


@pytest.mark.chaos
def test_under_torchrun(patient: Patient, tmp_path: Path) -> None:
    line = [part for pair in patient.words.items() for part in pair]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command = [sys.executable, *launcher, "-m", "fastsft.cli.main", "doctor", "--skip", "disk_rate", *line]
    before = tree(tmp_path)
    result = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert result.returncode == 0, result.stdout + result.stderr
    found = checks_of(result.stdout)
    assert found["communication"][1].startswith("2 ranks met over gloo"), result.stdout
    assert result.stdout.count("configuration") == 1 and tree(tmp_path) == before


def test_lines_fit_their_page(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    patient(hub_always_push="True")
    folder = str(patient.output.parent)
    assert all(len(line) <= 80 or folder in line or str(DATA) in line for line in patient.text.splitlines())
