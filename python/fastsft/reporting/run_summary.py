"""The start page and the end page of a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fastsft.arguments.resolve.notices import warms_up, warmup_line
from fastsft.data.chat.labelling import labels_of
from fastsft.model.family import is_vision_text
from fastsft.planning.devices import peak_memory, size_text
from fastsft.reporting.adapter_lines import how_to_open_adapter, merge_command, trained_line
from fastsft.reporting.argument_words import argument_words, changed_arguments
from fastsft.reporting.columns import columns, page_width
from fastsft.reporting.durations import duration_text
from fastsft.reporting.loss_history import LossHistory
from fastsft.reporting.loss_picture import has_matplotlib
from fastsft.reporting.memory_table import how_held, memory_table
from fastsft.reporting.talk_command import talk_command
from fastsft.runtime.regular_files import read_json_object

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from fastsft.arguments import TrainingArguments
    from fastsft.data.token_rows import TokenRows
    from fastsft.reporting.reported_run import ReportedRun

_NO_WRAPPING = 10_000  # columns: lines to be copied stay whole


def start_page(trainer: ReportedRun, *others: DataclassInstance) -> str:
    """The coming run: model, what is trained, data, sharding, batches, steps, memory, reports, arguments.

    others: further argument classes, whose arguments are shown, too.
    """
    args = trainer.args
    assert trainer.planner.memory_plan is not None  # of a run that trains
    rows = [
        ("model", f"{trainer.model.source_directory} ({trainer.model.num_parameters():,} parameters)"),
        ("trained", trained_line(trainer.model)),
        ("data", data_line(trainer)),
        *labels_row(trainer),
        *engine_row(trainer),
        ("compute", compute_line(trainer)),
        ("batch", batch_line(trainer)),
        *[("warning", line) for line in batch_warning(trainer)],
        ("packing", packing_line(trainer)),
        ("steps", steps_line(trainer)),
        *[("warning", line) for line in warmup_warning(trainer)],
        ("output", str(args.output_dir)),
        ("reports", reports_line(args, trainer.plan.max_steps)),
    ]
    table = memory_table(trainer.planner.memory_plan, trainer.planner.memory)
    table += process_line(args)
    rows += [("" if number else "memory", line) for number, line in enumerate(table)]
    words = argument_words(changed_arguments(*others, args))
    rows += [("" if number else "arguments", line) for number, line in enumerate(_filled(words))]
    return columns(rows)


def data_line(trainer: ReportedRun) -> str:
    """Conversations and tokens, to train on and to evaluate on."""
    text = _data_text(trainer.train_rows)
    if trainer.eval_dataset is None:
        return text
    evaluated = trainer.eval_rows
    one = [] if evaluated is None or isinstance(evaluated, dict) else [evaluated]
    sets = list(evaluated.values()) if isinstance(evaluated, dict) else one
    tokens = sum(int(item.lengths.sum()) for item in sets if item.is_exact)
    known = f" with {tokens:,} tokens" if all(item.is_exact for item in sets) else ", read each time"
    return f"{text}; to evaluate {sum(map(len, sets)):,}{known}"


def labels_row(trainer: ReportedRun) -> list[tuple[str, str]]:
    """Policy, template and why; nothing where a script made the labels."""
    words = labels_of(trainer.train_dataset)
    return [] if words is None else [("labels", words)]


def engine_row(trainer: ReportedRun) -> list[tuple[str, str]]:
    """The engine, where it is not the native one."""
    words = getattr(trainer.model, "engine_words", "")
    return [("engine", words)] if words else []


def _data_text(rows: TokenRows) -> str:
    if not rows.is_exact:
        return (
            f"{len(rows):,} rows of {type(rows.source).__name__}, read in every epoch; memory is planned for "
            f"rows of {rows.longest:,} tokens"
        )
    counted = (
        f"{len(rows):,} conversation{'' if len(rows) == 1 else 's'}, {int(rows.lengths.sum()):,} tokens, "
        f"{int(rows.target_counts.sum()):,} learned"
    )
    return f"{counted}, read in every epoch" if rows.is_read else counted


def compute_line(trainer: ReportedRun) -> str:
    """Ranks, sharding, precision, device."""
    device = trainer.args.device
    assert trainer.planner.memory_plan is not None  # of a run that trains
    kernel = trainer.model.attention_kernel
    return (
        f"{how_held(trainer.planner.memory_plan.setting)}, {'CPU' if device.type == 'cpu' else device}, "
        f"recompute {trainer.model.recompute}{f', attention {kernel}' if kernel else ''}"
    )


def batch_line(trainer: ReportedRun) -> str:
    """Conversations of a step, and tokens of a micro-batch."""
    args = trainer.args
    sizes = (args.train_batch_size, args.gradient_accumulation_steps, args.world_size)
    return (
        f"{' x '.join(map(str, sizes))} = {sizes[0] * sizes[1] * sizes[2]} conversations a step, up to "
        f"{trainer.planner.token_budget:,} tokens a micro-batch"
    )


def batch_warning(trainer: ReportedRun) -> Iterator[str]:
    """A line where one step takes more conversations than there are."""
    args, there = trainer.args, len(trainer.train_rows)
    wanted = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
    if wanted > there:
        yield f"a step takes {wanted:,} conversations, and {there:,} are there: each step is a whole epoch"


def process_line(args: TrainingArguments) -> list[str]:
    """On a CPU: what the process holds next to the plan, so that the bar's peak is no surprise."""
    if args.device.type != "cpu":
        return []
    held = size_text(peak_memory("cpu"))
    return [f"{'the process so far':<26}{held:>12}, libraries included; code of products may add 0.1 GiB"]


