"""Checks for overridden methods and replaced functions that fastsft would silently ignore otherwise."""

from __future__ import annotations

import sys
from types import FunctionType

from fastsft.arguments import TrainingArguments
from fastsft.arguments.resolve.training import check_best_of_command
from fastsft.originals.functions import is_written_in, plain
from fastsft.runtime.messages import warn_once
from fastsft.trainer.compat.views import ReadOnly

# Methods that a subclass may override in transformers, and that fastsft never calls.
_OF_THE_ENGINE = (
    "compute_loss", "training_step", "prediction_step", "evaluation_loop", "prediction_loop",
    "create_optimizer", "create_scheduler", "create_optimizer_and_scheduler", "get_decay_parameter_names",
    "get_optimizer_cls_and_kwargs", "autocast_smart_context_manager", "compute_loss_context_manager",
    "get_batch_samples", "_inner_training_loop", "_prepare_input", "_prepare_inputs", "_get_train_sampler",
    "_get_eval_sampler", "_wrap_model", "_maybe_log_save_evaluate", "_determine_best_metric", "_evaluate",
    "floating_point_ops", "_remove_unused_columns", "_get_collator_with_removed_columns",
    "_set_signature_columns_if_needed", "_get_dataloader", "_get_num_items_in_batch", "_activate_neftune",
    "_deactivate_neftune", "_align_special_tokens", "_move_model_to_device", "_nested_gather",
    "_gather_and_numpify", "_is_attention_mask_causal", "_prepare_context_parallel_inputs",
    "call_model_init", "create_accelerator_and_postprocess", "set_initial_training_values",
    "get_total_train_batch_size", "num_examples", "num_tokens", "store_flos", "torch_jit_model_eval",
    "propagate_args_to_deepspeed", "_get_learning_rate", "get_tp_size", "_hp_search_setup",
    "_report_to_hp_search", "_fsdp_qlora_plugin_updates",
)  # fmt: skip
_OF_FILES = (
    "_save", "_save_checkpoint", "_load_best_model", "_load_from_checkpoint", "_rotate_checkpoints",
    "_sorted_checkpoints", "_get_output_dir", "_save_optimizer_and_scheduler",
    "_load_optimizer_and_scheduler", "_save_rng_state", "_load_rng_state", "_save_scaler", "_load_scaler",
    "_load_callback_state", "_push_from_checkpoint", "init_hf_repo", "compare_trainer_and_checkpoint_args",
    "_finish_current_push", "_tune_save_checkpoint", "_issue_warnings_after_load", "_save_tpu",
    "_add_sm_patterns_to_gitignore",
)  # fmt: skip
_LOADERS = ("get_train_dataloader", "get_eval_dataloader", "get_test_dataloader")
# If a subclass overrides one of these methods, it may evaluate during `train()`.
_OF_EVALUATION = ("__init__", "train", "evaluate", "log", "add_callback")
_STEP = "the step is the engine's"
# Attributes that transformers' Trainer reads in a training step.
_READ_BY_THE_STEP = (
    "label_smoother", "model_accepts_loss_kwargs", "_signature_columns", "neftune_noise_alpha", "label_names",
    "_train_batch_size", "gather_function",
)  # fmt: skip
# Further attributes that transformers' Trainer reads in a step. Here they are None unless a script sets them.
_NONE_OF_THE_STEP = (
    "model_init",
    "compute_loss_func",
    "optimizer_cls_and_kwargs",
    "optimizer",
    "lr_scheduler",
)
# Method names, the reason why fastsft does not call the methods, and advice.
_NEVER_CALLED = (
    (_OF_THE_ENGINE, _STEP, "loss, optimizer and schedule are chosen by the arguments"),
    (_LOADERS, _STEP, "give the rows as train_dataset and eval_dataset"),
    (_OF_FILES, "checkpoints are fastsft's own", "a callback's on_save hears of each"),
)
_SET_BY_SCRIPTS = frozenset(
    (*_OF_THE_ENGINE, *_LOADERS, *_OF_FILES, *_READ_BY_THE_STEP, *_NONE_OF_THE_STEP)
)  # fmt: skip


