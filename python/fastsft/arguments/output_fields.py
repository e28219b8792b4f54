"""Fields of TrainingArguments for logs, checkpoints, uploads and fault handling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fastsft.arguments.for_transformers import LogLevel
from fastsft.arguments.support import ignored, rejected, several_words, supported
from fastsft.arguments.training_fields import Interval, SaveInterval

_TRACKIO = "there is no Trackio reporting"


@dataclass
class ReportArguments:
    """Logs, trackers, progress, counts, traces."""

    log_level: LogLevel = supported("passive", "Python log level of the main process")
    log_level_replica: LogLevel = supported("warning", "the same, of the others")
    log_on_each_node: bool = supported(True, "the first rank of every machine logs, or rank 0 alone")
    logging_strategy: Interval = supported("steps", "log by steps, by epochs, or not")
    logging_first_step: bool = supported(False, "also log step 1")
    logging_steps: float = supported(500, "steps between logs; a share of all steps when below 1")
    logging_nan_inf_filter: bool = supported(
        True,
        "leave a loss that is not finite out of the logged mean",
        "only a step that is skipped has one: others stop the run",
    )
    disable_tqdm: bool | None = supported(None, "plain lines instead of a bar")
    report_to: list[str] | str | None = several_words(
        supported(
            None,
            "trackers: none, tensorboard, wandb, mlflow, several of them, or all installed",
            "default: none",
        )
    )
    run_name: str | None = supported(None, "name of the run at wandb and mlflow")
    logging_dir: str | None = supported(
        None, "event files of tensorboard; default <output_dir>/runs/<date>_<host>"
    )
    project: str = ignored("huggingface", "project of Trackio", _TRACKIO)
    trackio_space_id: str | None = ignored("trackio", "space of Trackio", _TRACKIO, quiet=True)
    trackio_bucket_id: str | None = ignored(None, "bucket of Trackio", _TRACKIO)
    trackio_static_space_id: str | None = ignored(None, "static space of Trackio", _TRACKIO)
    include_tokens_per_second: bool | None = supported(False, "report train_tokens_per_second at the end")
    include_num_input_tokens_seen: str | bool = supported(False, "count tokens: all, non_padding or no")
    skip_memory_metrics: bool = ignored(
        True, "leave out the memory profiler", "no *_mem_* keys are added: memory is planned and reported"
    )
    debug: str | list[str] = rejected(
        "", "underflow_overflow, tpu_metrics_debug", "leave it unset", neutral=([], [""])
    )
    plot_loss: bool = supported(True, "loss.html in output_dir, and loss.png where matplotlib is installed")
    profile: str | None = supported(
        None, "file for a timeline of --profile_steps, for https://ui.perfetto.dev"
    )
    profile_steps: str = supported("3-5", "optimizer steps to record, from 1")


@dataclass
class CheckpointArguments:
    """Cadence, number and form of what is saved."""

    save_strategy: SaveInterval = supported(
        "steps", "save by steps, by epochs, at the best evaluation, or not"
    )
    save_steps: float = supported(500, "steps between checkpoints; a share of all steps when below 1")
    save_total_limit: int | None = supported(None, "checkpoints that are kept")
    save_safetensors: bool = supported(True, "model files are safetensors", "False raises")
    save_on_each_node: bool = supported(False, "the first rank of every node writes, whole, to its own disk")
    save_only_model: bool = supported(
        False, "checkpoints without optimizer and generators, which no run can resume"
    )
    restore_callback_states_from_checkpoint: bool = supported(
        False, "callbacks go on where the checkpoint left them"
    )
    enable_jit_checkpoint: bool = supported(
        False, "a checkpoint on SIGTERM", "always written, on SIGINT and SIGUSR1 too"
    )
    save_dtype: Literal["auto", "float32", "bfloat16"] = supported(
        "auto", "dtype of the saved model; auto is the source model's"
    )
    max_shard_size: str = supported("5GB", "largest model file, in decimal units")
    save_mode: Literal["auto", "stream", "parallel"] = supported(
        "auto", "model files: all ranks write their parts, or rank 0 writes what it gathers unit by unit"
    )
    async_save: bool = supported(True, "write checkpoints while training goes on, from a copy in host memory")
    on_save_error: Literal["stop", "continue"] = supported(
        "stop", "when a checkpoint cannot be written: end the run, or say so and go on"
    )
    save_patience: int = supported(
        600, "seconds that a run waits at its end when the disk has no room for the model; 0 not at all"
    )


HubStrategy = Literal["end", "every_save", "checkpoint", "all_checkpoints"]


@dataclass
class HubArguments:
    """Place and time of the model's uploads."""

    push_to_hub: bool = supported(False, "upload the model")
    hub_model_id: str | None = supported(None, "repository; unset: the name of output_dir")
    hub_strategy: HubStrategy = supported(
        "every_save", "upload at the end or at every save", "checkpoint and all_checkpoints raise"
    )
    hub_token: str | None = supported(None, "access token; unset: the one that is logged in")
    hub_private_repo: bool | None = supported(None, "make a private repository")
    hub_always_push: bool = supported(
        False,
        "upload every save",
        "else the newest replaces one that waits for an upload under way",
    )
    hub_revision: str | None = supported(None, "branch")
    push_to_hub_model_id: str | None = supported(None, "old name of hub_model_id")
    push_to_hub_organization: str | None = supported(None, "old form of the owner in hub_model_id")
    push_to_hub_token: str | None = supported(None, "old name of hub_token")


@dataclass
class FaultArguments:
    """Answers to steps that are not finite, loss spikes, silent faults and silence."""

    on_nonfinite: Literal["stop", "skip", "rollback"] = supported(
        "stop",
        "after a step whose loss or gradient is not finite: end the run; go on without it; or go back to the "
        "last checkpoint and leave the group out",
        "such a step changes no weight",
    )
    max_nonfinite_skips: int = supported(10, "groups that a run may leave out before it stops")
    loss_spike_factor: float = supported(
        0.0, "a step with a loss above this many times the mean of the last 32 changes no weight; 0 is off"
    )
    loss_spike_patience: int = supported(3, "spikes in a row that --on_nonfinite answers; fewer are left out")
    replay_check: int = supported(
        0, "every so many steps compute one twice and compare the bits, on all ranks; 0 is off"
    )
    phase_timeouts: str | None = supported(
        None,
        "seconds without progress after which a stuck rank ends, by phase: "
        "init=300,data=600,first_step=600,step=60,save=600,evaluation=60; unnamed: --ddp_timeout",
    )