def steps_line(trainer: ReportedRun) -> str:
    """Length and schedule."""
    args, plan = trainer.args, trainer.plan
    warmup = args.get_warmup_steps(plan.max_steps)
    return (
        f"{plan.max_steps:,} ({plan.steps_per_epoch:,} an epoch), learning rate {args.learning_rate:g}, "
        f"{args.lr_scheduler_type}, {warmup or 'no'} step{'' if warmup == 1 else 's'} of warm-up"
    )


def warmup_warning(trainer: ReportedRun) -> Iterator[str]:
    """A line where the run ends within its warm-up; of --max_steps the arguments have said so."""
    args, steps = trainer.args, trainer.plan.max_steps
    warmup = args.get_warmup_steps(steps)
    if args.max_steps <= 0 and args.warmup_steps >= 1 and warmup >= steps and warms_up(args):
        yield warmup_line(warmup, steps, args.learning_rate)


def packing_line(trainer: ReportedRun) -> str:
    """Micro-batches, their size, how evenly ranks work, and what padding would have added."""
    packed, rows = trainer.planner.packing(), trainer.train_rows
    if not rows.is_exact:
        return (
            f"rows are packed as they are read, into micro-batches of {trainer.planner.token_budget:,} tokens"
        )
    padded = packed.conversations * rows.padded_length
    ranks = trainer.args.world_size
    size = packed.tokens / max(packed.micro_batches * ranks, 1)
    batches = packed.micro_batches / max(packed.steps, 1)
    return (
        f"{batches:.3g} micro-batch{'' if batches == 1 else 'es'} a step and rank, {size:,.0f} tokens each, "
        f"balance {packed.balance:.1%}, {1 - packed.tokens / max(padded, 1):.1%} padding avoided"
    )


def reports_line(args: TrainingArguments, max_steps: int) -> str:
    """Other places where the course of the run of `max_steps` can be seen."""
    shown = [f"--report_to {' '.join(args.report_to)}"] if args.report_to else []
    if "tensorboard" in (args.report_to or ()):
        shown.append(f"tensorboard --logdir {args.logging_dir}")
    by_steps = args.logging_strategy == "steps" and not args.logging_first_step
    is_silent = by_steps and args.logging_steps > max_steps
    if args.plot_loss and (not is_silent or args.eval_strategy != "no"):
        missing = "loss.html (loss.png needs matplotlib: pip install matplotlib)"
        shown.append("loss.html and loss.png" if has_matplotlib() else missing)
    if not args.report_to:
        shown.append("no tracker (--report_to tensorboard, wandb, mlflow or all)")
    if is_silent:
        shown.append(f"no loss before the end: --logging_steps {args.logging_steps:g} of {max_steps:,} steps")
    return ", ".join(shown)


def end_page(trainer: ReportedRun, merged: Path | None = None, *, keeps_last: bool = False) -> str:
    """The result of the run, what was written where, and how to open it.

    merged: the model that the adapter was merged into; None: a line says how that is done. keeps_last: the
    best weights were asked for and could not be loaded, which a line says.
    """
    directory = Path(trainer.args.output_dir or ".")
    rows = [("trained", text) for text in _totals(trainer)]
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
        yield f"nothing: all {state.max_steps:,} steps were done before"
        return
    text = f"{steps:,} step{'' if steps == 1 else 's'} in {duration_text(pace.seconds)}"
    yield f"{text}, {pace.tokens:,} tokens, {pace.overall_tokens_per_second():,.0f} tokens/s{_best(trainer)}"


def _best(trainer: ReportedRun) -> str:
    """The best loss that says something about the weights: of a ruined run none, and none without targets."""
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
    """The directory, then its files: weights with their size, the rest by name."""
    found = sorted(path for path in directory.glob("*") if path.name[0] != ".") if directory.is_dir() else []
    weights = [path for path in found if path.suffix in (".safetensors", ".bin")]
    checkpoints = [path.name for path in found if path.is_dir() and path.name.startswith("checkpoint-")]
    rest = [path.name for path in found if path not in weights and path.name not in checkpoints]
    yield f"{directory.absolute()}"
    if weights:
        size = size_text(sum(path.stat().st_size for path in weights))
        yield f"{', '.join(path.name for path in weights[:3])}{', ...' if len(weights) > 3 else ''} ({size})"
    if checkpoints:
        yield ", ".join(sorted(checkpoints, key=lambda name: (len(name), name)))
    if rest:
        yield ", ".join(rest)


def how_to_open(directory: Path) -> Iterator[str]:
    """Lines of Python."""
    slow = "" if (directory / "tokenizer.json").exists() else ", use_fast=False"
    path, config = str(directory.absolute()), directory / "config.json"
    is_whole = config.is_file() and is_vision_text(read_json_object(config))
    kind = "AutoModelForImageTextToText" if is_whole else "AutoModelForCausalLM"
    yield f"from transformers import {kind}, AutoTokenizer"
    yield f'model = {kind}.from_pretrained("{path}")'
    yield f'tokenizer = AutoTokenizer.from_pretrained("{path}"{slow})'


def _filled(words: list[str]) -> list[str]:
    """Words into lines of the page, each flag next to its value."""
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + 1 + len(word) <= page_width() - 12:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines
