"""The command as FastChat's users type it: the recipe on two ranks, stopping and going on, mistakes."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from e2e.command_line import PACKAGE, TRAINER, begin, kill_all, log_history, start, tensors, words
from fastsft import _C
from fastsft.saving import load_weights
from warm_ranks import WarmRanks

RECIPE = {
    "model_name_or_path": "model_untied", "data_path": "data/first50.json", "bf16": True,
    "num_train_epochs": 3, "per_device_train_batch_size": 2, "per_device_eval_batch_size": 2,
    "gradient_accumulation_steps": 16,
    "evaluation_strategy": "no", "save_strategy": "steps", "save_steps": 1200, "save_total_limit": 10,
    "learning_rate": 2e-5, "weight_decay": "0.", "warmup_ratio": 0.03, "lr_scheduler_type": "cosine",
    "logging_steps": 1, "fsdp": "full_shard auto_wrap",
    "fsdp_transformer_layer_cls_to_wrap": "LlamaDecoderLayer", "tf32": True,
    "model_max_length": 2048, "gradient_checkpointing": True, "lazy_preprocess": True,
}  # fmt: skip
SHORT = json.loads((TRAINER / "h_resume.json").read_text())["flags"]


def test_readme_recipe_on_two_ranks(tmp_path):
    out = tmp_path / "out"
    done = start(RECIPE, out, ranks=2, module="fastsft.train_mem")
    assert "tf32 True has no effect" in done.stderr
    # 50 conversations, 13 micro-batches a rank, one step an epoch.
    assert [entry["step"] for entry in log_history(out) if "loss" in entry] == [1, 2, 3]
    assert (out / "checkpoint-3" / "manifest.json").is_file()
    assert json.loads((out / "config.json").read_text())["use_cache"] is True
    assert json.loads((out / "checkpoint-3" / "config.json").read_text())["use_cache"] is False
    assert AutoTokenizer.from_pretrained(out, use_fast=False).model_max_length == 2048

    theirs = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    engine = _C.Engine((out / "config.json").read_text(), max_positions=64)
    load_weights(engine, str(out))
    ids = np.arange(100, 140)
    with torch.no_grad():
        wanted = theirs(torch.from_numpy(ids)[None]).logits[0]
    logits = engine.logits(ids, [len(ids)])
    assert torch.linalg.vector_norm(logits - wanted) <= 1e-5 * torch.linalg.vector_norm(wanted)


# On one rank test_recorded_resume does the same with a recorded run.
@pytest.mark.thorough
@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.chaos), 2])
def test_interrupted_run_ends_as_the_whole_one(warm: WarmRanks, short, tmp_path, ranks):
    flags = {**short, "save_steps": 2}
    if ranks == 2:
        flags |= {"per_device_train_batch_size": 2, "fsdp": "full_shard auto_wrap"}
    warm.train(flags, tmp_path / "whole", ranks)
    warm.train(flags, tmp_path / "cut", ranks)
    shutil.rmtree(tmp_path / "cut" / "checkpoint-6")  # what a run that died after step 4 leaves
    for path in (tmp_path / "cut").glob("*.*"):
        path.unlink()
    printed = warm.train(flags, tmp_path / "cut", ranks)
    assert re.search(
        r"resumed from \S*checkpoint-4: step 4 of 6, epoch 0.6667 after .* next learning rate", printed
    )
    whole, cut = tensors(tmp_path / "whole"), tensors(tmp_path / "cut")
    assert all(torch.equal(tensor, cut[name]) for name, tensor in whole.items())
    losses = [[e["loss"] for e in log_history(tmp_path / run) if "loss" in e] for run in ("whole", "cut")]
    assert losses[0] == losses[1]
    means = [log_history(tmp_path / run)[-1]["train_loss"] for run in ("whole", "cut")]
    assert means[0] == means[1] == pytest.approx(sum(losses[0]) / len(losses[0]))


@pytest.fixture(scope="module")
def longer(short):
    """12 steps."""
    return {**short, "num_train_epochs": 2, "save_steps": 4}


def wait_for(path):
    """Until a save behind the training has committed `path`."""
    end = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < end, f"{path} never came"
        time.sleep(0.002)


@pytest.fixture(scope="module")
def uninterrupted(warm: WarmRanks, longer, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole")
    warm.train(longer, out)
    return tensors(out)


# SIGKILL to processes that start quicker, at any instant and again in the resumed run: test_kills.py.
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("number", "status", "resumed"),
    [(signal.SIGTERM, 143, "([5-9]|1\\d)"),
     pytest.param(signal.SIGKILL, -9, "(4|8|12)", marks=pytest.mark.chaos)],
)  # fmt: skip
def test_killed_run_resumes_to_the_same_weights(
    warm: WarmRanks, longer, tmp_path, uninterrupted, number, status, resumed, monkeypatch
):
    """The command is killed; what goes on is started quicker, with the same single thread."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    process = begin(longer, tmp_path)
    for line in process.stdout:
        if "'loss'" in line and "step 5/12" in line:  # once: a save names the step, too
            wait_for(tmp_path / "checkpoint-4")
            process.send_signal(number)
    assert process.wait(timeout=120) == status
    assert not (tmp_path / "trainer_state.json").exists()
    assert re.search(f"step {resumed} of 12", warm.train(longer, tmp_path))
    ended = tensors(tmp_path)
    assert all(torch.equal(tensor, ended[name]) for name, tensor in uninterrupted.items())


