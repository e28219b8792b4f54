"""Whatever fastsft writes, nothing behind a link that somebody plants meanwhile is written or made."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fastsft import _C
from fastsft.callbacks.state import TrainerState
from fastsft.cli.demo_model import small_config, write_json, write_random_model
from fastsft.model.conversion import convert_model
from fastsft.model.model_config import ModelConfig
from fastsft.model.model_save import write_durably, write_tokenizer
from fastsft.model.output_directory import install_file_set
from fastsft.program.error_file import VARIABLE, write_error_file
from fastsft.reporting import loss_reports
from fastsft.reporting.metrics_files import write_metrics
from fastsft.runtime.new_files import NewFile, fresh_file
from fastsft.runtime.output_files import (
    record_written,
    replace_file,
    write_below,
    write_for_flag,
    write_output,
)
from fastsft.tokenizer.files import TrainedTemplate
from fastsft.trainer.hub_uploads import _linked
from fastsft.weight_sync.files import RangeFile, temporary_name, write_huggingface_files
from fastsft.weight_sync.layout import write_iteration
from fastsft.weight_sync.verl_pt import _save
from link_planter import HOW, Planter, between_calls, state_outside, watching

Write = Callable[[Path], object]
_TEXT = "what fastsft writes " * 1000
_TAG = "0123456789abcdef"
_HF = {"config.json": b"{}", "tokenizer_config.json": b"{}", "additional_chat_templates/x.jinja": b"x"}


def _stream(directory: Path) -> None:
    with fresh_file(directory, "lines.jsonl", durable=True) as file:
        for _ in range(3):
            file.write(_TEXT.encode())
            file.flush()


def _ranges(directory: Path) -> None:
    path = directory / temporary_name("model.safetensors", _TAG)
    for begin in (0, 1000):  # two ranks
        with RangeFile(path, "model.safetensors") as file:
            file.write_at(begin, _TEXT.encode()[:1000])
            file.finish()


def _ranges_of_engine(directory: Path) -> None:
    for begin in (0, 1000):
        ranges = _C.ChecksummedRanges(str(directory / "optimizer-rank-0.safetensors"))
        ranges.write_at(begin, _TEXT.encode()[:1000])
        ranges.finish()


def _weights(directory: Path) -> None:
    specs = [_C.TensorSpec(name, "F32", [64]) for name in ("a", "b", "c")]
    files = _C.WeightFiles(str(directory), specs, [0, 1, 2], 300)
    for _ in specs:
        files.write(bytes(256))
    files.commit(192)


def _file_set(directory: Path) -> None:
    staging = _C.AtomicDirectory(str(directory), "model")
    files = [write_durably(Path(staging.path), name, _TEXT) for name in ("config.json", "model.safetensors")]
    name = _C.file_set_name()
    staging.commit(name, _C.Manifest(1, 1, "", files))
    install_file_set(directory, name)


class _Tokenizer:
    """One of another library, which writes by name."""

    def save_pretrained(self, directory: str) -> None:
        Path(directory, "tokenizer_config.json").write_text("{}")
        Path(directory, "folder").mkdir()
        Path(directory, "folder", "vocab.json").write_text(_TEXT)


def _template(directory: Path) -> None:
    replace_file(directory / "tokenizer_config.json", "{}")
    TrainedTemplate("text", "base").write(directory)


def _losses(directory: Path) -> None:
    history = [{"loss": 1.0 / step, "step": step, "epoch": 1.0} for step in range(1, 9)]
    state = TrainerState(log_history=history, global_step=8, max_steps=8)
    with pytest.MonkeyPatch.context() as patch:  # the picture has the same writer, after a million calls
        patch.setattr(loss_reports, "has_matplotlib", lambda: False)
        loss_reports.write_loss_files(directory, state, "run", "finished", 1.0)


def _upload(directory: Path) -> None:
    checkpoint = directory.parent / "checkpoint"
    checkpoint.mkdir(exist_ok=True)
    (checkpoint / "config.json").write_text("{}")
    _linked(checkpoint, directory)


def _error_file(directory: Path) -> None:
    os.environ[VARIABLE] = str(directory / "error.json")
    try:
        write_error_file("what went wrong")
    finally:
        del os.environ[VARIABLE]


def _random_model(directory: Path) -> None:
    config = small_config(vocab_size=16, hidden_size=8, num_layers=1, num_heads=1, intermediate_size=8)
    write_random_model(directory, config)


def _converted(directory: Path) -> None:
    source = directory.parent / "source"
    if not source.exists():
        _random_model(source)
        write_json(source / "tokenizer_config.json", {})
    convert_model(source, directory / "converted", "bfloat16", 1 << 30)


WRITERS: dict[str, Write] = {
    "replace_file": lambda directory: replace_file(directory / "page.html", _TEXT),
    "write_below": lambda directory: write_below(directory, "a/b/page.html", _TEXT),
    "write_output": lambda directory: write_output(directory / "report.json", _TEXT),
    "write_for_flag": lambda directory: write_for_flag(directory / "bad.jsonl", _TEXT, "--report_bad"),
    "record_written": lambda directory: record_written(directory, {"x": (1, 2)}),
    "stream": _stream,
    "write_durably": lambda directory: write_durably(directory, "a/x.json", _TEXT),
    "write_tokenizer": lambda directory: write_tokenizer(_Tokenizer(), directory),
    "template": _template,
    "config": lambda directory: ModelConfig({"model_type": "llama"}).save_pretrained(directory),
    "losses": _losses,
    "metrics": lambda directory: write_metrics(directory, "train", {"train_loss": 1.0}),
    "state": lambda directory: TrainerState().save_to_json(directory / "trainer_state.json"),
    "upload": _upload,
    "error file": _error_file,
    "random model": _random_model,
    "conversion": _converted,
    "file set": _file_set,
    "weight files": _weights,
    "weight sync, hf": _ranges,
    "weight sync, verl_pt": lambda directory: _save(
        {"a": torch.zeros(4096)}, directory / temporary_name("model_world_size_1_rank_0.pt", _TAG)
    ),
    "weight sync, small files": lambda directory: write_huggingface_files(directory, _TAG, _HF),
    "weight sync, step": lambda directory: write_iteration(directory / "latest.txt", 7),
    "ranges of the engine": _ranges_of_engine,
    "text of the engine": lambda directory: _C.write_file(str(directory / "config.json"), _TEXT),
}
EXPECTED = (
    "page.html", "report.json", "config.json", "tokenizer_config.json", "model.safetensors",
    "fsdp_config.json", "huggingface--tokenizer_config.json", "huggingface--config.json",
    "train_results.json", "all_results.json",
)  # fmt: skip


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("writer", WRITERS)
def test_links_between_any_two_calls(directory: Path, outside: Path, writer: str, how: str) -> None:
    planter, before = Planter(directory, outside, how, EXPECTED), state_outside(outside)
    with contextlib.suppress(OSError, ValueError, RuntimeError), between_calls(planter):
        WRITERS[writer](directory)
    assert state_outside(outside) == before
    assert planter.planted or writer == "error file"


@pytest.mark.parametrize("writer", WRITERS)
def test_links_of_another_process(directory: Path, outside: Path, writer: str) -> None:
    before = state_outside(outside)
    with watching(Planter(directory, outside, "link", EXPECTED), directory):
        for _ in range(5):
            with contextlib.suppress(OSError, ValueError, RuntimeError):
                WRITERS[writer](directory)
    assert state_outside(outside) == before


@pytest.mark.parametrize("writer", WRITERS)
def test_the_writers_write(directory: Path, writer: str) -> None:
    """What the tests above let fail works where nobody disturbs it."""
    WRITERS[writer](directory)
    assert any(path.is_file() for path in directory.rglob("*"))


def test_a_name_says_nothing_of_the_next_one(directory: Path) -> None:
    first = temporary_name("model.safetensors", _TAG)
    other = temporary_name("huggingface/tokenizer_config.json", _TAG)
    assert first.rpartition("-")[2] != other.rpartition("-")[2]
    assert _TAG not in first and _TAG not in other
    assert first == temporary_name("model.safetensors", _TAG)  # all ranks come to the same


def test_a_link_that_is_there_before(directory: Path, outside: Path) -> None:
    """The file takes the name of a link, of whichever kind, and leaves its target."""
    before = state_outside(outside)
    (directory / "a").symlink_to(outside / "victim")
    os.link(outside / "victim", directory / "b")
    for name in ("a", "b"):
        write_output(directory / name, json.dumps(name))
        assert (directory / name).read_text() == json.dumps(name) and not (directory / name).is_symlink()
    assert state_outside(outside)["victim"][:2] == before["victim"][:2]
    with pytest.raises(OSError, match="cannot create: another program has put a file"):
        os.link(outside / "victim", directory / "c")
        NewFile(directory / "c", shared=True)
