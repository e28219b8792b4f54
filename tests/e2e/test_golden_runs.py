"""Recorded runs of FastChat with transformers' Trainer, again with the same flags.

Tolerances: loss 1e-5 absolute, gradient norm 1e-4 relative, learning rate 1e-12, final norms 1e-5 relative.
"""

import json
import shutil

import pytest
import torch

from e2e.command_line import TRAINER, log_history, start, tensors
from warm_ranks import WarmRanks

RUNS = {path.stem: json.loads(path.read_text()) for path in sorted(TRAINER.glob("?_*.json"))}
DROPPED = [name for name in RUNS if name.startswith("c_")]
# Label smoothing was recorded with the inflation of 4.57 (docs/spec/trainer_semantics.md, section 8).
WHOLE = [name for name in RUNS if name != "j_label_smoothing"]
# These two by the command itself, alone and under torchrun, as test_command.py runs the README's recipe; the
# others, and the second again, without the seconds of its imports.
COMMANDS = ["a_cosine", "f_two_processes"]


def flags_of(name):
    extra = {"max_dropped": 1} if name in DROPPED else {}
    return {**RUNS[name]["flags"], **extra}


def assert_steps(entries, recorded):
    assert [entry["step"] for entry in entries] == [step["step"] for step in recorded]
    for entry, step in zip(entries, recorded, strict=True):
        assert entry["loss"] == pytest.approx(step["loss"], abs=1e-5, rel=0)
        assert entry["learning_rate"] == pytest.approx(step["learning_rate"], abs=1e-12, rel=0)
        assert entry["epoch"] == step["epoch"]
        assert ("grad_norm" in entry) == ("grad_norm" in step)
        if "grad_norm" in step:
            assert entry["grad_norm"] == pytest.approx(step["grad_norm"], rel=1e-4)


def assert_run(output_dir, recorded, first_step=1, train_loss=None):
    history = log_history(output_dir)
    assert_steps([e for e in history if "loss" in e and e["step"] >= first_step], recorded["steps"])
    evals = [(e["step"], e["epoch"], e["eval_loss"]) for e in history if "eval_loss" in e]
    assert evals == [
        (e["step"], e["epoch"], pytest.approx(e["eval_loss"], abs=1e-5)) for e in recorded["evals"]
    ]
    end = history[-1]
    expected = recorded["end"]["train_loss"] if train_loss is None else train_loss
    assert end["train_loss"] == pytest.approx(expected, abs=1e-5)
    assert (end["total_flos"], end["step"]) == (recorded["end"]["total_flos"], recorded["end"]["step"])
    saved, wanted = tensors(output_dir), dict(recorded["final_weights"]["tensors"])
    if json.loads((output_dir / "config.json").read_text())["tie_word_embeddings"]:
        del wanted["lm_head.weight"]  # recorded in memory; files hold one copy
    assert set(saved) == set(wanted)
    for name, tensor in saved.items():
        assert list(tensor.shape) == wanted[name]["shape"]
        assert tensor.double().norm().item() == pytest.approx(wanted[name]["l2"], rel=1e-5), name
        first = torch.tensor(wanted[name]["first"])
        assert torch.allclose(tensor.flatten()[: len(first)].float(), first, rtol=1e-3, atol=2e-5), name


@pytest.mark.thorough
@pytest.mark.parametrize("name", COMMANDS)
def test_recorded_run_by_the_command(name, tmp_path):
    run = RUNS[name]
    start(flags_of(name), tmp_path / "out", ranks=run["world_size"])
    assert_run(tmp_path / "out", run)


@pytest.mark.parametrize("name", [name for name in WHOLE if name != "f_two_processes"])
def test_recorded_run(warm: WarmRanks, name, tmp_path):
    run = RUNS[name]
    warm.train(flags_of(name), tmp_path / "out", run["world_size"])
    assert_run(tmp_path / "out", run)


@pytest.mark.parametrize("strategy", ["full_shard auto_wrap", "shard_grad_op auto_wrap", "no_shard"])
def test_sharded_run_is_the_recorded_one(warm: WarmRanks, strategy, tmp_path):
    run = RUNS["f_two_processes"]
    warm.train({**run["flags"], "fsdp": strategy}, tmp_path / "out", 2)
    assert_run(tmp_path / "out", run)


@pytest.mark.parametrize("name", [name for name in WHOLE if name.startswith("h_")])
def test_recorded_resume(warm: WarmRanks, name, tmp_path):
    out, run = tmp_path / "out", RUNS[name]
    warm.train(flags_of(name), out)
    uninterrupted = tensors(out)
    for checkpoint in out.glob("checkpoint-*"):
        if checkpoint.name != "checkpoint-3":
            shutil.rmtree(checkpoint)
    for path in out.glob("*.safetensors"):
        path.unlink()
    assert "step 3" in warm.train(flags_of(name), out)
    # There, the mean loss of a resumed run is that of its own steps over all steps.
    assert_run(out, run["resumed_from_step_3"], first_step=4, train_loss=run["end"]["train_loss"])
    resumed = tensors(out)
    assert all(torch.equal(tensor, resumed[name]) for name, tensor in uninterrupted.items())


@pytest.mark.parametrize("name", DROPPED)
def test_too_many_dropped_conversations_stop_the_run(warm: WarmRanks, name, tmp_path):
    run = warm.start(RUNS[name]["flags"], tmp_path / "out", RUNS[name]["world_size"])
    assert run.wait(60) == [1] * RUNS[name]["world_size"]
    assert "max_dropped" in run.text(name="err")
    assert not list((tmp_path / "out").glob("*.safetensors"))


def test_label_smoothing_without_accumulation_inflation(warm: WarmRanks, tmp_path):
    """Both agree where accumulation is 1; with 2, the recorded loss is twice what is meant."""
    recorded = RUNS["j_label_smoothing"]
    warm.train(recorded["flags"], tmp_path / "out")
    entry = log_history(tmp_path / "out")[0]
    sizes = [batch["num_items_in_batch"] for batch in recorded["micro_batches"][0] if batch["step"] == 1]
    tokens = [batch["label_tokens"] for batch in recorded["micro_batches"][0] if batch["step"] == 1]
    means = [batch["loss"] for batch in recorded["micro_batches"][0] if batch["step"] == 1]
    meant = sum(mean * count for mean, count in zip(means, tokens, strict=True)) / sizes[0]
    assert entry["loss"] == pytest.approx(meant, abs=1e-5)