def check_best_of_run(trainer_class: type, args: TrainingArguments, has_data: bool) -> None:
    """Raise ValueError if the flags ask for a best model that the run cannot find (`check_best_of_command`).

    Nothing is checked if a script wrote or changed `trainer_class`, since such a class may evaluate by
    itself.
    """
    own = trainer_class.__module__.startswith("fastsft.")
    if own and not any(_is_foreign(trainer_class, name) for name in _OF_EVALUATION):
        check_best_of_command(args, has_data)


def check_own_step(trainer: object, **given: object) -> None:
    """Raise ValueError for overridden methods and arguments that the engine would silently ignore.

    trainer: rejected if a subclass or a script has replaced a method that the engine never calls. given:
    arguments of transformers' Trainer that must be None.
    """
    kind = type(trainer).__name__
    for names, whose, instead in _NEVER_CALLED:
        for name in names:
            if _is_foreign(trainer, name):
                raise ValueError(
                    f"{kind}.{name} would never be called: {whose}; {instead}, or train with "
                    "transformers' Trainer"
                )
    if _is_foreign(trainer, "save_model"):
        warn_once(
            f"{kind}.save_model: checkpoints do not go through it, only the calls of your script; "
            "a callback's on_save hears of each checkpoint"
        )
    for name in _READ_BY_THE_STEP:
        holder = next((each for each in (trainer, *type(trainer).__mro__) if name in vars(each)), None)
        if holder is not None:
            owner = holder.__qualname__ if isinstance(holder, type) else "Trainer"
            raise ValueError(
                f"{owner}.{name} was set by the script, and nothing reads it here: {_STEP}; leave it out; "
                "use arguments (per_device_train_batch_size, label_smoothing_factor, neftune_noise_alpha, "
                "loss_norm, remove_unused_columns) and the key labels of the rows"
            )
    for name, value in given.items():
        if value is not None and not isinstance(value, ReadOnly) and value != (None, None):
            raise ValueError(
                f"Trainer: {name} has no place here: the step is the engine's; leave it out (the model is "
                "given itself or as its directory; loss, optimizer and schedule by the arguments)"
            )


def check_again(trainer: object, **given: object) -> None:
    """Repeat `check_own_step` at the start of train() and during it. given: arguments that must be None."""
    check_own_step(trainer, **given, **{name: getattr(trainer, name) for name in _NONE_OF_THE_STEP})


def has_own_names(trainer: object) -> bool:
    """True if the instance itself, and not its class, has an attribute that `check_again` checks."""
    return not _SET_BY_SCRIPTS.isdisjoint(vars(trainer))


def names_of_classes(trainer: object) -> list[tuple[str, int]]:
    """Return (name, id) of all checked attributes of the Trainer's classes, to detect replacements."""
    kinds = [vars(kind) for kind in type(trainer).__mro__]
    return [(name, id(kind[name])) for kind in kinds for name in _SET_BY_SCRIPTS.intersection(kind)]


def check_autocast() -> None:
    """Raise ValueError inside torch.autocast, which has no effect on the engine."""
    import torch

    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            raise ValueError(
                f"Trainer.train: torch.autocast is on for {device}, which has no effect on the engine; leave "
                "it out, and use --bf16 True"
            )


def check_patched_trainer() -> None:
    """Raise ValueError if a script has replaced a step method of the class transformers.Trainer."""
    trainer = getattr(sys.modules.get("transformers.trainer"), "Trainer", None)
    for name in (*_OF_THE_ENGINE, *_LOADERS) if trainer is not None else ():
        value = vars(trainer).get(name)
        if isinstance(plain(value), FunctionType) and not is_written_in(value, "transformers"):
            raise ValueError(
                f"transformers.Trainer.{name} was replaced by {plain(value).__module__}."
                f"{plain(value).__qualname__}, which has no effect on fastsft's Trainer: {_STEP}; take the "
                "patch away, or train with transformers' Trainer"
            )


def saves_in_own_way(trainer: object) -> bool:
    """True if a script has replaced or overridden `save_model`."""
    return _is_foreign(trainer, "save_model")


def _is_foreign(trainer: object, name: str) -> bool:
    """True if the method's code is not from fastsft.

    The check looks at the function's globals, because `functools.wraps` copies names such as __module__.
    """
    found = getattr(trainer, name, None)
    function = getattr(found, "__func__", found)
    home = getattr(function, "__globals__", {}).get("__name__", "")
    return found is not None and not str(home).startswith("fastsft.")
