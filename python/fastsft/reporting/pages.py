"""The start page and the end page of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any


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
        f"batch       {batch} = {size} conversations a step, micro-batches of {args.token_budget:,} tokens",
        f"steps       {plan.max_steps:,} ({plan.steps_per_epoch:,} an epoch), {args.lr_scheduler_type} to "
        f"{args.learning_rate:g}, {args.get_warmup_steps(plan.max_steps)} of warm-up",
        f"output      {args.output_dir}",
    ]
    return "\n".join(lines)


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
