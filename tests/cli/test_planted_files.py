"""FIFOs, devices and directories where a command looks for a file: a line names it; no wait, no abort."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from e2e.command_line import TRAINER
from fastsft.cli.demo import MARK
from forked_commands import run_commands
from planted import plant

KINDS = ("a FIFO", *(pytest.param(kind, marks=pytest.mark.chaos) for kind in ("a device", "a directory")))
OF_MODEL = (
    "config.json", "generation_config.json", "model.safetensors", "model.safetensors.index.json",
    "model-00002-of-00002.safetensors", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "chat_template.jinja", "vocab.json",
)  # fmt: skip
# Of an output directory. What has another file's name is put aside, and the run goes on, but for what a run
# would begin with.
PUT_ASIDE = ("trainer_state.json", "all_results.json", "data_report.json", ".fastsft-files.json",
             "fastsft_finished.json")  # fmt: skip
BEGUN_WITH = (
    ".fastsft-lock",
    "checkpoint-2",
    "checkpoint-2/manifest.json",
    "checkpoint-2/fastsft_state.json",
)


def training(model: Path, output: Path, **flags: object) -> list[str]:
    given = {
        "model_name_or_path": model, "data_path": TRAINER / "data" / "first50.json", "output_dir": output,
        "max_steps": 1, "per_device_train_batch_size": 2, "learning_rate": 1e-3, "model_max_length": 128,
        "data_cache": "none", "use_cpu": True, "plot_loss": False, "save_strategy": "no", "logging_steps": 1,
        **flags,
    }  # fmt: skip
    return [word for name, value in given.items() for word in (f"--{name}", str(value))]


def commands(model: Path, output: Path) -> dict[str, list[str]]:
    data = str(TRAINER / "data" / "first50.json")
    return {
        "train": ["train", *training(model, output)],
        "doctor": ["doctor", "--skip", "communication,disk rate", *training(model, output)],
        "inspect": ["inspect", "--model", str(model), "--data", data, "-n", "1"],
        "data report": ["data", "report", "--model", str(model), "--data", data],
        "plan": ["plan", "--model", str(model), "--model_max_length", "64"],
    }


def copy_of_model(folder: Path) -> Path:
    return Path(shutil.copytree(TRAINER / "model_untied", folder))


def check(status: int | None, said: str, name: str, *, fails: bool) -> str:
    """ "" where a command ended as it should."""
    problems = []
    if status is None:
        problems.append("it hung")
    elif status not in (0, 1, 2):
        problems.append(f"status {status}")
    if "Traceback" in said or "std::" in said:
        problems.append("no line for people")
    if fails and (status == 0 or Path(name).name not in said):
        problems.append(f"status {status} and no word of {name}")
    return "; ".join(problems) + (f":\n{said[-1500:]}" if problems else "")


@pytest.mark.parametrize("kind", KINDS)
def test_in_a_model_directory(kind: str, tmp_path: Path) -> None:
    """Files of the tokenizer and the weights are not looked at by every command."""
    orders, places = [], []
    for number, name in enumerate(OF_MODEL):
        model = copy_of_model(tmp_path / f"model-{number}")
        plant(model / name, kind)
        for command, words in commands(model, tmp_path / f"out-{number}").items():
            orders.append((words, tmp_path))
            places.append((command, name))
    found = {}
    for (command, name), (status, said) in zip(places, run_commands(orders), strict=True):
        needed = command in ("train", "doctor") and not (
            name == "generation_config.json" and kind != "a device"
        )
        problem = check(status, said, name, fails=needed)
        if problem:
            found[command, name] = problem
    assert not found, "\n\n".join(f"{place}: {problem}" for place, problem in found.items())


@pytest.mark.parametrize("kind", KINDS)
def test_in_an_output_directory(kind: str, tmp_path: Path) -> None:
    orders, places = [], []
    for number, name in enumerate((*PUT_ASIDE, *BEGUN_WITH)):
        for command in ("train", "doctor"):
            output = tmp_path / f"out-{number}-{command}"
            plant(output / name, kind)
            orders.append((commands(TRAINER / "model_untied", output)[command], tmp_path))
            places.append((command, name))
    found = {}
    for (command, name), (status, said) in zip(places, run_commands(orders), strict=True):
        refused = command == "train" and (
            name == ".fastsft-lock" or (name == "checkpoint-2" and kind == "a device")
        )
        problem = check(status, said, name, fails=refused)
        if command == "train" and name in PUT_ASIDE and status != 0:
            problem = problem or f"status {status}: {said[-1500:]}"
        if problem:
            found[command, name] = problem
    assert not found, "\n\n".join(f"{place}: {problem}" for place, problem in found.items())


@pytest.mark.parametrize("kind", KINDS)
def test_files_that_flags_name(kind: str, tmp_path: Path) -> None:
    names = {
        "config": "flags.yaml", "fsdp_config": "fsdp.json", "deepspeed": "zero.json",
        "data_path": "data.json", "eval_data_path": "eval.json", "resume_from_checkpoint": "checkpoint-9",
    }  # fmt: skip
    model, orders, places = TRAINER / "model_untied", [], []
    for flag, name in names.items():
        plant(tmp_path / name, kind)
        if kind == "a FIFO" and flag in ("data_path", "eval_data_path"):
            continue  # may be pipes: tests/data/test_streaming.py
        words = training(model, tmp_path / f"out-{flag}", **{flag: tmp_path / name})
        for command in (["train"], ["doctor", "--skip", "communication,disk rate"]):
            orders.append(([*command, *words], tmp_path))
            places.append((command[0], flag, name))
    found = {}
    for (command, flag, name), (status, said) in zip(places, run_commands(orders), strict=True):
        is_read_by_the_run = command == "doctor" and kind == "a device" and flag.endswith("data_path")
        problem = check(status, said, name, fails=not is_read_by_the_run)
        if problem:
            found[command, flag] = problem
    assert not found, "\n\n".join(f"{place}: {problem}" for place, problem in found.items())


@pytest.mark.parametrize("kind", KINDS)
def test_files_that_are_written(kind: str, tmp_path: Path) -> None:
    """They stay as they are."""
    model, orders = TRAINER / "model_untied", {}
    for flag in ("profile", "report_bad"):
        plant(tmp_path / flag, kind)
        orders[flag] = ["train", *training(model, tmp_path / f"out-{flag}", **{flag: tmp_path / flag})]
    plant(tmp_path / "html", kind)
    orders["html"] = [*commands(model, tmp_path / "out")["inspect"], "--html", str(tmp_path / "html")]
    before = {name: (tmp_path / name).lstat().st_ino for name in orders}
    for name, (status, said) in zip(
        orders, run_commands([(words, tmp_path) for words in orders.values()]), strict=True
    ):
        assert check(status, said, name, fails=True) == ""
        assert f"--{name}: " in said and f"got {kind}" in said, said
    assert before == {name: (tmp_path / name).lstat().st_ino for name in orders}


def test_in_the_folder_of_a_demo(tmp_path: Path) -> None:
    """Nothing is written through links, also where the folder has the mark of an earlier demo."""
    keep = tmp_path / "keep"
    keep.mkdir()
    (keep / "thesis").write_text("mine")
    demo = tmp_path / "demo"
    demo.mkdir()
    (demo / "conversations.json").symlink_to(keep / "thesis")
    (demo / "untrained").symlink_to(keep)
    os.mkfifo(demo / "trained")
    (demo / MARK).write_text("x")
    ((status, said),) = run_commands([(["demo", "--output_dir", str(demo), "--steps", "1"], tmp_path)])
    assert status == 0, said
    assert [path.name for path in keep.iterdir()] == ["thesis"] and (keep / "thesis").read_text() == "mine"
