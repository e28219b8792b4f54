"""Checkpoints of a real Trainer: complete or absent, resumed bit for bit, never from the wrong run."""

import json
import logging
import os
import random
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from fastsft import _C, checkpoint_content, random_state, run_identity, saving
from fastsft.memory_plan import plan_of_run
from fastsft.resume import roll_back
from saving_run import Tokens, make_trainer
from tiny_models import weights_of, write_model

STATE_KEYS = {
    "best_global_step", "best_metric", "best_model_checkpoint", "epoch", "eval_steps", "global_step",
    "is_hyper_param_search", "is_local_process_zero", "is_world_process_zero", "log_history", "logging_steps",
    "max_steps", "num_input_tokens_seen", "num_train_epochs", "save_steps", "stateful_callbacks",
    "total_flos", "train_batch_size", "trial_name", "trial_params",
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"), "untied")


@pytest.fixture(scope="module")
def finished(model, tmp_path_factory):
    """A run of six steps with checkpoints 2, 4 and 6."""
    output = tmp_path_factory.mktemp("finished")
    trainer = make_trainer(model, output)
    trainer.train()
    saving.trainer_save_model_safe(trainer)
    return output


def copy(finished, tmp_path, *steps):
    for step in steps:
        target = tmp_path / f"checkpoint-{step}"
        target.mkdir(parents=True)
        for path in (finished / f"checkpoint-{step}").iterdir():
            (target / path.name).write_bytes(path.read_bytes())
    return tmp_path


def same(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def test_what_a_checkpoint_holds(finished):
    assert _C.list_checkpoints(str(finished)) == ["checkpoint-2", "checkpoint-4", "checkpoint-6"]
    folder = finished / "checkpoint-4"
    assert {path.name for path in folder.iterdir()} == {
        "config.json", "generation_config.json", "model.safetensors", "tokenizer_config.json",
        "training_args.json", "trainer_state.json", "fastsft_state.json", "manifest.json",
        "optimizer-rank-00000-of-00001.safetensors", "random-state-rank-00000.json",
    }  # fmt: skip
    assert _C.verify_directory(str(folder)) == []
    assert not list(finished.glob(".fastsft*"))
    state = json.loads((folder / "trainer_state.json").read_text())
    assert state.keys() == STATE_KEYS and state["global_step"] == 4
    own = json.loads((folder / "fastsft_state.json").read_text())
    assert own["step"] == own["optimizer_step"] == 4
    assert own["position"] == {"epoch": 2, "conversations": 0} and own["batch"]["global"] == 4
    manifest = _C.read_manifest(str(folder))
    assert manifest.step == 4 and len(manifest.files) == 9


def test_transformers_reads_trainer_state(finished):
    from transformers import TrainerState

    state = TrainerState.load_from_json(str(finished / "checkpoint-4" / "trainer_state.json"))
    assert state.global_step == 4 and len(state.log_history) == 4


@pytest.mark.parametrize("step", [2, 4])
def test_a_resumed_run_ends_bit_for_bit_the_same(finished, model, tmp_path, step):
    copy(finished, tmp_path, step)
    trainer = make_trainer(model, tmp_path)
    trainer.train(resume_from_checkpoint=True)
    saving.trainer_save_model_safe(trainer)
    assert same(weights_of(tmp_path), weights_of(finished))
    expected = json.loads((finished / "checkpoint-6" / "trainer_state.json").read_text())["log_history"]
    assert [entry for entry in trainer.state.log_history if "loss" in entry] == expected


def test_a_resumed_run_keeps_its_planned_micro_batches(finished, model, tmp_path, monkeypatch):
    """Another amount of memory plans others, which would round differently; what does not fit is refused."""
    wide = make_trainer(model, tmp_path / "wide")
    least = plan_of_run(
        wide.args, wide.memory_plan.setting, wide.train_rows, wide.model.conversation_cost(), wide.memory,
        ("block", wide.token_budget),
    ).total  # fmt: skip
    with monkeypatch.context() as patch:
        patch.setattr("fastsft.trainer_plan.rank_memory", lambda device: least - 1)
        tight = make_trainer(model, tmp_path / "tight")
        assert tight.token_budget < wide.token_budget
        tight.train()
        refused = make_trainer(model, copy(finished, tmp_path / "refused", 2))
        expected = rf"micro-batches of {wide.token_budget} tokens.*this run does not fit.*rounds differently"
        with pytest.raises(ValueError, match=expected):
            refused.train(resume_from_checkpoint=True)
    rest = make_trainer(model, copy(tmp_path / "tight", tmp_path / "rest", 2))
    assert rest.token_budget == wide.token_budget
    rest.train(resume_from_checkpoint=True)
    assert rest.token_budget == rest.memory_plan.token_budget == tight.token_budget
    assert same(rest.engine.named_parameters(), tight.engine.named_parameters())


def test_random_states_return(finished, model, tmp_path):
    trainer = make_trainer(model, tmp_path)
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(5)
    expected_path = tmp_path / "checkpoint-0"
    saving.save_checkpoint(trainer, expected_path)
    expected = [random.random(), np.random.rand(), torch.rand(1).item(), random.gauss(0, 1)]
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(6)
    saving.load_checkpoint(trainer, expected_path)
    assert [random.random(), np.random.rand(), torch.rand(1).item(), random.gauss(0, 1)] == expected


def test_random_states_make_no_context_on_a_gpu(tmp_path, monkeypatch):
    """A machine with a GPU that this process has not touched."""

    def touched(*_):
        raise AssertionError("a CUDA context was made")

    queued = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "_lazy_init", touched)
    monkeypatch.setattr(torch.cuda, "current_device", touched)
    monkeypatch.setattr(torch.cuda, "get_rng_state", touched)
    monkeypatch.setattr(torch.cuda, "_queued_calls", queued)
    states = random_state.read_random_states()
    assert states.keys() == {"python", "numpy", "torch"}
    # A state of a process that did use its GPU waits until this one does.
    path = tmp_path / random_state.random_state_name(0)
    path.write_text(json.dumps({**states, "cuda": states["torch"]}))
    assert random_state.restore_random_state(tmp_path, 0) and len(queued) == 1


def test_no_pickle_in_a_checkpoint(finished):
    for path in (finished / "checkpoint-6").iterdir():
        assert path.suffix in {".json", ".safetensors"}
        if path.suffix == ".json":
            json.loads(path.read_text())


OPTIMIZER = "optimizer-rank-00000-of-00001.safetensors"
FILES = ["model.safetensors", OPTIMIZER, "fastsft_state.json", "manifest.json"]


@pytest.mark.parametrize("name", FILES)
def test_the_newest_that_verifies_is_taken(finished, tmp_path, name, caplog, capsys):
    output = copy(finished, tmp_path, 2, 4, 6)
    with caplog.at_level(logging.INFO):
        assert saving.newest_checkpoint(output) == str(output / "checkpoint-6")
        assert "checkpoint-6 verified in 0.0 s" in capsys.readouterr().out
        for step in (6, 4):
            path = output / f"checkpoint-{step}" / name
            path.write_bytes(path.read_bytes()[:-1])
        assert saving.newest_checkpoint(output) == str(output / "checkpoint-2")
    assert f"checkpoint-6 cannot be used: {name}" in caplog.text or "manifest.json" in caplog.text


def test_a_checkpoint_that_was_overwritten_is_read_again(finished, tmp_path, monkeypatch, capsys):
    output = copy(finished, tmp_path, 4, 6)
    monkeypatch.setattr("fastsft.checkpoint._UNSAFE_SECONDS", 0.0)
    for _ in range(2):
        assert saving.newest_checkpoint(output) == str(output / "checkpoint-6")
    assert capsys.readouterr().out.count("verified in") == 1  # its bytes were read once
    time.sleep(0.02)  # the kernel's clock of files ticks
    path = output / "checkpoint-6" / OPTIMIZER
    path.write_bytes(bytes([path.read_bytes()[0]]) * path.stat().st_size)
    assert saving.newest_checkpoint(output) == str(output / "checkpoint-4")


class TokensInFolders(Tokens):
    """As tokenizers of transformers with several templates."""

    def save_pretrained(self, directory):
        super().save_pretrained(directory)
        Path(directory, "additional_chat_templates").mkdir()
        Path(directory, "additional_chat_templates", "rag.jinja").write_text("{{ messages }}")


@pytest.mark.parametrize("way", [{}, {"async_save": False}, {"save_mode": "stream"}])
def test_folders_of_a_tokenizer_belong_to_it(model, tmp_path, way):
    trainer = make_trainer(model, tmp_path, **way)
    trainer.tokenizer = trainer.processing_class = TokensInFolders()
    saved = tmp_path / "checkpoint-0"
    saving.save_checkpoint(trainer, saved)
    saving.save_model_directory(trainer, tmp_path)
    name = "additional_chat_templates/rag.jinja"
    assert (saved / name).read_text() == (tmp_path / name).read_text() == "{{ messages }}"
    assert name in [file.name for file in _C.read_manifest(str(saved)).files]
    assert _C.verify_directory(str(saved)) == [] and not list(tmp_path.rglob(".*"))
    (saved / name).write_text("{{ massages }}")
    (problem,) = _C.verify_directory(str(saved))
    assert problem.startswith(f"{name}: expected CRC32C")


def test_no_checkpoint_and_no_directory(tmp_path):
    assert saving.newest_checkpoint(tmp_path) is None
    assert saving.newest_checkpoint(tmp_path / "missing") is None
    (tmp_path / ".fastsft-tmp-3-0123456789abcdef").mkdir()
    (tmp_path / "checkpoint-best").mkdir()
    assert saving.newest_checkpoint(tmp_path) is None


def test_checkpoints_of_another_run_are_put_aside(finished, model, tmp_path, capsys):
    output = copy(finished, tmp_path, 2, 6)
    (output / "checkpoint-best").mkdir()
    for _ in range(2):  # twice within a second: names stay different
        saving.put_checkpoints_aside(output)
        assert _C.list_checkpoints(str(output)) == [] and saving.newest_checkpoint(output) is None
        (line,) = capsys.readouterr().out.splitlines()
        assert line.startswith(f"--no_resume: checkpoint-2, checkpoint-6 in {output} are now called ")
        copy(finished, tmp_path, 2, 6)
    aside = sorted(path.name for path in output.glob("previous-*"))
    trainer = make_trainer(model, tmp_path)
    assert [saving.load_checkpoint(trainer, output / name)["step"] for name in aside] == [2, 6, 2, 6]
    assert (output / "checkpoint-best").is_dir()


def test_those_of_an_abandoned_way_are_put_aside(finished, model, tmp_path, capsys):
    """Resumed by name from an older one: the next automatic resume must not take the newer ones."""
    output = copy(finished, tmp_path, 2, 4, 6)
    (output / "checkpoint-9").mkdir()  # of another program
    trainer = make_trainer(model, output, save_strategy="no")
    trainer.train(resume_from_checkpoint=str(output / "checkpoint-2"))
    assert _C.list_checkpoints(str(output)) == ["checkpoint-2", "checkpoint-9"]
    (line,) = [text for text in capsys.readouterr().out.splitlines() if "are now called" in text]
    assert line.startswith(f"going on from {output / 'checkpoint-2'}: checkpoint-4, checkpoint-6 in {output}")
    assert saving.newest_checkpoint(output) == str(output / "checkpoint-2")
    aside = sorted(output.glob("previous-*-checkpoint-*"))
    assert [_C.verify_directory(str(path)) for path in aside] == [[], []]
    make_trainer(model, output, save_strategy="no").train(resume_from_checkpoint=str(aside[0]))
    assert _C.list_checkpoints(str(output)) == ["checkpoint-9"]  # step 2 is of another way, too


def test_an_automatic_resume_puts_nothing_aside(finished, model, tmp_path):
    output = copy(finished, tmp_path, 2, 4)
    damaged = output / "checkpoint-4" / OPTIMIZER
    damaged.write_bytes(damaged.read_bytes()[:-1])
    make_trainer(model, output, save_strategy="no").train(resume_from_checkpoint=True)
    assert _C.list_checkpoints(str(output)) == ["checkpoint-2", "checkpoint-4"]


def test_a_fresh_start_puts_those_of_the_run_before_aside(finished, model, tmp_path):
    """Trainer.train() without a checkpoint: the next automatic resume is of this run, not of the other."""
    output = copy(finished, tmp_path, 4, 6)
    (output / "checkpoint-9").mkdir()  # of another program
    make_trainer(model, output, max_steps=2, save_total_limit=2).train()
    assert _C.list_checkpoints(str(output)) == ["checkpoint-2", "checkpoint-9"]
    aside = sorted(output.glob("previous-*-checkpoint-*"))
    assert [path.name[-12:] for path in aside] == ["checkpoint-4", "checkpoint-6"]
    assert [_C.verify_directory(str(path)) for path in aside] == [[], []]


def test_a_roll_back_puts_aside_what_came_after(finished, model, tmp_path):
    trainer = make_trainer(model, copy(finished, tmp_path, 2, 4, 6))
    assert roll_back(trainer, 4) == str(tmp_path / "checkpoint-2")
    assert trainer.state.global_step == 2 and _C.list_checkpoints(str(tmp_path)) == ["checkpoint-2"]


def test_only_our_checkpoints_go_with_the_best(finished, tmp_path):
    """--load_best_model_at_end with --save_total_limit 1, in a directory that others write to."""
    output = copy(finished, tmp_path, 2, 4, 6)
    for name in ("checkpoint-1", "checkpoint-9"):
        (output / name).mkdir()
        (output / name / "pytorch_model.bin").write_bytes(b"mine")
    saving.keep_only(output / "checkpoint-4")
    assert _C.list_checkpoints(str(output)) == ["checkpoint-1", "checkpoint-4", "checkpoint-9"]


def test_nothing_to_put_aside(tmp_path, capsys):
    saving.put_checkpoints_aside(tmp_path / "missing")
    saving.put_checkpoints_aside(tmp_path)
    assert not list(tmp_path.iterdir()) and capsys.readouterr().out == ""


def test_none_that_verifies_is_an_error_with_every_reason(finished, tmp_path):
    output = copy(finished, tmp_path, 4, 6)
    (output / "checkpoint-6" / "manifest.json").unlink()
    (output / "checkpoint-4" / "model.safetensors").write_bytes(b"x")
    with pytest.raises(ValueError, match="none can be used") as caught:
        saving.newest_checkpoint(output)
    assert "checkpoint-6: " in str(caught.value) and "no manifest.json" in str(caught.value)
    assert "model.safetensors: expected" in str(caught.value)


def test_a_damaged_checkpoint_is_not_resumed_by_name(finished, model, tmp_path):
    output = copy(finished, tmp_path, 4)
    path = output / "checkpoint-4" / OPTIMIZER
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"{OPTIMIZER}: expected CRC32C"):
        saving.load_checkpoint(make_trainer(model, tmp_path), output / "checkpoint-4")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"gradient_accumulation_steps": 1},
            "batch was 4 .* now it is 2; --gradient_accumulation_steps 2",
        ),
        (
            {"per_device_train_batch_size": 3},
            "batch was 4 .* now it is 6; no accumulation restores it",
        ),
        ({"seed": 7}, "seed was 42, now 7"),
        ({"data_seed": 7}, "data_seed was 42, now 7"),
        ({"dataloader_drop_last": True}, "dataloader_drop_last was False, now True"),
        ({"model_max_length": 31}, "model_max_length was 32, now 31"),
    ],
)
def test_another_run_is_refused(finished, model, tmp_path, options, message):
    trainer = make_trainer(model, tmp_path, **options)
    with pytest.raises(ValueError, match=message):
        saving.load_checkpoint(trainer, finished / "checkpoint-4")


