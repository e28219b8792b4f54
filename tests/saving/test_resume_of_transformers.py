"""Checkpoints that transformers' Trainer wrote are resumed: the rest of its own curve, recorded live."""

from __future__ import annotations

import json
import pickle
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
import transformers
from accelerate.utils.fsdp_utils import save_fsdp_model, save_fsdp_optimizer
from torch import nn
from torch.distributed import checkpoint as sharded_checkpoint
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    StateDictType,
    fully_shard,
)
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from fastsft.checkpoint.external.tensor_files import ShardedFiles
from ranks import run_ranks
from trainer_pairs import Drawing, Plain, curve, model, ours, theirs, unrounded

ROWS, STEP, STEPS = 11, 3, 8
FLAGS: dict[str, Any] = {
    "max_steps": STEPS, "save_strategy": "steps", "save_steps": STEP, "weight_decay": 0.1,
    "lr_scheduler_type": "cosine", "warmup_steps": 2, "gradient_accumulation_steps": 2,
}  # fmt: skip


def record(output: Path, **flags: Any) -> list[float]:
    """Losses of transformers' run, which leaves checkpoint-3."""
    with pytest.MonkeyPatch.context() as patch:
        unrounded(patch)
        trainer = theirs(output, Plain(ROWS), **{**FLAGS, **flags})
        trainer.train()
    return curve(trainer)


def resume(output: Path, checkpoint: Path, **flags: Any) -> Any:
    """Our trainer after the rest, of other weights at its begin."""
    given = {"module": model(seed=7), **FLAGS, **flags}
    trainer = ours(output, Plain(ROWS), **given)
    trainer.train(resume_from_checkpoint=str(checkpoint))
    return trainer


def record_fp16(output: Path, scale: float, window: int, optim: str) -> list[float]:
    """The same in float16: accelerate leaves that out on a CPU, so it gets what it has on a GPU.

    In a process of its own, which keeps the number format.
    """
    with pytest.MonkeyPatch.context() as patch:
        unrounded(patch)
        trainer = theirs(output, Plain(ROWS), **FLAGS, fp16=True, optim=optim)
        trainer.accelerator.native_amp = True
        trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=window)
        trainer.train()
    rates = [entry["learning_rate"] for entry in trainer.state.log_history if "loss" in entry]
    (output / "rates.json").write_text(json.dumps(rates))
    return curve(trainer)


def recorded_alone(output: Path, scale: float, window: int, optim: str) -> list[float]:
    program = (
        f"import json, sys; sys.path[:0] = {sys.path!r}\n"
        f"from pathlib import Path; from {__name__} import record_fp16\n"
        f"print(json.dumps(record_fp16(Path({str(output)!r}), {scale}, {window}, {optim!r})))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


def check_rest(found: list[float], expected: list[float]) -> None:
    assert len(found) == len(expected) == STEPS
    assert found[:STEP] == expected[:STEP]  # the history of the checkpoint
    np.testing.assert_allclose(found[STEP:], expected[STEP:], rtol=1e-5)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float]]:
    """checkpoint-3, and the losses of all steps; to be read only."""
    output = tmp_path_factory.mktemp("theirs")
    return output / f"checkpoint-{STEP}", record(output)


@pytest.mark.parametrize("engine", ["native", "generic"])
def test_the_rest_of_the_curve(
    tmp_path: Path, recorded: tuple[Path, list[float]], engine: str, capfd: pytest.CaptureFixture[str]
) -> None:
    checkpoint, expected = recorded
    trainer = resume(tmp_path, checkpoint, engine=engine)
    check_rest(curve(trainer), expected)
    said = capfd.readouterr().out
    assert "was written by transformers: not carried over are losses since the last log; seed, data" in said
    assert f"resumed from {checkpoint}: step {STEP} of {STEPS}" in said
    # Our next checkpoint is one of ours, that goes on to the same end.
    again = resume(tmp_path, tmp_path / "checkpoint-6", engine=engine)
    assert curve(again)[6:] == curve(trainer)[6:]


