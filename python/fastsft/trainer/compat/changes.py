"""Changes that a script makes to arguments, working directory or model between two calls of a Trainer."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from fastsft.arguments.device_fields import STATE_FLAGS
from fastsft.arguments.fp8 import FP8_FLAGS
from fastsft.arguments.from_transformers import as_arguments, sync_from_source
from fastsft.arguments.values import is_same
from fastsft.model.output_directory import prepare_output_directory
from fastsft.originals.trainer_patches import check_patched_functions
from fastsft.trainer.agreed_inputs import agree_on_start, callback_facts
from fastsft.trainer.compat.accelerator import check_accelerate_state
from fastsft.trainer.preflight import check_metrics

if TYPE_CHECKING:
    from fastsft.trainer.planner import Planner
    from fastsft.trainer.setup import Setup

# Arguments that cannot change after the constructor: engine, process groups, rows or trackers depend on them.
_READ_BY_CONSTRUCTOR = (
    "use_cpu", "no_cuda", "engine", "bf16", "fp16", "tf32", "full_determinism", "recompute",
    "attention_kernel", *STATE_FLAGS, *FP8_FLAGS, "keep_fp8_weights",
    "sync_each_batch", "tile_tokens", "offload_inputs",
    "model_max_length",
    "fsdp", "fsdp_config", "deepspeed", "ddp_backend", "ddp_timeout",
    "report_to", "run_name", "early_stopping_patience", "early_stopping_threshold",
    "sample_prompts",
    "push_to_hub", "include_num_input_tokens_seen",
)  # fmt: skip
_READ_BY_UPLOADS = ("hub_model_id", "hub_private_repo", "hub_revision")
_PATHS = ("output_dir", "logging_dir", "profile")


class Changes:
    """The comparison of the current arguments with the values at planning; a change causes a new plan."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._planned: dict[str, Any] = {}
        self._started_in = _working_directory()

    def note_planned(self) -> None:
        """Remember the current argument values, with which steps and memory have been planned."""
        self._planned = self._setup.args.resolved_values()

    def keep_paths(self) -> None:
        """Make relative paths of the arguments absolute after the script has called os.chdir.

        The paths are relative to the directory in which the Trainer was made. Paths that were set after that
        are not changed.
        """
        if self._started_in is None or _working_directory() == self._started_in:
            return
        args = self._setup.args
        for name in _PATHS:
            path = getattr(args, name, None)
            if isinstance(path, str) and not os.path.isabs(path) and path == self._planned.get(name, path):
                absolute = os.path.join(self._started_in, path)
                setattr(args, name, absolute)
                if name in self._planned:
                    self._planned[name] = absolute

    def follow(self, method: str, planner: Planner, callbacks: list[Any], **given: object) -> None:
        """Check a script's changes since the last call, and plan again if arguments have changed. Collective.

        method: name of the called Trainer method. given: arguments of this call that must be equal on all
        ranks. ValueError for values that the constructor rejects, for changed fields on which the engine
        depends, and if ranks differ.
        """
        setup, args = self._setup, self._setup.args
        sync_from_source(args)
        facts = {f"{method}({name}=)": value for name, value in given.items()}
        if method == "train":
            facts["torch.manual_seed"] = args.order_seed
        agree_on_start(args, **facts, **callback_facts(callbacks))
        if setup.train_dataset is not None:
            planner.compare_rows()
        as_arguments(args)
        self.check_libraries(f"Trainer.{method}", training=method == "train")
        self.keep_paths()
        setup.model.check_as_given(f"Trainer.{method}", method == "train")
        setup.model.load_changed_weights()
        values = args.resolved_values()
        changed = [name for name in values if not is_same(values[name], self._planned[name])]
        self._refuse_constructed(method, changed, values)
        check_metrics(args, setup.compute_metrics)
        if not changed:
            return
        if "output_dir" in changed:
            prepare_output_directory(setup.model.source_directory, args.output_dir or ".")
        if setup.train_dataset is not None:
            planner.plan_again(planner.rows)
        self._planned = values

    def _refuse_constructed(self, method: str, changed: list[str], values: dict[str, Any]) -> None:
        uploads = _READ_BY_UPLOADS if self._planned["push_to_hub"] else ()
        fixed = [f"{name} from {self._planned[name]!r} to {values[name]!r}"
                 for name in changed if name in (*_READ_BY_CONSTRUCTOR, *uploads)]  # fmt: skip
        if fixed:
            raise ValueError(
                f"Trainer.{method}: args changed after the Trainer was made: {', '.join(fixed)}; its engine "
                "is made for the old values: set them back, or change them before Trainer(args=...)"
            )

    def check_libraries(self, caller: str, *, training: bool) -> None:
        """Raise ValueError if a script has replaced library functions that transformers' Trainer would call.

        fastsft does not call these functions, so the replacement would have no effect.
        """
        args, has_collator = self._setup.args, self._setup.data_collator is not None
        if training:
            check_accelerate_state(args, caller)
        check_patched_functions(args, caller, training=training, has_collator=has_collator)


def _working_directory() -> str | None:
    """Return the working directory; None if it was removed."""
    try:
        return os.getcwd()
    except OSError:
        return None
