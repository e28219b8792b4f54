"""Checkpoints of a real Trainer: complete or absent, resumed bit for bit, never from the wrong run."""

import json
import logging
import random
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from fastsft import _C, saving
from fastsft.planning.plan_choice import plan_run_memory
from fastsft.planning.plan_request import PreviousPlan
from fastsft.runtime import random_state
from fastsft.runtime.output_files import RECORD_NAME
from saved_runs import OPTIMIZER, copy, same
from saving_run import Tokens, make_trainer
from tiny_models import weights_of

STATE_KEYS = {
    "best_global_step", "best_metric", "best_model_checkpoint", "epoch", "eval_steps", "global_step",
    "is_hyper_param_search", "is_local_process_zero", "is_world_process_zero", "log_history", "logging_steps",
    "max_steps", "num_input_tokens_seen", "num_train_epochs", "save_steps", "stateful_callbacks",
    "total_flos", "train_batch_size", "trial_name", "trial_params",
}  # fmt: skip


def test_what_a_checkpoint_holds(finished):
    assert _C.list_checkpoints(str(finished)) == ["checkpoint-2", "checkpoint-4", "checkpoint-6"]
    folder = finished / "checkpoint-4"
    assert {path.name for path in folder.iterdir()} == {
        "config.json", "generation_config.json", "model.safetensors", "tokenizer_config.json",
        "training_args.json", "trainer_state.json", "fastsft_state.json", "manifest.json",
        "optimizer-rank-00000-of-00001.safetensors", "random-state-rank-00000.json",
    }  # fmt: skip
    assert _C.verify_directory(str(folder)) == []
    assert [path.name for path in finished.glob(".fastsft*")] == [RECORD_NAME]
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
    planner = wide._run.planner
    least = plan_run_memory(
        wide.args, planner.memory_plan.setting, planner.rows, wide.model.conversation_cost(), planner.memory,
        PreviousPlan("block", planner.token_budget),
    ).total  # fmt: skip
    with monkeypatch.context() as patch:
        patch.setattr("fastsft.trainer.planner.rank_memory", lambda device: least - 1)
        tight = make_trainer(model, tmp_path / "tight")
        assert tight._run.planner.token_budget < planner.token_budget
        tight.train()
        refused = make_trainer(model, copy(finished, tmp_path / "refused", 2))
        expected = (
            rf"micro-batches of {planner.token_budget} tokens.*this run does not fit.*rounds differently"
        )
        with pytest.raises(ValueError, match=expected):
            refused.train(resume_from_checkpoint=True)
    rest = make_trainer(model, copy(tmp_path / "tight", tmp_path / "rest", 2))
    assert rest._run.planner.token_budget == planner.token_budget
    rest.train(resume_from_checkpoint=True)
    assert (
        rest._run.planner.token_budget
        == rest._run.planner.memory_plan.token_budget
        == tight._run.planner.token_budget
    )
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
    monkeypatch.setattr("fastsft.checkpoint.load._UNSAFE_SECONDS", 0.0)
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
    assert _C.verify_directory(str(saved)) == [] and not list(saved.rglob(".*"))
    assert [path.name for path in tmp_path.glob(".*")] == [RECORD_NAME]
    (saved / name).write_text("{{ massages }}")
    (problem,) = _C.verify_directory(str(saved))
    assert problem.startswith(f"{name}: expected CRC32C")


def test_no_checkpoint_and_no_directory(tmp_path):
    assert saving.newest_checkpoint(tmp_path) is None
    assert saving.newest_checkpoint(tmp_path / "missing") is None
    (tmp_path / ".fastsft-tmp-3-0123456789abcdef").mkdir()
    (tmp_path / "checkpoint-best").mkdir()
    assert saving.newest_checkpoint(tmp_path) is None


def test_none_that_verifies_is_an_error_with_every_reason(finished, tmp_path):
    output = copy(finished, tmp_path, 4, 6)
    (output / "checkpoint-6" / "manifest.json").unlink()
    (output / "checkpoint-4" / "model.safetensors").write_bytes(b"x")
    with pytest.raises(ValueError, match="none can be used") as caught:
        saving.newest_checkpoint(output)
    assert "checkpoint-6: " in str(caught.value) and "no manifest.json" in str(caught.value)
    assert "model.safetensors: expected" in str(caught.value)


@pytest.mark.parametrize(("limit", "left"), [(1, [6]), (2, [4, 6]), (None, [2, 4, 6])])
def test_save_total_limit(model, tmp_path, limit, left):
    make_trainer(model, tmp_path, save_total_limit=limit).train()
    assert _C.list_checkpoints(str(tmp_path)) == [f"checkpoint-{step}" for step in left]
    assert not list(tmp_path.glob(".fastsft*"))
