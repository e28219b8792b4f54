"""The output directory, the disk and the memory of the machine."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from doctor_patient import Patient
from fastsft import _C
from fastsft.doctor import disk, machine
from fastsft.planning.devices import size_text


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
    monkeypatch.setattr(machine, "available_host_memory", lambda: 1 << 20)
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


def test_the_merged_model_needs_room_too(
    patient: Patient, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = (model / "model.safetensors").stat().st_size
    monkeypatch.setattr(_C, "available_bytes", lambda path: 10 << 20)  # adapters: 9 MiB, most of it room
    flags = {"lora": "True", "lora_r": "1", "save_total_limit": "1"}
    needs = {}
    for merged in ("False", "True"):
        mark, text = patient(save_merged=merged, **flags)["disk space"]
        needs[merged] = mark, "merged" in text
    assert needs == {"False": ("ok", False), "True": ("failed", True)}, patient.text
    half = patient(save_merged="True", save_dtype="bfloat16", **flags)["disk space"]
    assert f"merged {size_text(weights / 2)[:3]}" in half[1], half
