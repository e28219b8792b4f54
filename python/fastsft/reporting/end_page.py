"""The end page of a run: its result, its files, and how to open and use the model."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fastsft.data.chat.labelling import SYSTEM
from fastsft.model.family import is_vision_text
from fastsft.planning.devices import size_text
from fastsft.reporting.console_text import columns, duration_text
from fastsft.reporting.loss_history import LossHistory
from fastsft.runtime.regular_files import read_json_object

if TYPE_CHECKING:
    from fastsft.reporting.reported_run import ReportedRun

_NO_WRAPPING = 10_000  # columns; wider than any line, because a wrapped command could not be copied


def end_page(trainer: ReportedRun, merged: Path | None = None, *, keeps_last: bool = False) -> str:
    """Return the page: the run's result, its files, and how to open them.

    merged: the directory of the merged model; if None, the page shows the merge command for an adapter.
    keeps_last: True if the best weights were requested and could not be loaded.
    """
    directory = Path(trainer.args.output_dir or ".")
    rows = [("trained", text) for text in _totals(trainer)]
    if trainer.stop_reason:
        rows.append(("stopped", f"early: {trainer.stop_reason}"))
    rows += [("warning", line) for line in trainer.stepper.loss_watch.faults()]
    if keeps_last:
        step = trainer.state.global_step
        rows.append(("weights", f"those of the last step, {step:,}: the best ones could not be loaded"))
    rows += [("" if number else "saved", line) for number, line in enumerate(written(directory))]
    code = [("talk", talk_command(directory))]
    if trainer.model.adapter_facts() is not None:
        code += [
            ("merge", merge_command(directory)) if merged is None else ("merged", str(merged.absolute()))
        ]
        code += [
            ("" if number else "open", line) for number, line in enumerate(how_to_open_adapter(directory))
        ]
        return f"{columns(rows)}\n{columns(code, _NO_WRAPPING)}"
    code += [("" if number else "open", line) for number, line in enumerate(how_to_open(directory))]
    return f"{columns(rows)}\n{columns(code, _NO_WRAPPING)}"


def _totals(trainer: ReportedRun) -> Iterator[str]:
    pace, state = trainer.progress.pace, trainer.state
    steps = state.global_step - pace.first_step
    if not steps:
        yield f"nothing: all {state.global_step:,} steps were done before"
        return
    text = f"{steps:,} step{'' if steps == 1 else 's'} in {duration_text(pace.seconds)}"
    yield f"{text}, {pace.tokens:,} tokens, {pace.overall_tokens_per_second():,.0f} tokens/s{_best(trainer)}"


def _best(trainer: ReportedRun) -> str:
    """Return the best loss as text; "" if the model is ruined, or if no logged loss had targets."""
    state, diluted = trainer.state, trainer.stepper.losses.diluted
    measured = [
        entry for entry in state.log_history if "loss" not in entry or entry.get("step") not in diluted
    ]
    if trainer.stepper.loss_watch.is_ruined:
        return ""
    history = LossHistory.of(measured)
    for name, curve in [*history.evaluations.items(), ("train", history.train)]:
        best = curve.best()
        if best is not None:
            return f", best {name} loss {best[1]:.4f} at step {best[0]:,}"
    means = [entry["train_loss"] for entry in state.log_history[-1:] if "train_loss" in entry]
    return f", mean loss {means[0]:.4f}" if means else ""


def written(directory: Path) -> Iterator[str]:
    """Yield lines that name the directory, its weight files with their total size, and its other files."""
    files = sorted(path for path in directory.glob("*") if path.name[0] != ".") if directory.is_dir() else []
    weights = [path for path in files if path.suffix in (".safetensors", ".bin")]
    checkpoints = [path.name for path in files if path.is_dir() and path.name.startswith("checkpoint-")]
    rest = [path.name for path in files if path not in weights and path.name not in checkpoints]
    yield f"{directory.absolute()}"
    if weights:
        size = size_text(sum(path.stat().st_size for path in weights))
        yield f"{', '.join(path.name for path in weights[:3])}{', ...' if len(weights) > 3 else ''} ({size})"
    if checkpoints:
        yield ", ".join(sorted(checkpoints, key=lambda name: (len(name), name)))
    if rest:
        yield ", ".join(rest)


def how_to_open(directory: Path) -> Iterator[str]:
    """Yield the Python lines that open the model in `directory`."""
    slow = "" if (directory / "tokenizer.json").exists() else ", use_fast=False"
    path, config = str(directory.absolute()), directory / "config.json"
    is_whole = config.is_file() and is_vision_text(read_json_object(config))
    kind = "AutoModelForImageTextToText" if is_whole else "AutoModelForCausalLM"
    yield f"from transformers import {kind}, AutoTokenizer"
    yield f'model = {kind}.from_pretrained("{path}")'
    yield f'tokenizer = AutoTokenizer.from_pretrained("{path}"{slow})'


def how_to_open_adapter(directory: Path) -> Iterator[str]:
    """Yield the Python lines that open the adapter in `directory`."""
    yield "from peft import AutoPeftModelForCausalLM"
    yield f'model = AutoPeftModelForCausalLM.from_pretrained("{directory.absolute()}")'


def merge_command(directory: Path) -> str:
    """Return the command that merges the adapter in `directory` into its base model."""
    folder = str(directory)
    return f"fastsft merge {shlex.quote(folder)} {shlex.quote(folder.rstrip('/') + '-merged')}"


def talk_command(directory: Path) -> str:
    """Return the chat command, with the text of --default_system as the system text.

    A relative path in the command counts from the run's working directory.
    """
    report = directory / "data_report.json"
    labels = read_json_object(report).get("train") if report.is_file() else None
    system = labels.get(SYSTEM) if isinstance(labels, dict) else None
    return shlex.join(["fastsft", "chat", str(directory), *(["--system", str(system)] if system else [])])
