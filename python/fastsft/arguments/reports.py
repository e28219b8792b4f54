"""Logging and reporting arguments."""

from __future__ import annotations

from dataclasses import dataclass

from fastsft.arguments.distributed_state import LogLevel
from fastsft.arguments.intervals import Interval
from fastsft.arguments.support import inert, refused, used

_TRACKIO = "there is no Trackio reporting"


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
    trackio_space_id: str | None = inert("trackio", "space of Trackio", _TRACKIO, quiet=True)
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