@pytest.mark.chaos
def test_two_killed_ranks_resume_to_the_same_weights(longer, tmp_path):
    """Both ranks and their launcher get SIGKILL at once, as when a machine goes away."""
    flags = {**longer, "per_device_train_batch_size": 2, "fsdp": "full_shard auto_wrap"}
    start(flags, tmp_path / "whole", ranks=2)
    process = begin(flags, tmp_path / "cut", ranks=2)
    for line in process.stdout:
        if "'loss'" in line and "step 5/12" in line:  # once: a save names the step, too
            wait_for(tmp_path / "cut" / "checkpoint-4")
            kill_all(process.pid)
    process.wait(timeout=120)
    assert not (tmp_path / "cut" / "trainer_state.json").exists()
    done = start(flags, tmp_path / "cut", ranks=2)
    assert re.search("step (4|8|12) of 12", done.stdout)
    whole, cut = tensors(tmp_path / "whole"), tensors(tmp_path / "cut")
    assert all(torch.equal(tensor, cut[name]) for name, tensor in whole.items())


def changed(folder):
    """When every file was changed; of what the data page writes before, nothing."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "data_report.json"]
    return {path: path.stat().st_mtime_ns for path in files}


def test_finished_run_starts_nothing(warm: WarmRanks, short, tmp_path):
    """Neither an engine nor a file: it says so and is gone. Where a file of it is missing, it is resumed."""
    out = tmp_path / "out"
    warm.train(short, out)
    before, stamps = tensors(out), changed(out)
    printed = warm.train(short, out)
    assert f"{out}: this run is finished: step 6 of 6" in printed
    assert "{'loss'" not in printed and "steps" not in printed and changed(out) == stamps
    (out / "config.json").unlink()
    printed = warm.train(short, out)
    assert "step 6 of 6" in printed and "is finished" not in printed and "{'loss'" not in printed
    assert (out / "config.json").exists()
    assert all(torch.equal(tensor, before[name]) for name, tensor in tensors(out).items())
    printed = warm.train({**short, "num_train_epochs": 2}, out)  # more is asked for than was finished
    assert "resumed from" in printed and "is finished" not in printed


def test_the_finished_model_of_another_run_is_not_replaced(warm: WarmRanks, short, tmp_path):
    """Without checkpoints, which another run would refuse. The same run may train it again."""
    first = {**short, "save_strategy": "no", "max_steps": 2}
    warm.train(first, tmp_path)
    before = tensors(tmp_path)
    warm.train(first, tmp_path)
    (tmp_path / "config.json").write_text((tmp_path / "config.json").read_text() + "\n")  # edited by hand
    other = {**first, "seed": 7}
    run = warm.start(other, tmp_path)
    assert run.wait(60) == [1]
    assert f"error: {tmp_path}: the model of a run that ended there at step 2 would" in run.all_text()
    assert all(torch.equal(tensor, before[name]) for name, tensor in tensors(tmp_path).items())
    assert "step 2/2" in warm.train({**other, "overwrite_output_dir": True}, tmp_path)


def test_a_run_afresh_is_not_shadowed_by_the_old_one(warm: WarmRanks, short, longer, tmp_path):
    """The old run was longer: by number its checkpoints are newer than all of the new run."""
    warm.train(longer, tmp_path)
    afresh = {**short, "save_total_limit": 1, "learning_rate": 1e-3}
    printed = warm.train({**afresh, "no_resume": True, "per_device_train_batch_size": 2}, tmp_path, 2)
    assert printed.count("--no_resume: checkpoint-4, checkpoint-8, checkpoint-12 in ") == 1
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-6"]
    assert len(list(tmp_path.glob("previous-*-checkpoint-*/manifest.json"))) == 3
    assert "step 6 of 6" in warm.train(afresh, tmp_path)


MISTAKES = {
    "flag": ({"learnig_rate": 1}, "the nearest known flag is --learning_rate"),
    "model": ({"model_name_or_path": "./no_such_model"}, "no_such_model is not a directory"),
    "own source": ({"output_dir": "model_untied"}, "choose another --output_dir"),
    "data": ({"data_path": "no_such.json"}, "--data_path: no_such.json is not a file"),
    "evaluation data": ({"eval_data_path": "no_such.json"}, "--eval_data_path: no_such.json is not a file"),
    "GaLore": ({"optim": "galore_adamw"}, "use --optim adamw_torch"),
    "evaluation without data": ({"eval_on_start": True}, "give --eval_data_path"),
    "output file": ({"output_dir": "data/first50.json"}, "choose another --output_dir"),
    "nothing to resume": ({"resume_from_checkpoint": True}, "No valid checkpoint found in output directory"),
    "left padding": ({"padding_side": "left"}, "use --padding_side right"),
}


def flags_of(name, folder):
    return {"output_dir": folder / "out", **SHORT, **MISTAKES[name][0]}


@pytest.fixture(scope="module")
def mistakes(tmp_path_factory):
    """(status, stdout, stderr) of each, in one start of Python."""
    folder = tmp_path_factory.mktemp("mistakes")
    commands = [words(flags_of(name, folder)) for name in MISTAKES]
    (folder / "commands.json").write_text(json.dumps(commands))
    program = Path(__file__).with_name("mistakes_program.py")
    run = [sys.executable, str(program), str(folder / "commands.json"), str(folder / "results.json")]
    env = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    subprocess.run(run, cwd=TRAINER, env=env, check=True, timeout=300)
    return dict(zip(MISTAKES, json.loads((folder / "results.json").read_text()), strict=True))


def check_mistake(name, status, stderr):
    assert status == 1 and MISTAKES[name][1] in stderr, stderr
    assert "Traceback" not in stderr and ".cpp" not in stderr


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_end_in_a_sentence(name, mistakes):
    status, _, stderr = mistakes[name]
    check_mistake(name, status, stderr)


@pytest.mark.parametrize(
    "name", ["flag", *(pytest.param(n, marks=pytest.mark.chaos) for n in MISTAKES if n != "flag")]
)
def test_the_command_itself_ends_in_the_sentence(name, tmp_path):
    flags = flags_of(name, tmp_path)
    done = start(flags, flags.pop("output_dir"), check=False)
    check_mistake(name, done.returncode, done.stderr)


def test_diverging_run_stops_and_names_the_step(warm: WarmRanks, short, tmp_path):
    flags = {**short, "learning_rate": 1e30, "warmup_ratio": 0, "max_grad_norm": 0}
    run = warm.start(flags, tmp_path / "out")
    assert run.wait(60) == [4]
    assert re.search(r"error: step \d+: loss \S+, gradient norm \S+: not finite", run.text(name="err"))
    assert not list((tmp_path / "out").glob("model*.safetensors"))


def test_longer_examples_stretch_the_positions(warm: WarmRanks, short, tmp_path):
    flags = {**short, "model_max_length": 4096, "save_strategy": "no", "max_steps": 1}
    printed = warm.train(flags, tmp_path / "out")
    scaling = {"type": "linear", "factor": 2.0}
    assert json.loads((tmp_path / "out" / "config.json").read_text())["rope_scaling"] == scaling
    assert "warning: --model_max_length 4096 is above the model's 2048 positions" in printed
