"""When and where a run says how it goes."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from fastsft.arguments.cadence import Interval, settle_cadence
from fastsft.arguments.meaning import inert, refused, used
from fastsft.arguments.place import LogLevel
from fastsft.profile import parse_steps

if TYPE_CHECKING:
    from fastsft.arguments.training import TrainingArguments

_TRACKIO = "there is no Trackio reporting"
_COUNTING = {"all": "all", "non_padding": "non_padding", "true": "all", "no": "no", "false": "no"}


@dataclass
class ReportArguments:
    """Logs, trackers, progress, counts, traces."""

    log_level: LogLevel = used("passive", "Python log level of the main process")
    log_level_replica: LogLevel = used("warning", "the same, of the others")
    log_on_each_node: bool = used(True, "the first rank of every machine logs, or rank 0 alone")
    logging_strategy: Interval = used("steps", "log by steps, by epochs, or not")
    logging_first_step: bool = used(False, "also log step 1")
    logging_steps: float = used(500, "steps between logs; a share of all steps when below 1")
    logging_nan_inf_filter: bool = used(
        True,
        "leave a loss that is not finite out of the logged mean",
        "only a step that is skipped has one: others stop the run",
    )
    disable_tqdm: bool | None = used(None, "plain lines instead of a bar")
    report_to: list[str] | str | None = used(
        None, "trackers: none, tensorboard, wandb, mlflow, or all that are installed", "default: none"
    )
    run_name: str | None = used(None, "name of the run at wandb and mlflow")
    logging_dir: str | None = used(
        None, "event files of tensorboard; default <output_dir>/runs/<date>_<host>"
    )
    project: str = inert("huggingface", "project of Trackio", _TRACKIO)
    trackio_space_id: str | None = inert("trackio", "space of Trackio", _TRACKIO)
    trackio_bucket_id: str | None = inert(None, "bucket of Trackio", _TRACKIO)
    trackio_static_space_id: str | None = inert(None, "static space of Trackio", _TRACKIO)
    include_tokens_per_second: bool | None = used(False, "report train_tokens_per_second at the end")
    include_num_input_tokens_seen: str | bool = used(False, "count tokens: all, non_padding or no")
    skip_memory_metrics: bool = inert(
        True, "leave out the memory profiler", "no *_mem_* keys are added: memory is planned and reported"
    )
    debug: str | list[str] = refused(
        "", "underflow_overflow, tpu_metrics_debug", "leave it unset", neutral=([], [""])
    )
    plot_loss: bool = used(True, "loss.html in output_dir, and loss.png where matplotlib is installed")
    profile: str | None = used(None, "file for a timeline of --profile_steps, for https://ui.perfetto.dev")
    profile_steps: str = used("3-5", "optimizer steps to record, from 1")


def settle_reports(args: TrainingArguments) -> None:
    """Trackers as a list; logging by steps has a cadence; what is counted."""
    # A tracker is a callback, and callbacks name the class of the arguments.
    from fastsft.reporting.trackers.registry import resolve_trackers

    parse_steps(args.profile_steps)
    args.debug = []
    if args.disable_tqdm is None:
        args.disable_tqdm = False
    args.report_to = resolve_trackers(args.report_to)
    args.logging_dir = os.path.expanduser(args.logging_dir or default_logging_dir(args.output_dir or "."))
    if args.logging_strategy == "steps" and args.logging_steps == 0:
        raise ValueError(
            "--logging_strategy steps needs --logging_steps above 0; --logging_strategy no logs nothing"
        )
    settle_cadence(args, "logging")
    _settle_counting(args)


def default_logging_dir(output_dir: str) -> str:
    """TENSORBOARD_LOGGING_DIR, or <output_dir>/runs/<date>_<host> as transformers 4.57 names it."""
    stamp = datetime.now().strftime("%b%d_%H-%M-%S")
    own = str(Path(output_dir) / "runs" / f"{stamp}_{socket.gethostname()}")
    return os.environ.get("TENSORBOARD_LOGGING_DIR") or own


def _settle_counting(args: TrainingArguments) -> None:
    given = str(args.include_num_input_tokens_seen).lower()
    if given not in _COUNTING:
        raise ValueError(
            "--include_num_input_tokens_seen: expected all, non_padding, no or a boolean, got "
            f"{args.include_num_input_tokens_seen!r}"
        )
    args.include_num_input_tokens_seen = _COUNTING[given]
