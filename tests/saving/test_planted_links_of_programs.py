"""Commands, checkpoints and whole runs where somebody plants links all the while: nothing outside changes.

test_planted_links.py has the functions that write single files.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fastsft import _C, saving
from fastsft.arguments import TrainingArguments
from fastsft.callbacks.state import TrainerState
from fastsft.cli.demo_model import train_tokenizer
from fastsft.cli.main import main
from fastsft.data.chat.mask_policy import jinja_form_for
from fastsft.data.digests import _write
from fastsft.model.model_config import write_both_words
from fastsft.ranks.output_directory import run_lock
from fastsft.sources.hub_files import HubRepository, Listing
from fastsft.tokenizer import Tokenizer
from fastsft.trackers.tensorboard import TensorBoardTracker
from link_planter import HOW, Planter, between_calls, state_outside, watching
from saving_run import make_trainer
from small_model import DATA, write_small_model
from warm_ranks import TRAINER, WarmRanks, spread

Write = Callable[[Path, Path], object]  # a model, and the directory to write into
EXPECTED = (
    "Modelfile",
    "bad.jsonl",
    "config.json",
    "model.safetensors",
    "tokenizer_config.json",
    "tokenizer.model",
    "manifest.json",
)


def _command(*words: object) -> None:
    with contextlib.suppress(SystemExit):
        main([str(word) for word in words])


def _checkpoint(model: Path, directory: Path) -> None:
    """A checkpoint, and a second one, for which the first is removed."""
    trainer = make_trainer(model, directory, save_total_limit=1)
    for step in (1, 2):
        saving.save_checkpoint(trainer, directory / f"checkpoint-{step}")


def _lock(model: Path, directory: Path) -> None:
    with run_lock(directory):
        pass


def _adapter_weights(model: Path, directory: Path) -> None:
    specs = [_C.TensorSpec(name, "F32", [64]) for name in ("a", "b")]
    writer = _C.SafetensorsWriter(str(directory / "adapter_model.safetensors"), specs, {"format": "pt"})
    for _ in specs:
        writer.write(bytes(256))
    writer.finish()


def _commit(model: Path, directory: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(directory))
        HubRepository("a/b", "").keep(Listing("0" * 40, ()))


def _bad_records(model: Path, directory: Path) -> None:
    source = directory.parent / "bad.jsonl"
    source.write_text('{"messages": 3}\n' * 3 + json.dumps({"messages": [{"role": "user", "content": "a"}]}))
    _command(
        "data", "convert", source, directory / "data.jsonl", "--data_format", "messages",
        "--on_bad_sample", "skip", "--report_bad", directory / "bad.jsonl", "--overwrite",
    )  # fmt: skip


def _export(model: Path, directory: Path) -> None:
    trained = directory.parent / "trained"
    shutil.copytree(model, trained, dirs_exist_ok=True)
    template = jinja_form_for("vicuna_v1.1", Tokenizer.from_pretrained(model))
    (trained / "chat_template.jinja").write_text(template)
    _command("export", "ollama", trained, "--output", directory / "Modelfile")


def _tensorboard(model: Path, directory: Path) -> None:
    pytest.importorskip("tensorboard")
    tracker = TensorBoardTracker()
    tracker.open(TrainingArguments(output_dir="o", logging_dir=str(directory / "logs")), TrainerState(), None)
    for step in (1, 2):
        tracker.log({"loss": 2.0}, step)
    tracker.close(failed=False)


def _words(model: Path, directory: Path) -> None:
    with contextlib.suppress(FileExistsError):
        (directory / "config.json").write_bytes((model / "config.json").read_bytes())
    write_both_words(directory)


WRITERS: dict[str, Write] = {
    "checkpoints": _checkpoint,
    "the model of the end": lambda model, directory: saving.trainer_save_model_safe(
        make_trainer(model, directory)
    ),
    "own tokenizer": lambda model, directory: Tokenizer.from_pretrained(model).save_pretrained(directory),
    "tokenizer of the demo": lambda model, directory: train_tokenizer(
        directory, ["some words"] * 3, vocab_size=280, model_max_length=64
    ),
    "words of two versions": _words,
    "adapter": _adapter_weights,
    "lock": _lock,
    "digest of a file": lambda model, directory: _write(directory / "digests" / "x.json", {"size": 1}),
    "convert": lambda model, directory: _command("convert", model, directory / "converted"),
    "commit of a data set": _commit,
    "data convert": lambda model, directory: _command(
        "data", "convert", DATA, directory / "data.jsonl", "--format", "messages", "--overwrite"
    ),
    "data convert, bad records": _bad_records,
    "export": _export,
    "doctor": lambda model, directory: _command(
        "doctor", "--model_name_or_path", model, "--data_path", DATA, "--output_dir", directory
    ),
    "tensorboard": _tensorboard,
    "inspect": lambda model, directory: _command(
        "inspect", "--data", DATA, "--model", model, "--html", directory / "page.html"
    ),
}


NAMELESS = ("lock", "doctor")  # what they write has no name, or is gone at the end


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_model(tmp_path_factory.mktemp("small"))


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("writer", WRITERS)
def test_links_between_any_two_calls(
    small: Path, directory: Path, outside: Path, writer: str, how: str
) -> None:
    planter, before = Planter(directory, outside, how, EXPECTED), state_outside(outside)
    with contextlib.suppress(OSError, ValueError, RuntimeError), between_calls(planter):
        WRITERS[writer](small, directory)
    assert state_outside(outside) == before
    assert planter.planted or writer in NAMELESS


@pytest.mark.parametrize("writer", WRITERS)
def test_the_writers_write(small: Path, directory: Path, writer: str) -> None:
    WRITERS[writer](small, directory)
    assert any(path.is_file() for path in directory.rglob("*")) or writer in NAMELESS


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmRanks]:
    ranks = WarmRanks(tmp_path_factory.mktemp("logs"))
    yield ranks
    ranks.close()


RUNS: dict[str, tuple[int, dict[str, Any]]] = {
    "plain": (1, {"profile": "PLACE/trace.json", "report_bad": "PLACE/bad.jsonl", "plot_loss": True}),
    "LoRA, merged": (1, {"lora": True, "lora_r": 2, "save_merged": True, "plot_loss": False}),
    "two ranks": (2, {"plot_loss": False}),
}


@pytest.mark.parametrize("name", RUNS)
def test_whole_runs(warm: WarmRanks, small: Path, directory: Path, outside: Path, name: str) -> None:
    """The planter is a process of its own, and acts on every name. The run may end in any way."""
    ranks, more = RUNS[name]
    output, cache = directory / "out", directory / "cache"
    flags = json.loads((TRAINER / "h_resume.json").read_text())["flags"]
    flags |= {key: str(value).replace("PLACE", str(directory)) for key, value in more.items()}
    flags |= {"model_name_or_path": str(small), "data_cache": str(cache), "save_patience": 0}
    before = state_outside(outside)
    for _ in range(2):
        with watching(Planter(directory, outside, "link", EXPECTED), directory):
            run = warm.start(spread(flags, ranks), output, ranks)
            assert None not in run.wait(90), run.all_text()[-3000:]
    assert state_outside(outside) == before
    assert any(path.is_symlink() for path in directory.rglob("*"))
