"""What the ranks of a test of saving do; every function runs on all of them and returns plain data."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from fastsft.weight_sync import CheckpointCoordinator, fsdp_save_state_dict
from weight_sync_parts.modules import make_engine, make_model, state_of_model, train, wrap

LOGGER = logging.getLogger("test")
FORMATS = ("verl_pt", "hf", "native")
KINDS = ("plain", "ddp", "fsdp1", "fsdp1_orig", "fsdp2")


def everything(_: Any, folder: str, kinds: tuple[str, ...] = KINDS) -> dict[str, Any]:
    """Every wrapper, tied or not, in every format: the states that were frozen before."""
    outcome: dict[str, Any] = {}
    for kind in kinds:
        for tied in (False, True):
            model = make_model(tied)
            expected = state_of_model(model)
            engine = make_engine(wrap(model, kind), kind)
            coordinator = CheckpointCoordinator()
            for name in FORMATS:
                path = str(Path(folder, f"{kind}-{tied}-{name}", "actor"))
                fsdp_save_state_dict(engine, path, 0, coordinator, LOGGER, format=name)
            coordinator.wait_all()
            outcome[f"{kind}-{tied}"] = expected
    return outcome


def faults(_: Any, folder: str) -> dict[str, Any]:
    """A failing rank, and what each rank hears of it; the same step twice, in two formats."""
    import fastsft.weight_sync.verl_pt as verl_pt

    rank, heard = dist.get_rank(), []
    engine = make_engine(wrap(make_model(False), "fsdp2"), "fsdp2")
    coordinator = CheckpointCoordinator()
    path = str(Path(folder, "global_step_1", "actor"))
    write = verl_pt.VerlPt.write

    def broken(self: Any, directory: Path, tag: str, snapshot: Any) -> Any:
        write(self, directory, tag, snapshot)
        raise OSError("No space left on device")

    if rank == 1:
        verl_pt.VerlPt.write = broken  # type: ignore[method-assign]
    fsdp_save_state_dict(engine, path, 1, coordinator, LOGGER)
    try:
        coordinator.wait_all()
    except RuntimeError as error:
        heard.append(str(error))
    dist.barrier()
    left = sorted(p.name for p in Path(path).glob("*"))
    dist.barrier()
    fsdp_save_state_dict(engine, path, 1, coordinator, LOGGER)
    try:  # started all the same, and fails again
        ticket = fsdp_save_state_dict(engine, path, 1, coordinator, LOGGER, format="native")
    except RuntimeError as error:
        heard.append(str(error))
    verl_pt.VerlPt.write = write  # type: ignore[method-assign]
    coordinator.wait_all()
    dist.barrier()  # rank 0 lets go of the directory after its files are there
    after_native = sorted(p.name for p in Path(path).glob("*"))
    dist.barrier()
    ticket = fsdp_save_state_dict(engine, path, 1, coordinator, LOGGER, format="verl_pt")
    assert ticket is not None
    ticket.wait()
    dist.barrier()
    return {
        "heard": heard,
        "left": left,
        "native": after_native,
        "again": sorted(p.name for p in Path(path).glob("*")),
    }


def refused(_: Any, folder: str) -> tuple[str, str]:
    """Rank 0's monitor lets nobody write: what the ticket and `wait_all` of each rank say."""

    class Monitor:
        def notify_started(self, **_: Any) -> None:
            raise OSError("actor died")

    engine = make_engine(wrap(make_model(False), "fsdp2"), "fsdp2")
    coordinator = CheckpointCoordinator(Monitor() if dist.get_rank() == 0 else None)
    ticket = fsdp_save_state_dict(engine, str(Path(folder, "refused")), 1, coordinator, LOGGER)
    assert ticket is not None
    return heard(lambda: ticket.wait(60)), heard(lambda: coordinator.wait_all(60))


def heard(wait: Callable[[], None]) -> str:
    """What a wait raises."""
    try:
        wait()
    except (OSError, RuntimeError) as error:
        return str(error)
    return "nothing"


def apart(_: Any, folder: str) -> str:
    """A configuration that ties, and a module that does not: refused where the values differ."""
    model = make_model(True, apart=True)
    engine = make_engine(wrap(model, "fsdp2"), "fsdp2")
    coordinator = CheckpointCoordinator()
    fsdp_save_state_dict(engine, str(Path(folder, "apart")), 1, coordinator, LOGGER)
    try:
        coordinator.wait_all()
    except RuntimeError as error:
        return str(error)
    return "saved"


def silent(_: Any, folder: str) -> str:
    """Rank 1 dies before it writes; rank 0 hears of it within the deadline."""
    import fastsft.weight_sync.save_job as save_job

    engine = make_engine(wrap(make_model(False), "fsdp2"), "fsdp2")
    coordinator = CheckpointCoordinator()
    run = save_job.SaveJob.run
    if dist.get_rank() == 1:
        save_job.SaveJob.run = lambda self: None  # type: ignore[method-assign]
    path = str(Path(folder, "silent"))
    fsdp_save_state_dict(engine, path, 1, coordinator, LOGGER, deadline_s=1.0)
    message = "saved"
    try:
        coordinator.wait_all()
    except RuntimeError as error:
        message = str(error)
    save_job.SaveJob.run = run  # type: ignore[method-assign]
    dist.barrier()
    fsdp_save_state_dict(engine, path, 1, coordinator, LOGGER, deadline_s=60.0)
    coordinator.wait_all()
    return message


def race(_: Any, folder: str, times: int) -> list[tuple[dict[str, Any], str]]:
    """Optimizer steps while the weights of the step before are written."""
    module = wrap(make_model(False, rows=4096), "fsdp2")
    engine = make_engine(module, "fsdp2")
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
    coordinator = CheckpointCoordinator()
    frozen = []
    for step in range(1, times + 1):
        train(module, optimizer, step, rows=4096)
        whole = {name: full(tensor).clone() for name, tensor in module.state_dict().items()}
        path = str(Path(folder, f"race_{step}"))
        ticket = fsdp_save_state_dict(engine, path, step, coordinator, LOGGER, format=FORMATS[step % 3])
        assert ticket is not None
        seed = 1000 * step
        train(module, optimizer, seed, rows=4096)
        while not ticket.done():
            for parameter in module.parameters():
                with torch.no_grad():
                    parameter.to_local().mul_(-1.0)
        frozen.append((whole, path))
        dist.barrier()
    coordinator.wait_all()
    return frozen if dist.get_rank() == 0 else []


def full(tensor: Any) -> torch.Tensor:
    value = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return value.detach()


def original_tears(_: Any, folder: str) -> str:
    """The original's way with FSDP2: `model.state_dict()` here, `torch.save` on a thread."""
    import threading

    module = wrap(make_model(False), "fsdp2")
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    state = module.state_dict()
    frozen = {name: full(tensor).clone() for name, tensor in state.items()}
    path, stepped = Path(folder, f"original_{dist.get_rank()}.pt"), threading.Event()

    def write() -> None:
        stepped.wait(30)  # the thread gets its turn after the optimizer did
        torch.save(state, path)

    thread = threading.Thread(target=write)
    thread.start()
    train(module, optimizer, 1)
    stepped.set()
    thread.join(60)
    written = torch.load(path, weights_only=False)
    local = {
        name: torch.chunk(tensor, 2)[dist.get_rank()] for name, tensor in frozen.items() if tensor.dim() == 2
    }
    torn = [name for name, rows in local.items() if not torch.equal(written[name]._local_tensor, rows)]
    return "another step's values" if torn else "a frozen copy"
