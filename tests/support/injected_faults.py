"""Faults that tests put into a process: around Python functions, and around the kernels of an op.

Nothing of this is in the product. warm_program.py calls functions that take `rank` first, in every rank.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

Around = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
_libraries: list[Any] = []


def around(target: str, act: Around) -> None:
    """Replace `module:name` or `module:Class.name` by act(original, args, kwargs), for good."""
    module, _, path = target.partition(":")
    holder: Any = importlib.import_module(module)
    *outer, name = path.split(".")
    for part in outer:
        holder = getattr(holder, part)
    original = getattr(holder, name)
    is_class_method = isinstance(vars(holder).get(name), classmethod)

    def replaced(*args: Any, **kwargs: Any) -> Any:
        return act(original, args[1:] if is_class_method else args, kwargs)

    setattr(holder, name, classmethod(replaced) if is_class_method else replaced)


def around_op(op: str, act: Around) -> Any:
    """Replace the CPU kernel of torch.ops.fastsft.<op>, for the engine too, until the result is destroyed."""
    kernel = torch.library.get_kernel(f"fastsft::{op}", "CPU")
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    library = torch.library.Library("fastsft", "IMPL")

    def replaced(*args: Any, **kwargs: Any) -> Any:
        return act(lambda *a, **k: kernel.call_boxed(keys, *a, **k), args, kwargs)

    library.impl(op, replaced, "CPU", allow_override=True)
    return library


@contextlib.contextmanager
def op_fault(op: str, act: Around) -> Iterator[None]:
    """`around_op`, inside the block."""
    library = around_op(op, act)
    try:
        yield
    finally:
        library._destroy()


def at_call(number: int, act: Around) -> Around:
    """Return a function that runs `act` at call `number` (from 1), and the original at all other calls."""
    calls = [0]

    def counted(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        calls[0] += 1
        return act(original, args, kwargs) if calls[0] == number else original(*args, **kwargs)

    return counted


def all_of(rank: int, *faults: list[Any]) -> None:
    """Inject several faults, each given as the name of a function of this module and its arguments."""
    for name, *arguments in faults:
        globals()[name](rank, *arguments)


def place(
    rank: int, target: str, action: str, only_rank: int = -1, call: int = 1, seconds: float = 1.0
) -> None:
    """Do `action` when `target` (a function, or op:<name>) is called for the `call`-th time on a rank.

    action: "sleep" (prints "reached <target>" first), "fail", "kill", "freeze" (SIGSTOP), "mismatch" (a
    collective that the others do not call).
    """
    if only_rank not in (-1, rank):
        return

    def act(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        print(f"reached {target}", flush=True)
        _ACTIONS[action](seconds)
        return original(*args, **kwargs)

    if target.startswith("op:"):
        _libraries.append(around_op(target[3:], at_call(call, act)))
    else:
        around(target, at_call(call, act))


def _fail(_: float) -> None:
    raise RuntimeError("an injected fault")


def _mismatch(_: float) -> None:
    """Call a collective that the other ranks do not call."""
    import torch.distributed as dist

    dist.broadcast(torch.zeros(3), 0)


_ACTIONS: dict[str, Callable[[float], None]] = {
    "sleep": time.sleep,
    "fail": _fail,
    "kill": lambda _: os.kill(os.getpid(), signal.SIGKILL),
    "freeze": lambda _: os.kill(os.getpid(), signal.SIGSTOP),
    "mismatch": _mismatch,
}


def flip_bit(tensor: torch.Tensor, element: int, bit: int) -> None:
    """Flip one of the 32 bits of a float32 element, in place."""
    words = tensor.view(-1).view(torch.int32)
    words[element] ^= 1 << bit if bit < 31 else -(1 << 31)


def spoil_gradient(rank: int, only_rank: int, call: int, value: float) -> None:
    """Write `value` into the gradient of the embedding, at its `call`-th backward."""
    if only_rank not in (-1, rank):
        return

    def act(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        original(*args, **kwargs)
        args[2].view(-1)[0] = value

    _libraries.append(around_op("embedding_backward", at_call(call, act)))


def record(rank: int, folder: str) -> None:
    """Write down which rows every step takes, and the state as it was resumed."""
    import json
    from pathlib import Path

    steps: list[list[int]] = []

    def plan(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        made = original(*args, **kwargs)
        steps.append(sorted(int(row) for batch in made.micro_batches for row in batch))
        Path(folder, f"rows-{rank}.json").write_text(json.dumps(steps))
        return made

    def resumed(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        from fastsft import _C

        original(*args, **kwargs)
        _C.save_training_state(args[0].engine, folder)

    around("fastsft.planning.run_plan:EpochGroups.plan", plan)
    around("fastsft.trainer.resume:resume", resumed)


def flip_gradient(rank: int, only_rank: int, call: int) -> None:
    """Flip a mantissa bit of the embedding's gradient, at its `call`-th backward on one rank."""
    if rank != only_rank:
        return

    def act(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        original(*args, **kwargs)
        flip_bit(args[2], int(args[2].view(-1).abs().argmax()), 10)

    _libraries.append(around_op("embedding_backward", at_call(call, act)))


def deviate(rank: int, only_rank: int) -> None:
    """Before ranks compare what they hold, one of them holds another norm weight."""
    if rank != only_rank:
        return

    def act(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = "model.norm.weight"
        args[0].set_parameter(name, torch.zeros(args[0].parameter_shapes[name]))
        return original(*args, **kwargs)

    around("fastsft.trainer.stepper:check_replicas", act)


def flag(rank: int, only_rank: int, words: list[str]) -> None:
    """Further words on the command line of one rank."""
    import sys

    if rank == only_rank:
        sys.argv += words


def environment(rank: int, only_rank: int, variables: dict[str, str]) -> None:
    """Further variables of one rank."""
    if rank == only_rank:
        os.environ |= variables


def replace(rank: int, only_rank: int, target: str, value: Any) -> None:
    """Another value for `module:name` on one rank; a function returns it."""
    if rank != only_rank:
        return
    module, _, name = target.partition(":")
    holder = importlib.import_module(module)
    setattr(holder, name, (lambda *_: value) if callable(getattr(holder, name)) else value)


def drop_last_row(rank: int, only_rank: int) -> None:
    """One rank labels all records but the last."""
    if rank != only_rank:
        return

    def act(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        labelled = original(*args, **kwargs)
        from fastsft import _C

        fewer = _C.TokenDataset()
        for row in range(len(labelled.dataset) - 1):
            fewer.append(labelled.dataset.ids(row), labelled.dataset.learned(row))
        labelled.dataset = fewer
        return labelled

    around("fastsft.data.label_files:_label", act)


def lose_output(rank: int, kind: str) -> None:
    """Standard output and error that are closed, on a full disk, or a pipe that nobody reads any more."""
    import sys

    if kind == "closed":
        sys.stdout = sys.stderr = None  # type: ignore[assignment]
        for number in (1, 2):
            os.close(number)
        return
    read, write = os.pipe()
    os.close(read)
    full = os.open("/dev/full", os.O_WRONLY)
    for number in (1, 2):
        os.dup2(full if kind == "full" else write, number)


def stay_away(rank: int, only_rank: int) -> None:
    """One rank ends before it has met the others."""
    if rank == only_rank:
        os._exit(7)


def limit_memory(rank: int, only_rank: int, mib: int) -> None:
    """No more than `mib` MiB of further address space, on one rank or (-1) all."""
    import resource

    if only_rank in (-1, rank):
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (mib << 20),) * 2)


def others_take_the_room(rank: int) -> None:
    """What the check before the save of a model saw is gone when it writes."""
    around("fastsft.model.model_save:check_free_space", lambda original, args, kwargs: None)


def script_saves(rank: int, folder: str) -> None:
    """A script's own `trainer_save_model_safe` saves into `folder`."""
    import fastsft.train

    fastsft.train.trainer_save_model_safe = lambda trainer: trainer.save_model(folder)


def script_copies_to_full_disk(rank: int) -> None:
    """A script's own `trainer_save_model_safe` fails on rank 0 when the model is there."""
    import fastsft.train

    def save(trainer: Any) -> None:
        trainer.save_model()
        if rank == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/backup/model")

    fastsft.train.trainer_save_model_safe = save


def fail_with(rank: int, target: str, number: int, ranks: list[int]) -> None:
    """`target` (as `around` has it) raises the OSError `number` on `ranks`."""

    def act(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if rank in ranks:
            raise OSError(number, os.strerror(number))
        return original(*args, **kwargs)

    around(target, act)


def count_calls(
    rank: int, only_rank: int, folders: list[str], record: str, call: str, nth: int, fault: int, number: int
) -> None:
    """Write down what changes files below `folders` into `record`-<rank>; a fault on one rank.

    Needs call_faults.cpp (fault_sweep.py builds it) to be preloaded.
    """
    import ctypes

    library = ctypes.CDLL(None)
    place = ("\n".join(folders).encode(), f"{record}-{rank}".encode())
    library.count_calls(*place, call.encode() if rank == only_rank else b"", nth, fault, number)
