"""The memory plan of the run and the memory of this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastsft.doctor.check import ExaminedRun, ProblemError
from fastsft.planning.device_memory import available_host_memory, size_text, usable_memory
from fastsft.planning.memory_plan import MemoryPlan, Workload
from fastsft.planning.plan_choice import Room, Wish, choose_plan, plan_of_run
from fastsft.reporting.plan_lines import how_held
from fastsft.runtime.place import launch

if TYPE_CHECKING:
    from fastsft.arguments import TrainingArguments


def check_memory(run: ExaminedRun) -> str:
    """As the run plans it by the records looked at; whether rows of --model_max_length fit, too."""
    model, args = run.need("model", "a readable model"), run.resolved_args
    setting, room = model.memory_setting(args), room_of(args)
    if run.rows is None or not len(run.rows):
        plan = _longest(run, room)
        return f"{_sizes(plan, room, args)}; planned for rows of --model_max_length, without the data"
    if not run.has_all_rows and not _makes_a_step(run):
        plan = _longest(run, room)
        return f"{_sizes(plan, room, args)}; planned for rows of --model_max_length"
    plan = plan_of_run(args, setting, run.rows, model.conversation_cost(), room)
    text = _sizes(plan, room, args)
    if run.has_all_rows:
        return text
    try:
        _longest(run, room)
    except ValueError as error:
        raise ProblemError(
            f"{text}; planned by the records looked at; with rows of --model_max_length: {error}",
            "lower --model_max_length, or take what would fit",
            "warning",
        ) from None
    return f"{text}; planned by the records looked at, and rows of --model_max_length fit, too"


def _makes_a_step(run: ExaminedRun) -> bool:
    """Some of the rows may be too few where all are not: --dataloader_drop_last."""
    from fastsft.planning.run_plan import RunPlan

    try:
        RunPlan.of(run.resolved_args, len(run.rows or ()))
    except ValueError:
        return False
    return True


def room_of(args: object) -> Room:
    """Of a rank on this machine, without asking the others."""
    device = str(getattr(args, "device", "cpu"))
    host = usable_memory("cpu", available_host_memory() // launch().local_world_size)
    if device == "cpu":
        return Room(host)
    import torch

    free = int(torch.cuda.mem_get_info(device)[0])
    return Room(usable_memory("cuda", free), host if getattr(args, "offload", False) else None)


def _longest(run: ExaminedRun, room: Room) -> MemoryPlan:
    args = run.resolved_args
    longest = args.model_max_length
    step = longest * args.train_batch_size * args.gradient_accumulation_steps
    wish = Wish(args.recompute_mode, args.micro_batch_tokens, longest, step, args.sync_each_batch)
    return choose_plan(
        run.opened_model.memory_setting(args),
        wish,
        lambda budget: Workload.full(max(budget, longest), longest),
        room,
    )


def _sizes(plan: MemoryPlan, room: Room, args: TrainingArguments) -> str:
    held = f"{how_held(plan.setting)}, {'CPU' if args.device.type == 'cpu' else args.device}"
    host = f" and {size_text(plan.host)} of the host" if plan.host else ""
    return (
        f"{held}, a rank takes at most {size_text(plan.total)} of {size_text(room.device)}{host}, "
        f"micro-batches of {plan.token_budget:,} tokens, recompute {plan.recompute}"
    )