def test_another_data_set_is_refused(finished, model, tmp_path, monkeypatch):
    trainer = make_trainer(model, tmp_path)
    rows, edited = trainer.train_rows.native, _C.TokenDataset()
    for row in range(len(rows)):  # one id is another one; lengths and labels stay
        ids = rows.ids(row)
        ids[1] += row == 3
        edited.append(ids, rows.learned(row))
    trainer.train_rows.native = edited
    with pytest.raises(ValueError, match="data_hash"):
        saving.load_checkpoint(trainer, finished / "checkpoint-4")


def test_a_data_seed_equal_to_the_seed_is_no_difference(finished, model, tmp_path):
    trainer = make_trainer(model, tmp_path, data_seed=42)
    assert saving.load_checkpoint(trainer, finished / "checkpoint-4")["step"] == 4


def test_a_state_of_another_version_is_refused(tmp_path):
    (tmp_path / "fastsft_state.json").write_text('{"format_version": 1}')
    with pytest.raises(ValueError, match="expected format_version 2, got 1; resume with the version"):
        run_identity.read_run_state(tmp_path)


WARNED = {
    "learning_rate": 0.02, "lr_scheduler_type": "cosine", "lr_scheduler_kwargs": {"num_cycles": 0.5},
    "warmup_steps": 1, "warmup_ratio": 0.5, "max_steps": 5, "num_train_epochs": 4, "weight_decay": 0.5,
    "adam_beta1": 0.8, "adam_beta2": 0.8, "adam_epsilon": 1e-6, "max_grad_norm": 0.5,
    "label_smoothing_factor": 0.1, "loss_norm": "micro_batch", "average_tokens_across_devices": False,
    "bf16": True,
}  # fmt: skip


