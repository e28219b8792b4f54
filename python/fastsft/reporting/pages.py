"""The start page and the end page of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastsft.reporting.memory_table import how_held, memory_table


def start_page(trainer: Any) -> str:
    """What is about to run: model, data, sharding, batches, steps."""
    args, plan, rows = trainer.args, trainer.plan, trainer.train_rows
    batch = f"{args.train_batch_size} x {args.gradient_accumulation_steps} x {args.world_size}"
    warmup = args.get_warmup_steps(plan.max_steps)
    size = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
    lines = [
        f"model       {trainer.model.source_directory} ({trainer.model.num_parameters():,} parameters)",
        f"data        {len(rows):,} conversations, {int(rows.lengths.sum()):,} tokens, "
        f"{int(rows.target_counts.sum()):,} learned",
        f"compute     {how_held(trainer.memory_plan.setting)}, "
        f"{'CPU' if args.device == 'cpu' else args.device}, recompute {trainer.model.recompute}",
        f"batch       {batch} = {size} conversations a step, up to "
        f"{trainer.token_budget:,} tokens a micro-batch",
        f"packing     {packing_line(trainer)}",
        f"steps       {plan.max_steps:,} ({plan.steps_per_epoch:,} an epoch), {args.lr_scheduler_type} to "
        f"{args.learning_rate:g}, {warmup or 'no'} step{'' if warmup == 1 else 's'} of warm-up",
        f"output      {args.output_dir}",
    ]
    table = memory_table(trainer.memory_plan, trainer.memory)
    lines += [f"{'memory' if number == 0 else '':<12}{line}" for number, line in enumerate(table)]
    return "\n".join(lines)


def packing_line(trainer: Any) -> str:
    """Micro-batches, their size, how evenly ranks work, and what padding would have added."""
    packed, rows = trainer.packing(), trainer.train_rows
    padded = packed.conversations * rows.padded_length
    ranks = trainer.args.world_size
    size = packed.tokens / max(packed.micro_batches * ranks, 1)
    batches = packed.micro_batches / max(packed.steps, 1)
    return (
        f"{batches:.3g} micro-batch{'' if batches == 1 else 'es'} a step and rank, {size:,.0f} tokens each, "
        f"balance {packed.balance:.1%}, {1 - packed.tokens / max(padded, 1):.1%} padding avoided"
    )


def end_page(trainer: Any) -> str:
    """What was written, and how to open it."""
    directory = Path(trainer.args.output_dir)
    written = (
        sorted(path.name for path in directory.iterdir() if path.name[0] != ".") if directory.is_dir() else []
    )
    return "\n".join(
        [
            f"saved       {directory}: {', '.join(written)}",
            f'open        transformers.AutoModelForCausalLM.from_pretrained("{directory}")',
        ]
    )