GROUPED: dict[str, Any] = {
    "group_by_length": True, "max_steps": -1, "num_train_epochs": 3, "per_device_train_batch_size": 3,
    "save_strategy": "steps", "lr_scheduler_type": "cosine",
}  # fmt: skip
GROUPED_ROWS = 25  # nine steps of an epoch


def grouped_on_rank(groups: dict[str, str], directory: Path, step: int) -> Any:
    """(ours, theirs) on one of two ranks."""
    given = {**GROUPED, "per_device_train_batch_size": 2, "save_steps": step}
    with pytest.MonkeyPatch.context() as patch:
        unrounded(patch)
        trainer = theirs(directory / "theirs", Plain(GROUPED_ROWS), **given)
        trainer.train()
    found = ours(directory / "ours", Plain(GROUPED_ROWS), module=model(seed=7), **given)
    found.train(resume_from_checkpoint=str(directory / "theirs" / f"checkpoint-{step}"))
    return curve(found), curve(trainer)


@pytest.mark.variants("[10]")
@pytest.mark.parametrize("step", [3, 10])
def test_rows_by_length_of_two_ranks(tmp_path: Path, step: int) -> None:
    """A step of the first epoch, and one of the second."""
    for found, expected in run_ranks(2, grouped_on_rank, tmp_path, step, launched=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def check_grouped(tmp_path: Path, step: int, **flags: Any) -> None:
    """What is left after `step` of transformers' run is what was left there."""
    given = {**GROUPED, "save_steps": step, **flags}
    sets = {"evaluation": Plain(7)} if "eval_strategy" in flags else {}
    with pytest.MonkeyPatch.context() as patch:
        unrounded(patch)
        trainer = theirs(tmp_path / "theirs", Plain(GROUPED_ROWS), **sets, **given)
        trainer.train()
    checkpoint = tmp_path / "theirs" / f"checkpoint-{step}"
    found = ours(tmp_path / "ours", Plain(GROUPED_ROWS), module=model(seed=7), **sets, **given)
    found.train(resume_from_checkpoint=str(checkpoint))
    np.testing.assert_allclose(curve(found), curve(trainer), rtol=1e-5)


@pytest.mark.variants("[9]", "[20]")
@pytest.mark.parametrize("step", [3, 9, 12, 20])
def test_rows_by_length_go_on(tmp_path: Path, step: int, capfd: pytest.CaptureFixture[str]) -> None:
    """Of the first epoch, of its end, and of later ones, where transformers repeats the first order."""
    check_grouped(tmp_path, step)
    assert "not known" not in capfd.readouterr().out


@pytest.mark.parametrize("steps", [4, 9])
def test_evaluations_before_a_checkpoint_are_counted(tmp_path: Path, steps: int) -> None:
    check_grouped(tmp_path, 12, eval_strategy="steps", eval_steps=steps)


def test_an_order_that_is_not_known_is_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    given = {**GROUPED, "save_steps": 12, "num_train_epochs": 2}
    theirs(tmp_path / "theirs", Drawing("torch", GROUPED_ROWS), **given).train()
    found = ours(tmp_path / "ours", Drawing("torch", GROUPED_ROWS), **given)
    found.train(resume_from_checkpoint=str(tmp_path / "theirs" / "checkpoint-12"))
    said = capfd.readouterr().out
    assert "resuming within epoch 2 with --group_by_length: the run of this checkpoint drew other" in said


def test_an_order_without_random_states_is_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    given = {**GROUPED, "save_steps": 3, "num_train_epochs": 1}
    theirs(tmp_path / "theirs", Plain(GROUPED_ROWS), **given).train()
    checkpoint = tmp_path / "theirs" / "checkpoint-3"
    (checkpoint / "rng_state.pth").unlink()
    ours(tmp_path / "ours", Plain(GROUPED_ROWS), **given).train(resume_from_checkpoint=str(checkpoint))
    assert (
        "has no random states for this number of ranks, so which rows are left is" in capfd.readouterr().out
    )


@pytest.mark.covering
@pytest.mark.parametrize("source", ["python", "numpy", "torch"])
@pytest.mark.parametrize("flags", [{}, {"group_by_length": True}, {"ignore_data_skip": True}])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_draws_of_a_data_set_go_on_as_in_transformers(
    tmp_path: Path, source: str, flags: dict[str, Any], accumulation: int
) -> None:
    """Its own resume: the first step's batches, and the one after, are drawn before states are loaded."""
    given = {**FLAGS, "gradient_accumulation_steps": accumulation, **flags}  # step 3 of 6 or of 3 in an epoch
    with pytest.MonkeyPatch.context() as patch:
        unrounded(patch)
        theirs(tmp_path / "theirs", Drawing(source, ROWS), **given).train()
        checkpoint = tmp_path / "theirs" / f"checkpoint-{STEP}"
        resumed = theirs(tmp_path / "resumed", Drawing(source, ROWS), module=model(seed=7), **given)
        resumed.train(resume_from_checkpoint=str(checkpoint))
    found = ours(tmp_path / "ours", Drawing(source, ROWS), module=model(seed=7), **given)
    found.train(resume_from_checkpoint=str(checkpoint))
    check_rest(curve(found), curve(resumed))


def on_rank(groups: dict[str, str], directory: Path, engine: str) -> Any:
    """(ours, theirs) on one of two ranks."""
    expected = record(directory / "theirs", gradient_accumulation_steps=1)
    checkpoint = directory / "theirs" / f"checkpoint-{STEP}"
    settings: dict[str, Any] = {"gradient_accumulation_steps": 1, "engine": engine, "fsdp": "full_shard"}
    return curve(resume(directory / "ours", checkpoint, **settings)), expected


@pytest.mark.parametrize("engine", ["native", "generic"])
def test_the_rest_of_the_curve_of_two_ranks(tmp_path: Path, engine: str) -> None:
    for found, expected in run_ranks(2, on_rank, tmp_path, engine, launched=True):
        check_rest(found, expected)


CONFIGS = {
    "FULL": (StateDictType.FULL_STATE_DICT, FullStateDictConfig, FullOptimStateDictConfig),
    "SHARDED": (StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig, ShardedOptimStateDictConfig),
}


def fsdp1(module: nn.Module) -> nn.Module:
    policy = ModuleWrapPolicy({type(module.model.layers[0])})
    return FSDP(module, auto_wrap_policy=policy, device_id=torch.device("cpu"))


def fsdp2(module: nn.Module) -> nn.Module:
    fully_shard(module.model.layers[0])
    return fully_shard(module)


WRAPS = {1: fsdp1, 2: fsdp2}


def save_by_accelerate(trained: Any, version: int, kind: str, output: Path) -> None:
    """The state of transformers' trainer in FSDP's files, as transformers has accelerate write them."""
    module, optimizer = trained.accelerator.unwrap_model(trained.model), trained.optimizer.optimizer
    state = get_optimizer_state_dict(module, optimizer, options=StateDictOptions(full_state_dict=True))
    state = {"state": state["state"], "param_groups": state["param_groups"]}
    wrapped = WRAPS[version](module)
    other = torch.optim.AdamW(wrapped.parameters(), lr=0.01)
    names = [name for group in state["param_groups"] for name in group["params"]]
    kept = {key: value for key, value in state["param_groups"][0].items() if key != "initial_lr"}
    state["param_groups"] = [{**kept, "params": names}]
    set_optimizer_state_dict(wrapped, other, state, options=StateDictOptions(full_state_dict=True))
    form, weights, moments = CONFIGS[kind]
    plugin = SimpleNamespace(
        state_dict_type=form,
        fsdp_version=version,
        state_dict_config=weights(),
        optim_state_dict_config=moments(),
    )
    # More processes than one would have FSDP offload the whole, which it cannot do from a CPU.
    writer: Any = SimpleNamespace(process_index=trained.args.process_index, num_processes=1)
    save_fsdp_model(plugin, writer, wrapped, str(output))
    save_fsdp_optimizer(plugin, writer, other, wrapped, str(output))


def fsdp_on_rank(groups: dict[str, str], directory: Path, version: int, kind: str) -> Any:
    """(ours, theirs) of a checkpoint whose weights and moments are FSDP's."""
    flags = {"gradient_accumulation_steps": 1, "lr_scheduler_type": "constant", "warmup_steps": 0}
    expected = record(directory / "theirs", **flags)
    checkpoint = directory / "theirs" / f"checkpoint-{STEP}"
    trained = theirs(directory / "short", Plain(ROWS), **{**FLAGS, **flags, "max_steps": STEP})
    trained.train()
    save_by_accelerate(trained, version, kind, checkpoint)
    torch.distributed.barrier()
    for name in ("optimizer.pt", "model.safetensors"):
        (checkpoint / name).unlink(missing_ok=True)
    torch.distributed.barrier()
    return curve(resume(directory / "ours", checkpoint, fsdp="full_shard", **flags)), expected


@pytest.mark.variants("2-SHARDED", "1-FULL")
@pytest.mark.parametrize(("version", "kind"), [(1, "FULL"), (1, "SHARDED"), (2, "SHARDED")])
def test_files_of_fsdp(tmp_path: Path, version: int, kind: str) -> None:
    for found, expected in run_ranks(2, fsdp_on_rank, tmp_path, version, kind, launched=True):
        check_rest(found, expected)


@pytest.fixture
def copied(tmp_path: Path, recorded: tuple[Path, list[float]]) -> Path:
    """checkpoint-3, to be changed."""
    return Path(shutil.copytree(recorded[0], tmp_path / "theirs" / f"checkpoint-{STEP}"))


def refused(checkpoint: Path, message: str, **flags: Any) -> None:
    """Before anything is written, and before the first step."""
    output = checkpoint.parents[1] / "ours"
    with pytest.raises(ValueError, match=message):
        resume(output, checkpoint, **flags)
    assert not list(output.glob("checkpoint-*"))


def edit_optimizer(checkpoint: Path, change: Any) -> None:
    content = torch.load(checkpoint / "optimizer.pt", weights_only=True)
    change(content)
    torch.save(content, checkpoint / "optimizer.pt")


def edit_state(checkpoint: Path, **values: Any) -> None:
    path = checkpoint / "trainer_state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("zero_to_fp32.py", "zero_to_fp32.py is DeepSpeed's state; make weights of it with its zero_to_fp32"),
        ("global_step3", "DeepSpeed's state.*--model_name_or_path"),
        ("adapter_config.json", "peft's adapters; go on with transformers"),
        ("optimizer_0_rank1.bin", "in a file of each rank"),
    ],
)
def test_what_only_others_read(copied: Path, name: str, message: str) -> None:
    (copied / name).write_text("{}")
    refused(copied, message)