def test_other_differences_warn(finished, model, tmp_path):
    saved = run_identity.read_run_state(finished / "checkpoint-4")
    trainer = make_trainer(model, tmp_path)
    for name, value in WARNED.items():
        setattr(trainer.args, name, value)
    with pytest.warns(UserWarning) as caught:
        saving.load_checkpoint(trainer, finished / "checkpoint-4")
    said = [str(warning.message).split(": ", 1)[1] for warning in caught]
    assert sorted(said) == sorted(f"{n} was {saved[n]}, now it is {v}" for n, v in WARNED.items())


@pytest.mark.parametrize(("limit", "left"), [(1, [6]), (2, [4, 6]), (None, [2, 4, 6])])
def test_save_total_limit(model, tmp_path, limit, left):
    make_trainer(model, tmp_path, save_total_limit=limit).train()
    assert _C.list_checkpoints(str(tmp_path)) == [f"checkpoint-{step}" for step in left]
    assert not list(tmp_path.glob(".fastsft*"))


@pytest.mark.parametrize("broken", ["write_texts", "write_tokenizer", "read_random_states", "describe_run"])
def test_a_failed_save_leaves_nothing(model, tmp_path, monkeypatch, broken):
    trainer = make_trainer(model, tmp_path)

    def fail(*_):
        raise RuntimeError("the disk is full")

    saving.save_checkpoint(trainer, tmp_path / "checkpoint-1")
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_content, broken, fail)
        with pytest.raises(RuntimeError, match="the disk is full"):
            saving.save_checkpoint(trainer, tmp_path / "checkpoint-2")
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-1"]
    saving.save_checkpoint(trainer, tmp_path / "checkpoint-2")
    assert saving.newest_checkpoint(tmp_path) == str(tmp_path / "checkpoint-2")


