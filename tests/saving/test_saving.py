"""Model directories written and read through fastsft.saving."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from engines import new_engine
from fastsft import _C, saving
from fastsft.arguments.values import parse_size
from fastsft.model.output_directory import prepare_output_directory
from fastsft.reporting.metrics_files import save_results
from fastsft.runtime.output_files import RECORD_NAME
from saving_run import Tokens, make_trainer
from tiny_models import weights_of, write_model

FILES = {
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer_config.json",
    "training_args.json",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"), "untied")


def names(directory):
    return {path.name for path in directory.iterdir()} - {RECORD_NAME}


def same(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def test_a_complete_directory(tmp_path, model):
    from transformers import AutoModelForCausalLM

    trainer = make_trainer(model, tmp_path / "out")
    trainer.model.config.use_cache = True
    saving.save_model_directory(trainer, tmp_path / "out")
    assert names(tmp_path / "out") == FILES
    assert same(weights_of(tmp_path / "out"), weights_of(model))
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["use_cache"] is True and config["torch_dtype"] == "float32"
    assert json.loads((tmp_path / "out" / "training_args.json").read_text())["learning_rate"] == 0.01
    _, report = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(report.values()), report


@pytest.mark.parametrize("source", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("flag", ["auto", "float32", "bfloat16"])
def test_save_dtype(tmp_path, source, flag):
    trainer = make_trainer(write_model(tmp_path / "in", "tied", source), tmp_path / "out", save_dtype=flag)
    saving.save_model_directory(trainer, tmp_path / "out")
    expected = source if flag == "auto" else flag
    tensors = weights_of(tmp_path / "out")
    assert {tensor.dtype for tensor in tensors.values()} == {getattr(torch, expected)}
    assert "lm_head.weight" not in tensors
    assert json.loads((tmp_path / "out" / "config.json").read_text())["torch_dtype"] == expected


def test_a_second_save_replaces_the_first(tmp_path, model):
    for limit, files in [("10KB", 6), ("5GB", 1)]:
        trainer = make_trainer(model, tmp_path, max_shard_size=limit)
        saving.save_model_directory(trainer, tmp_path)
        assert len(list(tmp_path.glob("*.safetensors"))) >= files
        assert same(weights_of(tmp_path), weights_of(model))
    assert names(tmp_path) == FILES


def test_the_source_is_never_overwritten(tmp_path):
    source = write_model(tmp_path / "in", "tied")
    before = {path.name: path.read_bytes() for path in source.iterdir()}
    trainer = make_trainer(source, tmp_path / "out")
    (tmp_path / "link").symlink_to(source)
    for name in ["in", "in/../in", "link"]:
        with pytest.raises(ValueError, match="never overwritten"):
            saving.save_model_directory(trainer, tmp_path / name)
    assert {path.name: path.read_bytes() for path in source.iterdir()} == before


def test_a_failing_tokenizer_changes_nothing(tmp_path, model):
    trainer = make_trainer(model, tmp_path)
    (tmp_path / "config.json").write_text("old")

    class Broken(Tokens):
        def save_pretrained(self, directory):
            super().save_pretrained(directory)
            raise OSError("no tokenizer.model")

    trainer.tokenizer = Broken()
    with pytest.raises(OSError, match=r"no tokenizer\.model"):
        saving.save_model_directory(trainer, tmp_path)
    assert names(tmp_path) == {"config.json"} and (tmp_path / "config.json").read_text() == "old"


def test_too_little_space_for_the_first_checkpoint_is_said_before_the_first_step(
    tmp_path, model, monkeypatch
):
    trainer = make_trainer(model, tmp_path, save_strategy="steps", max_steps=1)
    monkeypatch.setattr(_C, "available_bytes", lambda path: 1000)
    with pytest.raises(RuntimeError, match=r"a save needs .* KiB, 1 KiB are free"):
        trainer.train()
    assert trainer.state.global_step == 0
    trainer.args.save_strategy = "no"
    assert trainer.train().global_step == 1


def test_too_little_space_is_said_before_anything_is_written(tmp_path, model, monkeypatch):
    trainer = make_trainer(model, tmp_path)
    monkeypatch.setattr(_C, "available_bytes", lambda path: 1000)
    with pytest.raises(RuntimeError, match=f"{tmp_path}: a save needs .*, 1 KiB are free"):
        saving.save_model_directory(trainer, tmp_path)
    assert names(tmp_path) == set()


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("5GB", 5 * 10**9),
        ("1.5MB", 1_500_000),
        ("10kb", 10_000),
        ("2GiB", 2**31),
        (77, 77),
        (" 3 TB ", 3 * 10**12),
    ],
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "5XB", "-5GB", "0", "5GB5", "0.1"])
def test_sizes_that_are_none(text):
    with pytest.raises(ValueError, match="max_shard_size"):
        parse_size(text)


def pickled(model, directory, shards=1):
    """The same model as pytorch_model*.bin."""
    directory.mkdir()
    (directory / "config.json").write_text((model / "config.json").read_text())
    tensors = list(load_file(model / "model.safetensors").items())
    if shards == 1:
        torch.save(dict(tensors), directory / "pytorch_model.bin")
        return directory
    weight_map = {}
    for part in range(shards):
        file = f"pytorch_model-{part + 1:05d}-of-{shards:05d}.bin"
        torch.save(dict(tensors[part::shards]), directory / file)
        weight_map.update(dict.fromkeys(dict(tensors[part::shards]), file))
    (directory / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return directory


@pytest.mark.parametrize("compute_dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shards", [1, 3])
def test_pickled_weights(tmp_path, model, shards, compute_dtype):
    source = pickled(model, tmp_path / "bin", shards)
    engine = new_engine((source / "config.json").read_text(), compute_dtype=compute_dtype)
    with pytest.warns(UserWarning, match="as plain data") as caught:
        saving.load_weights(engine, source)
    assert len(caught) == 1
    assert same(engine.named_parameters(), weights_of(model))
    reference = new_engine((model / "config.json").read_text(), compute_dtype=compute_dtype)
    saving.load_weights(reference, model)
    ids = torch.arange(1, 9).numpy()
    assert torch.equal(engine.logits(ids, [8]), reference.logits(ids, [8]))  # the compute copy too


def test_safetensors_are_preferred(tmp_path, model, recwarn):
    source = pickled(model, tmp_path / "both")
    (source / "pytorch_model.bin").write_bytes(b"never opened")
    (source / "model.safetensors").write_bytes((model / "model.safetensors").read_bytes())
    saving.load_weights(_C.Engine((source / "config.json").read_text()), source)
    assert len(recwarn) == 0


class Canary:
    """Unpickling it would leave a trace."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.filterwarnings("ignore:.*as plain data")