def test_a_model_only(copied: Path) -> None:
    (copied / "optimizer.pt").unlink()
    refused(copied, "holds a model only; train from it with --model_name_or_path")


def test_adapters_of_the_run(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastsft.model.causal_lm.CausalLM.adapter_facts", lambda self: {"rank": 4})
    refused(copied, "a whole model that transformers trained, the run has adapters")


def test_other_data_or_batch(copied: Path) -> None:
    refused(
        copied,
        "after step 3 the run was in epoch 1,.*it would be in epoch 0.5",
        gradient_accumulation_steps=1,
    )


def test_a_state_of_another_program(copied: Path) -> None:
    edit_state(copied, globalStep=3)
    refused(copied, r"unknown keys \['globalStep'\]; the file is not as transformers wrote it")


def drop_parameter(content: Any) -> None:
    del content["state"][2]


def other_optimizer(content: Any) -> None:
    for entry in content["state"].values():
        entry["exp_avg_sq_row"] = entry.pop("exp_avg_sq")


def other_steps(content: Any) -> None:
    content["state"][1]["step"] = torch.tensor(2.0)


def other_groups(content: Any) -> None:
    content["param_groups"][0]["params"].append(content["param_groups"][1]["params"].pop())


def other_shape(content: Any) -> None:
    content["state"][0]["exp_avg"] = torch.zeros(3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop_parameter, "expected its exp_avg and exp_avg_sq, found no state of it"),
        (other_optimizer, "expected AdamW's step, exp_avg and exp_avg_sq, got exp_avg, exp_avg_sq_row, step"),
        (other_steps, "expected one number of updates for all parameters, got 2, 3"),
        (other_groups, "with weight decay and 3 without, as the model has them, got groups of 10, 2"),
        (other_shape, "expected shape"),
        (
            lambda content: content.pop("state"),
            "expected the state of torch's AdamW, a dictionary with state",
        ),
    ],
)
def test_an_optimizer_that_does_not_fit(copied: Path, change: Any, message: str) -> None:
    edit_optimizer(copied, change)
    refused(copied, f"optimizer.pt.*{message}")


class Harmful:
    """What an unpickled file could do."""

    def __reduce__(self) -> Any:
        return (Path("/nowhere/harm").touch, ())


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth"])
def test_no_code_of_a_file_runs(copied: Path, name: str) -> None:
    torch.save({"state": Harmful()}, copied / name)
    refused(copied, rf"{name}: expected .* is not plain data")


def test_a_sharded_folder_of_another_python(tmp_path: Path) -> None:
    """Python 3.13 names the module of paths otherwise."""
    weights = {"weight": torch.arange(6.0).view(2, 3)}
    sharded_checkpoint.save(weights, checkpoint_id=tmp_path, no_dist=True)
    path = tmp_path / ".metadata"
    content = pickle.dumps(pickle.loads(path.read_bytes()), protocol=2)
    here = re.compile(rb"cpathlib(\._local)?\nPosixPath\n")
    assert here.search(content)
    for module in (b"pathlib", b"pathlib._local"):
        path.write_bytes(here.sub(b"c" + module + b"\nPosixPath\n", content))
        assert torch.equal(ShardedFiles(tmp_path).tensor("weight"), weights["weight"])


def test_no_code_of_a_sharded_folder_runs(copied: Path) -> None:
    (copied / "optimizer.pt").unlink()
    (copied / "optimizer_0").mkdir()
    (copied / "optimizer_0" / ".metadata").write_bytes(pickle.dumps(Harmful()))
    refused(copied, r"\.metadata: expected metadata of .*which plain data does not need")