def test_leftovers_of_a_crash_go_with_the_next_save(model, tmp_path, capsys):
    leftover = tmp_path / ".fastsft-tmp-1-0123456789abcdef"
    leftover.mkdir()
    (leftover / ".fastsft-owner").write_text("")
    (leftover / "model.safetensors").write_bytes(b"half")
    saving.save_checkpoint(make_trainer(model, tmp_path), tmp_path / "checkpoint-1")
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-1"]
    assert leftover.name in capsys.readouterr().out


@pytest.mark.parametrize(
    ("step", "world_size", "drop_last", "expected"),
    [(0, 1, False, (0, 0)), (1, 1, False, (0, 8)), (2, 1, False, (0, 16)), (3, 1, False, (1, 0)),
     (1, 2, False, (0, 16)), (2, 2, False, (1, 0)), (5, 1, True, (2, 8))],
)  # fmt: skip
def test_position(step, world_size, drop_last, expected):
    """18 conversations, four per device, accumulation two."""
    found = run_identity.data_position(
        step, 18, per_device=4, accumulation=2, world_size=world_size, drop_last=drop_last
    )
    assert (found["epoch"], found["conversations"]) == expected


def test_another_position_of_the_same_step_is_refused(model, tmp_path):
    """Eight conversations, the last ones dropped: two steps an epoch of six rows, or only one."""
    first = {"dataloader_drop_last": True, "per_device_train_batch_size": 1, "gradient_accumulation_steps": 6}
    make_trainer(model, tmp_path, **first, max_steps=2).train()
    other = {**first, "per_device_train_batch_size": 3, "gradient_accumulation_steps": 2}
    saved = tmp_path / "checkpoint-2"
    assert saving.load_checkpoint(make_trainer(model, tmp_path, **first, max_steps=2), saved)["step"] == 2
    with pytest.raises(ValueError, match=r"in epoch 1 after 0 .* be epoch 2 after 0; resume"):
        saving.load_checkpoint(make_trainer(model, tmp_path, **other, max_steps=2), saved)


