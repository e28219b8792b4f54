"""The start page of a run: model, data, sharding, batches, memory, reports and arguments."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from fastsft.arguments.given import given_fields
from fastsft.arguments.resolve.notices import warms_up, warmup_line
from fastsft.arguments.support import default_of
from fastsft.data.chat.labelling import labels_of
from fastsft.planning.devices import peak_memory, size_text
from fastsft.reporting.console_text import columns, page_width
from fastsft.reporting.loss_reports import has_matplotlib
from fastsft.reporting.plan_lines import how_held, memory_table

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from fastsft.arguments import TrainingArguments
    from fastsft.data.token_rows import TokenRows
    from fastsft.lora.adapted_model import AdaptedModel
    from fastsft.model.causal_lm import CausalLM
    from fastsft.reporting.reported_run import ReportedRun

_NO_WRAPPING = 10_000


def start_page(trainer: ReportedRun, *others: DataclassInstance) -> str:
    """Return the page. others: further argument objects, whose changed arguments are also shown."""
    args = trainer.args
    assert trainer.planner.memory_plan is not None  # a run that trains has a memory plan
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
    flags = argument_words(changed_arguments(*others, args))
    rows += [("" if number else "arguments", line) for number, line in enumerate(_filled(flags))]
    return columns(rows)


def data_line(trainer: ReportedRun) -> str:
    """Return conversation and token counts for training and evaluation."""
    text = _data_text(trainer.train_rows)
    if trainer.eval_dataset is None:
        return text
    evaluated = trainer.eval_rows
    one = [] if evaluated is None or isinstance(evaluated, dict) else [evaluated]
    sets = list(evaluated.values()) if isinstance(evaluated, dict) else one
    tokens = sum(int(item.lengths.sum()) for item in sets if item.is_exact)
    known = f" with {tokens:,} tokens" if all(item.is_exact for item in sets) else ", read each time"
    split = ", split off by --eval_split" if getattr(trainer.train_dataset, "eval_split", None) else ""
    return f"{text}; to evaluate {sum(map(len, sets)):,}{known}{split}"


def labels_row(trainer: ReportedRun) -> list[tuple[str, str]]:
    """Return the row with mask policy and template; empty if a script made the labels."""
    labels = labels_of(trainer.train_dataset)
    return [] if labels is None else [("labels", labels)]


def engine_row(trainer: ReportedRun) -> list[tuple[str, str]]:
    """Return the row with the engine; empty for the native engine."""
    engine = getattr(trainer.model, "engine_words", "")
    return [("engine", engine)] if engine else []


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
    """Return ranks, sharding, precision and device."""
    device = trainer.args.device
    assert trainer.planner.memory_plan is not None  # a run that trains has a memory plan
    kernel = trainer.model.attention_kernel
    return (
        f"{how_held(trainer.planner.memory_plan.setting)}, {'CPU' if device.type == 'cpu' else device}, "
        f"recompute {trainer.planner.memory_plan.how_computed}{f', attention {kernel}' if kernel else ''}"
    )


def batch_line(trainer: ReportedRun) -> str:
    """Return conversations per step and the token budget per micro-batch."""
    args = trainer.args
    sizes = (args.train_batch_size, args.gradient_accumulation_steps, args.data_parallel_size)
    shared = args.context_parallel_size
    of_ranks = f" on each of the {shared} ranks that share it" if shared > 1 else ""
    return (
        f"{' x '.join(map(str, sizes))} = {sizes[0] * sizes[1] * sizes[2]} conversations a step, up to "
        f"{trainer.planner.token_budget:,} tokens a micro-batch{of_ranks}"
    )


def batch_warning(trainer: ReportedRun) -> Iterator[str]:
    """Yield a warning if a step takes more conversations than the training data has."""
    args, there = trainer.args, len(trainer.train_rows)
    needed = args.train_batch_size * args.gradient_accumulation_steps * args.data_parallel_size
    if needed > there:
        yield f"a step takes {needed:,} conversations, and {there:,} are there: each step is a whole epoch"


def process_line(args: TrainingArguments) -> list[str]:
    """Return a line with the process's memory so far if training runs on a CPU, else no line.

    The peak memory in the progress bar includes this memory.
    """
    if args.device.type != "cpu":
        return []
    held = size_text(peak_memory("cpu"))
    return [f"{'the process so far':<26}{held:>12}, libraries included; code of products may add 0.1 GiB"]


def steps_line(trainer: ReportedRun) -> str:
    """Return step count and learning rate schedule."""
    args, plan = trainer.args, trainer.plan
    warmup = args.get_warmup_steps(plan.max_steps)
    return (
        f"{plan.max_steps:,} ({plan.steps_per_epoch:,} an epoch), learning rate {args.learning_rate:g}, "
        f"{args.lr_scheduler_type}, {warmup or 'no'} step{'' if warmup == 1 else 's'} of warm-up"
    )


def warmup_warning(trainer: ReportedRun) -> Iterator[str]:
    """Yield a warning if the run ends within its warm-up.

    With --max_steps, the arguments have given this warning already.
    """
    args, steps = trainer.args, trainer.plan.max_steps
    warmup = args.get_warmup_steps(steps)
    if args.max_steps <= 0 and args.warmup_steps >= 1 and warmup >= steps and warms_up(args):
        yield warmup_line(warmup, steps, args.learning_rate)


def packing_line(trainer: ReportedRun) -> str:
    """Return micro-batch count and size, the balance between ranks, and the avoided padding."""
    packed, rows = trainer.planner.packing(), trainer.train_rows
    if not rows.is_exact:
        return (
            f"rows are packed as they are read, into micro-batches of {trainer.planner.token_budget:,} tokens"
        )
    padded = packed.conversations * rows.padded_length
    ranks = trainer.args.data_parallel_size
    size = packed.tokens / max(packed.micro_batches * ranks, 1)
    batches = packed.micro_batches / max(packed.steps, 1)
    return (
        f"{batches:.3g} micro-batch{'' if batches == 1 else 'es'} a step and rank, {size:,.0f} tokens each, "
        f"balance {packed.balance:.1%}, {1 - packed.tokens / max(padded, 1):.1%} padding avoided"
    )


def reports_line(args: TrainingArguments, max_steps: int) -> str:
    """Return where the run reports to, such as trackers and loss curves; warn if no loss will be logged."""
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


def _filled(flags: list[str]) -> list[str]:
    """Join flags to lines as wide as the page; each flag stays next to its value."""
    lines: list[str] = []
    for flag in flags:
        if lines and len(lines[-1]) + 1 + len(flag) <= page_width() - 12:
            lines[-1] += f" {flag}"
        else:
            lines.append(flag)
    return lines


# Fields that the run sets itself, or that the page shows elsewhere.
_LEFT_OUT = ("logging_dir", "local_rank", "output_dir", "do_eval", "dataloader_pin_memory")


def changed_arguments(*instances: DataclassInstance) -> dict[str, Any]:
    """Return names and values of the fields that the user gave or that differ from their defaults.

    Values of secret tokens are replaced by placeholders.
    """
    changed = {}
    for instance in instances:
        usual, given = _usual(type(instance)), given_fields(instance)
        for field in dataclasses.fields(instance):
            value = getattr(instance, field.name)
            if not field.init or field.name in _LEFT_OUT:
                continue
            if field.name in given or value != usual.get(field.name):
                changed[field.name] = value
    return {
        name: f"<{name.upper()}>" if name.endswith("_token") else value for name, value in changed.items()
    }


def argument_words(changed: dict[str, Any]) -> list[str]:
    """Return a text `--name value` for each field, quoted for a shell; a list is several words.

    As in transformers, --fsdp takes its options in one word.
    """
    words = {name: _words(value) for name, value in changed.items()}
    return [
        f"--{name} {shlex.join([' '.join(several)] if name == 'fsdp' else several)}"
        for name, several in words.items()
    ]


def _usual(kind: type) -> dict[str, Any]:
    """Return each field's value in an instance that is made without arguments.

    If the class cannot be made without arguments, return the defaults in its definition.
    """
    try:
        fresh = kind()
    except (TypeError, ValueError):
        return {field.name: default_of(field) for field in dataclasses.fields(kind)}
    return {field.name: getattr(fresh, field.name) for field in dataclasses.fields(kind)}


def _words(value: object) -> list[str]:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return value or [""]
    if isinstance(value, float) and value.is_integer():
        return [f"{value:.0f}"]
    return [json.dumps(value) if isinstance(value, list | dict) else str(value)]


_UNITS = ((1e9, "B"), (1e6, "M"), (1e3, "k"))


def trained_line(model: CausalLM) -> str:
    """Return the trained parts as text, `LoRA r 8, alpha 16 on q_proj: ...` or `all 12,345 parameters`."""
    if model.adapter_facts() is None:
        return f"all {model.num_parameters():,} parameters"
    adapted = cast("AdaptedModel", model)  # only adapted models have facts
    settings, targets = adapted.settings, adapted.targets
    ranks = sorted({adapter.rank for adapter in targets.adapters})
    rank = f"{ranks[0]}" if len(ranks) == 1 else f"{ranks[0]} to {ranks[-1]}"
    trained, total = adapted.num_trained_parameters(), model.num_parameters()
    facts = [f"r {rank}", f"alpha {settings.lora_alpha:g}{' by sqrt(r)' if settings.use_rslora else ''}"]
    if settings.lora_dropout:
        facts.append(f"dropout {settings.lora_dropout:g}")
    modules = ", ".join(targets.modules)
    more = f" and {len(targets.trained)} tensors of the model" if targets.trained else ""
    counts = f"{count_text(trained)} of {count_text(total)} parameters ({100 * trained / total:.2g}%)"
    base = ", base model in 4 bits (NF4)" if adapted.four_bits else ""
    return f"LoRA {', '.join(facts)} on {modules}{more}: {counts}{base}"


def count_text(count: int) -> str:
    """Return a count as text, such as `6.7 B`, `1.2 M` or `3 k`."""
    for size, unit in _UNITS:
        if count >= size:
            return f"{count / size:.3g} {unit}" if count >= 100 * size else f"{count / size:.2g} {unit}"
    return str(count)