def test_weights_of_another_model(copied: Path) -> None:
    tensors = safetensors.torch.load_file(copied / "model.safetensors")
    tensors["model.norm.weight"] = torch.ones(5)
    safetensors.torch.save_file(tensors, copied / "model.safetensors", metadata={"format": "pt"})
    refused(copied, r"model.norm.weight: expected shape \[16\], got \[5\]")


def test_random_states_are_those_of_the_checkpoint(tmp_path: Path, copied: Path) -> None:
    """What the next step of transformers would draw, after the seed of its second epoch's loader."""
    with torch.serialization.safe_globals(
        [np._core.multiarray._reconstruct, np.ndarray, np.dtype, np.dtypes.UInt32DType]
    ):
        states = torch.load(copied / "rng_state.pth", weights_only=True)
    drawn: list[Any] = []

    class Draw(transformers.TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            drawn.extend([random.getstate(), np.random.get_state(), torch.get_rng_state()])

    trainer = ours(tmp_path / "ours", Plain(ROWS), module=model(), **FLAGS)
    trainer.add_callback(Draw())
    trainer.train(resume_from_checkpoint=str(copied))
    assert drawn[0] == states["python"]
    assert np.array_equal(drawn[1][1], states["numpy"][1])
    generator = torch.Generator()
    generator.set_state(states["cpu"])
    torch.empty((), dtype=torch.int64).random_(generator=generator)
    assert torch.equal(drawn[2], generator.get_state())


def test_what_differs_is_named(
    copied: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    (copied / "rng_state.pth").unlink()
    resume(copied.parents[1] / "ours", copied, learning_rate=0.003, weight_decay=0.0, max_steps=4)
    told = " ".join(caplog.messages)
    assert "learning_rate was 0.01, now it is 0.003; the new value is used" in told
    assert "weight_decay was 0.1, now it is 0.0" in told and "max_steps was 8, now it is 4" in told
    assert "learning_rate of the next step was" in told
    assert "random states (none for this number of ranks)" in capfd.readouterr().out


def test_the_automatic_resume_names_the_way(copied: Path) -> None:
    trainer = ours(copied.parent, Plain(ROWS), module=model(), **FLAGS)
    with pytest.raises(
        ValueError, match=f"transformers wrote it: go on from it with --resume_from_checkpoint {copied}"
    ):
        trainer.train(resume_from_checkpoint=True)


def test_tied_weights_and_biases(tmp_path: Path) -> None:
    """Groups of parameters with and without weight decay, in transformers' order, of a family with both."""
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        vocab_size=64, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=True, initializer_range=0.3,
    )  # fmt: skip
    config.use_cache = False
    expected = record(tmp_path / "theirs", module=transformers.Qwen2ForCausalLM(config))
    other = transformers.Qwen2ForCausalLM(config)
    check_rest(curve(resume(tmp_path / "ours", tmp_path / "theirs" / "checkpoint-3", module=other)), expected)


@pytest.mark.variants("[adamw_torch]")
@pytest.mark.parametrize("optim", ["adamw_torch", "adamw_torch_fused"])
def test_the_loss_scale_of_fp16_is_carried_over(
    tmp_path: Path, optim: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """With adamw_torch steps that overflow do not advance the schedule, with the fused one they do."""
    expected = recorded_alone(tmp_path / "theirs", 2.0**19, 5, optim)
    checkpoint = tmp_path / "theirs" / f"checkpoint-{STEP}"
    saved = torch.load(checkpoint / "scaler.pt", weights_only=True)
    done = torch.load(checkpoint / "scheduler.pt", weights_only=True)["last_epoch"]
    assert saved["scale"] < 2.0**19 and (done < STEP) == (optim == "adamw_torch")
    trainer = resume(tmp_path / "ours", checkpoint, fp16=True, loss_scale_window=5, optim=optim)
    np.testing.assert_allclose(curve(trainer)[STEP:], expected[STEP:], atol=2e-3)
    rates = [entry["learning_rate"] for entry in trainer.state.log_history if "loss" in entry]
    recorded = json.loads((tmp_path / "theirs" / "rates.json").read_text())
    np.testing.assert_allclose(rates, recorded, rtol=1e-9)
    assert "loss scale of fp16" not in capfd.readouterr().out


@pytest.mark.parametrize(
    "content, message",
    [
        ({"scale": 2.0}, "expected scale, growth_factor, backoff_factor, growth_interval"),
        ([1.0], "expected scale, growth_factor"),
        (
            {"scale": 2.0, "growth_factor": 3.0, "backoff_factor": 0.5, "growth_interval": 5,
             "_growth_tracker": 0},
            "grows by 3.0 and falls by 0.5, expected 2.0",
        ),
    ],
)  # fmt: skip
def test_a_loss_scale_that_is_none_is_refused(
    tmp_path: Path, recorded: tuple[Path, list[float]], content: Any, message: str
) -> None:
    checkpoint = tmp_path / recorded[0].name
    shutil.copytree(recorded[0], checkpoint)
    torch.save(content, checkpoint / "scaler.pt")
    with pytest.raises(ValueError, match=message):
        resume(tmp_path / "ours", checkpoint, fp16=True)
