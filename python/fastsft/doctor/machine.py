"""Checks the machine: Python, torch, GPUs, threads, optional packages, and the memory of the run."""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
from typing import TYPE_CHECKING

from fastsft.doctor.check import ExaminedRun, ProblemError
from fastsft.lora.lighter import lighter_methods
from fastsft.planning.devices import available_host_memory, size_text, usable_memory
from fastsft.planning.memory_plan import BatchShape, MemoryPlan
from fastsft.planning.plan_choice import choose_plan, plan_run_memory
from fastsft.planning.plan_request import MemoryBudget, PlanRequest
from fastsft.reporting.plan_lines import how_held
from fastsft.runtime.cores import way_to_kernels
from fastsft.runtime.devices import architecture_list, missing_kernels
from fastsft.runtime.launch import launch, threads_per_rank

if TYPE_CHECKING:
    from fastsft.arguments import TrainingArguments

_LEAST_PYTHON = (3, 11)
_EXTRAS = {  # extra in pyproject.toml -> module and package name
    "parquet": "pyarrow", "zstd": "zstandard", "tensorboard": "tensorboard", "wandb": "wandb",
    "mlflow": "mlflow", "plot": "matplotlib", "notebook": "ipykernel", "ray": "ray",
}  # fmt: skip


def check_python() -> str:
    """Check that Python is 3.11 or newer."""
    version = f"{platform.python_version()}, {sys.executable}"
    if sys.version_info < _LEAST_PYTHON:
        raise ProblemError(f"{version}; expected 3.11 or newer", "install a newer Python")
    return version


def check_torch() -> str:
    """Check that the native core loads with the installed torch, and has CUDA kernels if torch sees a GPU."""
    import torch

    from fastsft import _C

    cuda = torch.version.cuda
    torch_cuda = f"CUDA {cuda}" if cuda else "without CUDA"
    built_for = architecture_list(_C.cuda_architectures)
    core_cuda = f"with CUDA kernels for {built_for}" if _C.with_cuda else "without CUDA kernels"
    text = f"torch {torch.__version__} ({torch_cuda}), core built with torch {_C.torch_version} {core_cuda}"
    if cuda and torch.cuda.is_available() and not _C.with_cuda:
        raise ProblemError(
            f"{text}: a GPU is here, and runs would compute on the CPU",
            way_to_kernels(torch.__version__, cuda),
            "warning",
        )
    return text


def check_gpus() -> str:
    """List the GPUs. ProblemError if the core has no kernels for a GPU."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        return "none seen: runs compute on the CPU"
    from fastsft import _C

    gpus = [torch.cuda.get_device_properties(number) for number in range(count)]
    for gpu in gpus:
        problem = missing_kernels((gpu.major, gpu.minor), _C.cuda_architectures) if _C.with_cuda else None
        if problem:
            raise ProblemError(f"{gpu.name}: {problem}", "build fastsft for this GPU")
    return ", ".join(f"{gpu.name} ({gpu.total_memory / 2**30:.0f} GiB)" for gpu in gpus)


def check_threads() -> str:
    """Check that parallel loops in the native core use all threads that a rank has."""
    from fastsft import _C

    cores, threads = len(os.sched_getaffinity(0)), threads_per_rank()
    running = int(_C.parallel_threads(threads))
    if running < threads:
        raise ProblemError(
            f"{threads} threads are asked for, {running} run",
            "the core was built without OpenMP: build it again",
            "warning",
        )
    return f"{threads} threads on {cores} cores"


def check_extras() -> str:
    """List the installed and the missing optional packages."""
    there = [name for name, module in _EXTRAS.items() if importlib.util.find_spec(module)]
    absent = {name: module for name, module in _EXTRAS.items() if name not in there}
    install = f"; absent: {', '.join(absent)} (pip install {' '.join(absent.values())})" if absent else ""
    return f"there: {', '.join(there) or 'none'}{install}"


def check_memory(run: ExaminedRun) -> str:
    """Check that the run fits into memory, as planned from the records that were read.

    If some records were not read, also report whether rows of --model_max_length tokens would fit.
    """
    model, args = run.need("model", "a readable model"), run.resolved_args
    setting, room = model.memory_setting(args), room_of(args)
    if run.rows is None or not len(run.rows):
        plan = _plan_of_longest_rows(run, room)
        return f"{_sizes(plan, room, args)}; planned for rows of --model_max_length, without the data"
    if not run.has_all_rows and not _makes_a_step(run):
        plan = _plan_of_longest_rows(run, room)
        return f"{_sizes(plan, room, args)}; planned for rows of --model_max_length"
    methods = lighter_methods(model, setting)
    plan = plan_run_memory(args, setting, run.rows, model.conversation_cost(), room, methods=methods)
    text = _sizes(plan, room, args)
    if run.has_all_rows:
        return text
    try:
        _plan_of_longest_rows(run, room)
    except ValueError as error:
        raise ProblemError(
            f"{text}; planned by the records looked at; with rows of --model_max_length: {error}",
            "lower --model_max_length, or take what would fit",
            "warning",
        ) from None
    return f"{text}; planned by the records looked at, and rows of --model_max_length fit, too"


def _makes_a_step(run: ExaminedRun) -> bool:
    """True if the rows that were read are enough for a step; with --dataloader_drop_last they may not be."""
    from fastsft.planning.run_plan import RunPlan

    try:
        RunPlan.of(run.resolved_args, len(run.rows or ()))
    except ValueError:
        return False
    return True


def room_of(args: object) -> MemoryBudget:
    """Return this rank's memory budget, without asking other ranks."""
    device = str(getattr(args, "device", "cpu"))
    host = usable_memory("cpu", available_host_memory() // launch().local_world_size)
    if device == "cpu":
        return MemoryBudget(host)
    import torch

    free = int(torch.cuda.mem_get_info(device)[0])
    return MemoryBudget(usable_memory("cuda", free), host)


def _plan_of_longest_rows(run: ExaminedRun, room: MemoryBudget) -> MemoryPlan:
    args = run.resolved_args
    max_length = args.model_max_length
    step = max_length * args.train_batch_size * args.gradient_accumulation_steps
    wish = PlanRequest(
        args.recompute_mode, args.micro_batch_tokens, max_length, step, args.sync_each_batch,
        tile_tokens=args.tile_tokens, offload_inputs=args.offload_inputs,
        keep_fp8_weights=args.keep_fp8_weights,
    )  # fmt: skip
    setting = run.opened_model.memory_setting(args)
    return choose_plan(
        setting,
        wish,
        lambda budget: BatchShape.full(max(budget, max_length), max_length),
        room,
        lighter_methods(run.opened_model, setting),
    )


def _sizes(plan: MemoryPlan, room: MemoryBudget, args: TrainingArguments) -> str:
    held = f"{how_held(plan.setting)}, {'CPU' if args.device.type == 'cpu' else args.device}"
    host = f" and {size_text(plan.host)} of the host" if plan.host else ""
    return (
        f"{held}, a rank takes at most {size_text(plan.total)} of {size_text(room.device)}{host}, "
        f"micro-batches of {plan.token_budget:,} tokens, recompute {plan.how_computed}"
    )
