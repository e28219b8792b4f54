"""The start page and the end page of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastsft.reporting.memory_table import memory_table


def start_page(trainer: Any) -> str:
    """What is about to run: model, data, sharding, batches, steps."""
    args, plan, rows = trainer.args, trainer.plan, trainer.train_rows
    ranks = f"{args.world_size} rank{'s' if args.world_size > 1 else ''}"
    batch = f"{args.train_batch_size} x {args.gradient_accumulation_steps} x {args.world_size}"
    size = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
    lines = [
        f"model       {trainer.model.source_directory} ({trainer.model.num_parameters():,} parameters)",
        f"data        {len(rows):,} conversations, {int(rows.lengths.sum()):,} tokens, "
        f"{int(rows.target_counts.sum()):,} learned",
        f"compute     {'bfloat16 over fp32 weights' if args.bf16 else 'float32'} on the CPU, {ranks}, "
        f"{args.sharding_strategy if args.world_size > 1 else 'nothing to shard'}, "
        f"recompute {trainer.model.recompute}",
        f"batch       {batch} = {size} conversations a step, {trainer.token_budget:,} tokens a micro-batch",
        f"packing     {packing_line(trainer)}",
        f"steps       {plan.max_steps:,} ({plan.steps_per_epoch:,} an epoch), {args.lr_scheduler_type} to "
        f"{args.learning_rate:g}, {args.get_warmup_steps(plan.max_steps)} of warm-up",
        f"output      {args.output_dir}",
    ]
    if trainer.memory_plan is not None:
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
        f"{batches:.3g} micro-batches a step and rank, {size:,.0f} tokens each, "
        f"balance {packed.balance:.1%}, {1 - packed.tokens / max(padded, 1):.1%} padding avoided"
    )


def end_page(trainer: Any) -> str:
    """What was written, and how to open it."""
    directory = Path(trainer.args.output_dir)
    written = sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []
    return "\n".join(
        [
            f"saved       {directory}: {', '.join(written)}",
            f'open        transformers.AutoModelForCausalLM.from_pretrained("{directory}")',
        ]
    )