def test_pickles_never_run_code(tmp_path, model):
    source = pickled(model, tmp_path / "bin")
    torch.save({"a": Canary(tmp_path / "trace")}, source / "pytorch_model.bin")
    engine = _C.Engine((source / "config.json").read_text())
    with pytest.raises(ValueError, match="convert the model to safetensors"):
        saving.load_weights(engine, source)
    assert not (tmp_path / "trace").exists()


@pytest.mark.filterwarnings("ignore:.*as plain data")
@pytest.mark.parametrize("content", [{"a": 1}, [1], {"a": torch.zeros(2)}])
def test_pickles_that_hold_no_model(tmp_path, model, content):
    source = pickled(model, tmp_path / "bin")
    torch.save(content, source / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"expected a|tensors missing"):
        saving.load_weights(_C.Engine((source / "config.json").read_text()), source)


def test_directories_without_weights(tmp_path, model):
    engine = _C.Engine((model / "config.json").read_text())
    with pytest.raises(ValueError, match="found none"):
        saving.load_weights(engine, tmp_path)
    with pytest.raises(ValueError, match="missing is not a directory"):
        saving.load_weights(engine, tmp_path / "missing")


def test_save_safe_with_our_trainer(tmp_path, model):
    trainer = make_trainer(model, tmp_path)
    saving.trainer_save_model_safe(trainer)
    assert names(tmp_path) == FILES


def test_save_safe_with_any_other_trainer():
    calls = []
    foreign = SimpleNamespace(model=torch.nn.Linear(2, 2), save_model=lambda: calls.append(1))
    saving.trainer_save_model_safe(foreign)
    assert calls == [1]


WRAPPED = """
import sys, types, torch, torch.distributed as dist
from fastsft import saving
assert "torch.distributed.fsdp" not in sys.modules and "transformers" not in sys.modules
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
plain = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
expected = {name: tensor.clone() for name, tensor in plain.state_dict().items()}
model = FSDP(plain, device_id=torch.device("cpu"), use_orig_params=False)
found = {}
trainer = types.SimpleNamespace(model=model, save_model=lambda: found.update(model.state_dict()))
saving.trainer_save_model_safe(trainer)
assert found.keys() == expected.keys(), found.keys()
assert all(torch.equal(found[name], expected[name]) for name in expected)
print("full state dict")
"""


def test_save_safe_with_a_model_that_fsdp_wraps(tmp_path):
    command = [sys.executable, "-W", "ignore", "-c", WRAPPED, str(tmp_path / "meet")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.stdout == "full state dict\n", result.stderr


def test_a_path_that_is_too_long_for_checkpoints_is_refused_at_once(tmp_path: Path) -> None:
    """Made level by level, as a path of 4,000 bytes can be; nothing is left for the names below it."""
    long = tmp_path
    while len(str(long)) < 3_450:
        long = long / ("d" * 100)
    for folder in (long / ("e" * 200), long / ("e" * 200) / ("f" * 200)):
        with pytest.raises(ValueError, match=r"--output_dir: expected a path of at most 3496 bytes"):
            prepare_output_directory("model", folder)
    prepare_output_directory("model", tmp_path / ("g" * 200))


def test_results_of_a_run_that_was_killed_between_its_two_files(model: Path, tmp_path: Path) -> None:
    """train_results.json is there, all_results.json is not: the next start completes it."""
    trainer = make_trainer(model, tmp_path, max_steps=2)
    result = trainer.train()
    save_results(trainer, result)
    whole = json.loads((tmp_path / "all_results.json").read_text())
    (tmp_path / "all_results.json").unlink()
    again = make_trainer(model, tmp_path, max_steps=2)
    save_results(again, again.train(resume_from_checkpoint=True))
    assert json.loads((tmp_path / "all_results.json").read_text()) == whole
    assert json.loads((tmp_path / "train_results.json").read_text()) == whole


def test_a_limit_that_a_killed_run_left_exceeded(model: Path, tmp_path: Path) -> None:
    """A kill after the last checkpoint, before older ones were removed: the next start removes them."""
    make_trainer(model, tmp_path).train()
    there = ["checkpoint-2", "checkpoint-4", "checkpoint-6"]
    assert _C.list_checkpoints(str(tmp_path)) == there
    make_trainer(model, tmp_path, save_total_limit=2).train(resume_from_checkpoint=True)
    assert _C.list_checkpoints(str(tmp_path)) == there[1:]
