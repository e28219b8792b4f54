"""Every writer of a model directory writes rotations and types in words that transformers 4 and 5 read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers
from peft import LoraConfig

from fastsft import saving
from fastsft.cli.main import main
from fastsft.model.config_words import missing_words
from fastsft.weight_sync import CheckpointCoordinator, FastsftEngine, fsdp_save_state_dict
from saving_run import make_trainer
from tiny_models import write_model
from version_words import newer, older, reading

NEWER = int(transformers.__version__.split(".")[0]) >= 5
ROPE = ("rope_theta", "rope_scaling", "rope_parameters", "rope_local_base_freq")
KINDS = {
    "untied": ("llama", ["default", "linear", "dynamic", "yarn", "llama3"]),
    "gemma3": ("gemma3_text", ["default", "linear"]),
}
CASES = [(kind, rope) for kind, (_, ropes) in KINDS.items() for rope in ropes]


def rope_words(kind: str, rope: str, *, of_newer: bool) -> dict[str, Any]:
    words = (newer if of_newer else older)(KINDS[kind][0], rope, None)
    return {key: value for key, value in words.items() if key in ROPE}


def source(folder: Path, kind: str, rope: str, *, of_newer: bool) -> Path:
    """A model whose configuration has the rotation in the words of one release."""
    write_model(folder, kind)
    path = folder / "config.json"
    config = {key: value for key, value in json.loads(path.read_text()).items() if key not in ROPE}
    dtype = {"dtype" if of_newer else "torch_dtype": "float32"}
    config = {key: value for key, value in config.items() if key not in ("dtype", "torch_dtype")}
    path.write_text(json.dumps({**config, **rope_words(kind, rope, of_newer=of_newer), **dtype}))
    return folder


def _final(model: Path, output: Path) -> Path:
    saving.trainer_save_model_safe(make_trainer(model, output))
    return output


def _checkpoint(model: Path, output: Path) -> Path:
    saving.save_checkpoint(make_trainer(model, output), output / "checkpoint-1")
    return output / "checkpoint-1"


def _converted(model: Path, output: Path) -> Path:
    assert main(["convert", str(model), str(output)]) == 0
    return output


def _merged(model: Path, output: Path) -> Path:
    adapter = output.parent / "adapter"
    trainer = make_trainer(model, adapter, peft_config=LoraConfig(r=2, target_modules=["q_proj"]))
    saving.trainer_save_model_safe(trainer)
    assert main(["merge", str(adapter), str(output)]) == 0
    return output


def _weight_sync(model: Path, output: Path) -> Path:
    engine = FastsftEngine(make_trainer(model, output / "run"))
    fsdp_save_state_dict(engine, str(output), 1, CheckpointCoordinator(None), None, format="hf").wait()
    return output / "huggingface"


WRITERS: dict[str, Callable[[Path, Path], Path]] = {
    "final model": _final, "checkpoint": _checkpoint, "convert": _converted, "merge": _merged,
    "weight sync": _weight_sync,
}  # fmt: skip


@pytest.mark.covering
@pytest.mark.parametrize("of_newer", [False, True], ids=["words of 4", "words of 5"])
@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize(("kind", "rope"), CASES)
def test_what_is_written_opens_with_the_rotation_of_the_source(
    tmp_path: Path, kind: str, rope: str, writer: str, of_newer: bool
) -> None:
    model = source(tmp_path / "model", kind, rope, of_newer=of_newer)
    saved = json.loads((WRITERS[writer](model, tmp_path / "out") / "config.json").read_text())
    own = json.loads((source(tmp_path / "own", kind, rope, of_newer=NEWER) / "config.json").read_text())
    assert reading(saved) == reading(own)
    assert missing_words(saved) == []
    for key, value in rope_words(kind, rope, of_newer=False).items():  # transformers 5 reads these, too
        assert saved.get(key) == value
    assert {saved[key] for key in ("dtype", "torch_dtype") if key in saved} == {"float32"}  # both read either