def launch(mode: str, model: Path, output: Path) -> None:
    """Two ranks of saving_run.py."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    program = Path(__file__).with_name("saving_run.py")
    path = f"{Path(_C.__file__).parents[1]}:{program.parent}"
    common = {
        **os.environ,
        "PYTHONPATH": path,
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, str(program), mode, str(model), str(output)],
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        outputs = [rank.communicate(timeout=180)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(outputs)


def test_two_ranks_save_and_resume_bit_for_bit(model, tmp_path):
    launch("train", model, tmp_path / "whole")
    assert _C.verify_directory(str(tmp_path / "whole" / "checkpoint-2")) == []
    copy(tmp_path / "whole", tmp_path / "resumed", 2)
    launch("train", model, tmp_path / "resumed")
    assert same(weights_of(tmp_path / "resumed"), weights_of(tmp_path / "whole"))
    # One rank reads it too: the same logical tensors, the same global batch.
    trainer = make_trainer(model, tmp_path / "alone")
    saved = saving.load_checkpoint(trainer, tmp_path / "whole" / "checkpoint-6")
    assert saved["world_size"] == 2 and trainer.engine.step_count == 6
    assert same(trainer.engine.named_parameters(), weights_of(tmp_path / "whole" / "checkpoint-6"))


def test_a_rank_that_fails_fails_the_save_on_all(model, tmp_path):
    launch("fail", model, tmp_path)
    first, second = ((tmp_path / f"outcome-{rank}.txt").read_text() for rank in range(2))
    assert second == "the disk of rank 1 is full"
    assert "rank 1 failed: the disk of rank 1 is full" in first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["outcome-0.txt", "outcome-1.txt"]


def files_of(folder, *, model_only=False):
    ignored = {"manifest.json", "training_args.json"}
    return {
        path.name: path.read_bytes()
        for path in folder.iterdir()
        if path.name not in ignored and (not model_only or path.name.startswith(("model", "config")))
    }


def test_two_ranks_in_every_way(model, tmp_path):
    """Byte ranges of both ranks, a stream through rank 0, nodes with disks of their own: the same files."""
    launch("ways", model, tmp_path)
    parallel, stream = tmp_path / "parallel", tmp_path / "stream"
    assert files_of(parallel / "final") == files_of(stream / "final")
    assert len(list((parallel / "final").glob("model-*.safetensors"))) > 5
    assert same(weights_of(parallel / "final"), weights_of(model))
    assert files_of(parallel / "checkpoint-0") == files_of(stream / "checkpoint-0")
    assert _C.list_checkpoints(str(parallel)) == ["checkpoint-0", "checkpoint-2"]
    saved = [parallel / "checkpoint-0", parallel / "checkpoint-2", stream / "checkpoint-0"]
    saved += [tmp_path / f"node-{rank}" / "checkpoint-0" for rank in range(2)]
    assert [_C.verify_directory(str(path)) for path in saved] == [[]] * 5
    # Both nodes have all of it.
    first, second = (files_of(tmp_path / f"node-{rank}" / "checkpoint-0") for rank in range(2))
    states = [json.loads(files.pop("trainer_state.json")) for files in (first, second)]
    assert [state.pop("is_world_process_zero") for state in states] == [True, False]
    assert (
        states[0] == states[1]
        and first == second
        and OPTIMIZER in first
        and "random-state-rank-00001.json" in first
    )
    whole = files_of(tmp_path / "node-1", model_only=True)
    assert whole == files_of(tmp_path / "node-0", model_only=True) and "model.safetensors" in whole
    assert same(weights_of(tmp_path / "node-1"), weights_of(parallel / "checkpoint-0"))
    # A rank that failed behind the training is heard of on both, after the same step.
    outcomes = [(tmp_path / f"outcome-{rank}.txt").read_text().split(" ", 1) for rank in range(2)]
    assert outcomes[0][0] == outcomes[1][0]
    assert "rank 1 failed: the disk of rank 1 is full" in outcomes[0][1]
    assert outcomes[1][1] == "the disk of rank 1 is full"


FULL_AT = [
    *(0, 1, 7, 100, 300, 500, 800, 1_000, 1_500, 2_000),
    *(3_000, 5_000, 8_000, 20_000, 40_000, 60_000, 80_000, 100_000, 120_000, 150_000),
]


@pytest.mark.parametrize("limit", FULL_AT)
def test_a_full_disk_leaves_the_old_checkpoint(model, tmp_path, limit):
    """A limit on file sizes stands for a disk that fills up in the middle of any file."""
    trainer = make_trainer(model, tmp_path)
    saving.save_checkpoint(trainer, tmp_path / "checkpoint-1")
    before, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        said = r"\.fastsft-.*File too large.* \d+ bytes are free there.*save needs \d+ bytes"
        with pytest.raises(RuntimeError, match=said if limit else ".fastsft-"):
            saving.save_checkpoint(trainer, tmp_path / "checkpoint-2")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-1"]
    assert saving.newest_checkpoint(tmp_path) == str(tmp_path / "checkpoint-1")
    saving.save_checkpoint(trainer, tmp_path / "checkpoint-2")
    assert saving.newest_checkpoint(tmp_path) == str(tmp_path / "checkpoint-2")
