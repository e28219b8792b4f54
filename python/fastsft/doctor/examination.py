"""All checks in their order; one that throws is a failed one, and the others still run."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Collection, Iterator

from fastsft.doctor import (
    communication,
    configuration,
    conversations,
    disk,
    installation,
    memory,
    model_files,
)
from fastsft.doctor.result import FAILED, OK, UNCHECKED, WARNING, NotCheckedError, ProblemError, Result
from fastsft.doctor.run import Run, as_first_of
from fastsft.runtime.launch import launch
from fastsft.runtime.messages import Notices, collected

# name -> (check, the way out where its error names none)
OF_INSTALLATION: dict[str, tuple[Callable[[], str], str]] = {
    "python": (installation.check_python, ""),
    "torch": (installation.check_torch, ""),
    "GPUs": (installation.check_gpus, "look at nvidia-smi and CUDA_VISIBLE_DEVICES"),
    "threads": (installation.check_threads, ""),
    "extras": (installation.check_extras, ""),
}
OF_RUN: dict[str, tuple[Callable[[Run], str], str]] = {
    "configuration": (configuration.check_configuration, ""),
    "model": (model_files.check_model, "name a Hugging Face model directory of a supported family"),
    "weights": (model_files.check_weights, "copy or download the weights again"),
    "tokenizer": (model_files.check_tokenizer_files, "copy or download the tokenizer's files again"),
    "template": (model_files.check_chat_template, "name a --template that fits the tokenizer"),
    "data": (conversations.check_data, "fastsft inspect shows the records"),
    "eval data": (conversations.check_eval_data, "fastsft inspect shows the records"),
    "output": (disk.check_output, "choose another --output_dir"),
    "checkpoints": (disk.check_checkpoints, "start from step 0 with --no_resume True"),
    "disk space": (disk.check_space, "choose another --output_dir"),
    "disk rate": (disk.check_write_rate, "choose another --output_dir"),
    "memory": (memory.check_memory, "fastsft plan shows the parts"),
    "communication": (
        communication.check_communication,
        "start the ranks again, and look at the first error",
    ),
}


def examine_installation(skip: Collection[str] = ()) -> Iterator[Result]:
    """One result a check, as they come."""
    for name, (check, way_out) in OF_INSTALLATION.items():
        if name not in skip:
            yield examined(name, check, way_out)


def examine_run(run: Run, skip: Collection[str] = ()) -> Iterator[Result]:
    """One result a check, as they come. Under a launcher every rank calls it, and the ranks meet first."""
    done: dict[str, Result] = {}
    if launch().world_size > 1 and "communication" not in skip:
        check, way_out = OF_RUN["configuration"]
        first = examined("configuration", lambda: check(run), way_out)
        talk, out = OF_RUN["communication"]
        done = {"configuration": first, "communication": examined("communication", lambda: talk(run), out)}
    for name, (look, way_out) in OF_RUN.items():
        if name == "configuration" or name not in skip:
            yield done.get(name) or _of_run(name, look, way_out, run)


def _of_run(name: str, check: Callable[[Run], str], way_out: str, run: Run) -> Result:
    alone = contextlib.nullcontext() if name == "communication" else as_first_of(run.ranks)
    with alone:
        return examined(name, lambda: check(run), way_out)


def examined(name: str, check: Callable[[], str], way_out: str) -> Result:
    """The result of one check, whatever it raises; what it warns of is a warning."""
    with collected() as notices, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", UserWarning)
        try:
            mark, found, out = OK, check(), ""
        except NotCheckedError as error:
            mark, found, out = UNCHECKED, str(error), ""
        except ProblemError as error:
            mark, found, out = error.mark, str(error), error.way_out or way_out
        except Exception as error:
            mark, found, out = FAILED, _message(error), way_out
    notices.warned += [str(each.message) for each in warned if issubclass(each.category, UserWarning)]
    return _with_notices(Result(name, mark, found, out), notices)


def _message(error: Exception) -> str:
    named = isinstance(error, ValueError | RuntimeError) and str(error)
    return str(error) if named else f"{type(error).__name__}: {error}"


def _with_notices(result: Result, notices: Notices) -> Result:
    lines = [result.found, *notices.told, *notices.warned]
    mark = WARNING if result.mark == OK and notices.warned else result.mark
    return Result(result.name, mark, "\n".join(lines), result.way_out)
