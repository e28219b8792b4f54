"""Finds replaced library functions and classes that transformers' Trainer calls, but fastsft's does not.

A replacement would change the training by transformers' Trainer, but not by fastsft's, so it is an error.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import NamedTuple, Protocol

from fastsft.originals.classes import replaced_methods, replaces_nothing
from fastsft.originals.functions import functions_inside, is_written_in, plain, uncompiled
from fastsft.originals.snapshots import WatchedNames
from fastsft.originals.source import source_of
from fastsft.runtime.versions import KERNELS_OF_TORCH

_MAX_LAYERS = 8
# Files that load batches and compute a step; the modules that they import are also checked.
_OF_MODULES = (
    "transformers.trainer", "transformers.trainer_pt_utils", "transformers.trainer_utils",
    "transformers.optimization", "transformers.data.data_collator", "accelerate.accelerator",
    "accelerate.data_loader", "accelerate.optimizer", "accelerate.scheduler",
)  # fmt: skip


class _Functions(NamedTuple):
    """Functions that a script must not replace.

    instead: what the script can do instead. place: module in which they are called. package: package whose
    files define them. names: their names in `place`.
    """

    instead: str
    place: str
    package: str
    names: tuple[str, ...]


class _Class(NamedTuple):
    """A class that a script must not change.

    instead: what the script can do instead. place, name: the class's module and name. harmless: name prefixes
    of methods that may be replaced.
    """

    instead: str
    place: str
    name: str
    harmless: tuple[str, ...] = ()


_RATES = "the rates are those of lr_scheduler_type, lr_scheduler_kwargs and warmup_steps"
_SEED = "give seed, data_seed and full_determinism as arguments"
_READING = "give the rows in their order as train_dataset, with train_sampling_strategy sequential"
_STEP = (
    "give max_grad_norm, learning_rate, weight_decay, adam_beta1, adam_beta2 and adam_epsilon as arguments"
)
_EVENTS = "give a callback as Trainer(callbacks=[...])"
_COLUMNS = "give remove_unused_columns False, and leave columns out in the data set or a data_collator"
_ROWS = "give the function as Trainer(data_collator=...)"

_LOADING = (
    _Functions(_READING, "transformers.trainer", "torch",
               ("DataLoader", "DataLoader.__iter__", "DataLoader.__init__", "SequentialSampler",
                "SequentialSampler.__iter__")),
    # Accelerate prepares only this class's loaders.
    _Functions(_READING, "torch.utils.data", "torch", ("DataLoader",)),
    _Functions(_READING, "transformers.trainer", "transformers", ("seed_worker",)),
    _Functions(_READING, "torch.utils.data._utils.fetch", "torch",
               ("_MapDatasetFetcher", "_MapDatasetFetcher.fetch")),
    _Functions(_READING, "torch.utils.data.dataloader", "torch",
               ("_BaseDataLoaderIter.__next__", "_SingleProcessDataLoaderIter._next_data")),
    _Functions(_READING, "accelerate.data_loader", "accelerate",
               ("prepare_data_loader", "send_to_device", "BatchSamplerShard.__iter__",
                "DataLoaderShard.__iter__", "SeedableRandomSampler")),
    _Functions(_COLUMNS, "transformers.trainer", "transformers", ("RemoveColumnsCollator",)),
)  # fmt: skip
_COLLATING = (
    _Functions(_ROWS, "transformers.trainer", "transformers",
               ("default_data_collator", "DataCollatorWithPadding", "DataCollatorWithPadding.__call__")),
    _Functions(_ROWS, "transformers.data.data_collator", "transformers",
               ("torch_default_data_collator", "pad_without_fast_tokenizer_warning")),
)  # fmt: skip
_TRAINING = (
    _Functions(_SEED, "transformers.trainer", "transformers", ("set_seed", "enable_full_determinism")),
    _Functions(_RATES, "transformers.trainer", "transformers", ("get_scheduler",)),
    _Functions(_RATES, "transformers.optimization", "torch", ("LambdaLR",)),
    _Functions(_RATES, "accelerate.scheduler", "accelerate", ("AcceleratedScheduler.step",)),
    _Functions(_READING, "transformers.trainer", "torch", ("RandomSampler", "RandomSampler.__iter__")),
    _Functions(_READING, "transformers.trainer", "transformers",
               ("LengthGroupedSampler", "LengthGroupedSampler.__iter__")),
    _Functions(_READING, "transformers.trainer_pt_utils", "transformers", ("get_length_grouped_indices",)),
    _Functions(_EVENTS, "transformers.trainer_callback", "transformers",
               ("DefaultFlowCallback.on_step_end", "DefaultFlowCallback.on_epoch_end")),
    _Functions(_STEP, "transformers.trainer", "transformers",
               ("get_parameter_names", "LabelSmoother", "LabelSmoother.__call__")),
    _Functions(_STEP, "transformers.trainer", "accelerate", ("Accelerator",)),
    _Functions(_STEP, "accelerate.accelerator", "accelerate",
               ("Accelerator.clip_grad_norm_", "Accelerator.backward")),
    _Functions(_STEP, "accelerate.optimizer", "accelerate", ("AcceleratedOptimizer.step",)),
    _Functions(_READING, "torch", "torch", ("randperm",)),
    _Functions(_STEP, "torch.nn.utils", "torch", ("clip_grad_norm_",)),
    _Functions(_STEP, "torch.nn.utils.clip_grad", "torch", ("_get_total_norm", "_clip_grads_with_norm_")),
    _Functions(_STEP, "torch", "torch", ("nn.Module.zero_grad", "Tensor.backward", "autograd.backward")),
    _Functions(_STEP, "torch.optim", "torch", ("AdamW", "AdamW.step", "AdamW.__init__")),
    _Functions(_STEP, "torch.optim.adam", "torch",
               ("adam", "_single_tensor_adam", "_multi_tensor_adam", "_fused_adam")),
)  # fmt: skip
_SMOOTHING = (_Functions("leave label_smoothing_factor 0", "torch.nn.functional", "torch", ("log_softmax",)),)

# lr_scheduler_type -> transformers' function for the schedule
_SCHEDULES = {
    "linear": "get_linear_schedule_with_warmup",
    "cosine": "get_cosine_schedule_with_warmup",
    "cosine_with_restarts": "get_cosine_with_hard_restarts_schedule_with_warmup",
    "polynomial": "get_polynomial_decay_schedule_with_warmup",
    "constant": "get_constant_schedule",
    "constant_with_warmup": "get_constant_schedule_with_warmup",
    "inverse_sqrt": "get_inverse_sqrt_schedule",
    "reduce_lr_on_plateau": "get_reduce_on_plateau_schedule",
    "cosine_with_min_lr": "get_cosine_with_min_lr_schedule_with_warmup",
    "cosine_warmup_with_min_lr": "get_cosine_with_min_lr_schedule_with_warmup_lr_rate",
    "warmup_stable_decay": "get_wsd_schedule",
}

_REPORTS = (
    "log", "init_trackers", "get_tracker", "end_training", "trackers", "print", "profile", "save", "load",
    "register_", "unwrap_model", "free_memory", "clear", "get_state_dict", "accumulate",
    "__repr__", "__del__",
)  # fmt: skip
_OF_LOADERS = (
    _Class(_READING, "torch.utils.data", "BatchSampler"),
    _Class(_COLUMNS, "transformers.trainer", "RemoveColumnsCollator"),
)
_OF_TRAINING = (
    _Class(_READING, "accelerate.data_loader", "SeedableRandomSampler"),
    _Class(
        _RATES, "torch.optim.lr_scheduler", "LambdaLR", ("__repr__", "state_dict", "load_state", "print_")
    ),
    _Class(_READING, "torch.utils.data", "RandomSampler"),
    _Class(_EVENTS, "transformers.trainer_callback", "CallbackHandler"),
    _Class(_EVENTS, "transformers.trainer_callback", "DefaultFlowCallback"),
    _Class(_STEP, "accelerate.accelerator", "Accelerator", _REPORTS),
    _Class(_STEP, "accelerate.optimizer", "AcceleratedOptimizer", ("__repr__", "state_dict")),
    _Class(_STEP, "torch.optim", "AdamW", ("__repr__", "state_dict", "register_")),
)
_ARGUMENTS = _Class(
    "set the fields, or derive the class from fastsft.TrainingArguments", "transformers.training_args",
    "TrainingArguments", ("to_", "__str__", "__repr__", "__eq__", "get_process_log_level", "_dict_dtype"),
)  # fmt: skip
# These methods only set fields, and fields are copied from transformers' object.
_FILL_FIELDS = ("__init__", "__post_init__", "__setattr__", "set_")

# torch's dispatch keys whose kernels run in a step
_COMPUTING = (
    "CPU", "CUDA", "Autograd", "AutogradCPU", "AutogradCUDA", "CompositeExplicitAutograd",
    "CompositeImplicitAutograd", "AutocastCPU", "AutocastCUDA",
)  # fmt: skip


class CheckedArguments(Protocol):
    """The fields of TrainingArguments that decide which functions transformers' Trainer calls."""

    @property
    def label_smoothing_factor(self) -> float: ...
    @property
    def lr_scheduler_type(self) -> str: ...
    @property
    def _source(self) -> object: ...


def check_patched_functions(
    args: CheckedArguments, caller: str, *, training: bool, has_collator: bool
) -> None:
    """Raise a ValueError that names the first function or method that a script has replaced.

    training: also check a step's functions. has_collator: True if a data_collator was given;
    transformers' default collator is then not checked.
    """
    for group in _function_groups(args, training=training, has_collator=has_collator):
        for name in group.names:
            value = _found(group.place, name)
            if value is not None and not _is_original(value, group.package, name.split(".")[-1]):
                _refuse(caller, f"{group.place}.{name}", value, group.instead)
    _check_classes(args, caller, training=training)
    _check_kernels(caller)
    _check_modules(caller)
    if training:
        _check_schedule(args, caller)
        _check_hooks(caller)
        _check_callbacks(caller)


def watched_names(args: CheckedArguments, *, has_collator: bool) -> WatchedNames:
    """Return a watch on the names that `check_patched_functions` checks for training."""
    watched = WatchedNames()
    for group in _function_groups(args, training=True, has_collator=has_collator):
        for name in group.names:
            owner = sys.modules.get(group.place)
            for part in name.split("."):
                if owner is not None:
                    watched.add(owner, part)
                    owner = getattr(owner, part, None)
    for each in (*_OF_LOADERS, *_OF_TRAINING, _ARGUMENTS):
        kind = _found(each.place, each.name)
        for base in kind.__mro__ if isinstance(kind, type) else ():
            if base.__module__ != "builtins":
                watched.add_all(base)
    watched.add_size(_registered_kernels())
    return watched


def _function_groups(args: CheckedArguments, *, training: bool, has_collator: bool) -> Iterator[_Functions]:
    yield from _LOADING
    yield from () if has_collator else _COLLATING
    yield from _SMOOTHING if args.label_smoothing_factor else ()
    yield from _TRAINING if training else ()


def _check_classes(args: CheckedArguments, caller: str, *, training: bool) -> None:
    """Compare all methods with the library's files, except methods that do not affect the training."""
    fill_fields = () if args._source is None else _FILL_FIELDS
    own = _ARGUMENTS._replace(harmless=(*_ARGUMENTS.harmless, *fill_fields))
    for each in (own, *_OF_LOADERS, *(_OF_TRAINING if training else ())):
        kind = _found(each.place, each.name)
        for method in replaced_methods(kind) if isinstance(kind, type) else ():
            if not method.name.startswith(each.harmless) and not replaces_nothing(method):
                _refuse(caller, method.where, method.value, each.instead)


def _check_modules(caller: str) -> None:
    """Check the modules that the files of a step import under a name, such as `nn`."""
    for place in _OF_MODULES:
        for name, origins in source_of(place).imports.items() if place in sys.modules else ():
            own = [_origin(home, original) for home, original in origins]
            value = _found(place, name)
            if own and all(isinstance(each, ModuleType) for each in own) and value is not None:
                roots = [
                    sys.modules.get(home.split(".")[0]) for home, original in origins if original is None
                ]
                if all(value is not each for each in (*own, *roots)):
                    _refuse(caller, f"{place}.{name}", value, "give the module that the file imports")


def _origin(home: str, name: str | None) -> object:
    """Return the module that an import names; None if the name is no module, or not imported."""
    return sys.modules.get(home if name is None else f"{home}.{name}")


def _check_schedule(args: CheckedArguments, caller: str) -> None:
    """Check that neither the selected schedule function nor a `*_lr_lambda` that it uses was replaced."""
    place = "transformers.optimization"
    table = _found(place, "TYPE_TO_SCHEDULER_FUNCTION")
    if not isinstance(table, dict):
        return
    chosen = [value for key, value in table.items() if getattr(key, "value", key) == args.lr_scheduler_type]
    for value in chosen:
        where = f'{place}.TYPE_TO_SCHEDULER_FUNCTION["{args.lr_scheduler_type}"]'
        own = _SCHEDULES.get(args.lr_scheduler_type, getattr(value, "__name__", ""))
        if not _is_original(value, place, own):
            _refuse(caller, where, value, _RATES)
        for name in value.__code__.co_names:
            used = _found(place, name)
            if name.endswith("_lr_lambda") and not _is_original(used, place, name):
                _refuse(caller, f"{place}.{name}", used, _RATES)


def _check_hooks(caller: str) -> None:
    for name in ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"):
        hooks = _found("torch.optim.optimizer", name)
        for hook in hooks.values() if isinstance(hooks, Mapping) else ():
            raise ValueError(
                f"{caller}: a hook of all optimizers is registered ({_name_of(hook)}), and fastsft's step "
                "has no torch optimizer that would call it; take it away, or train with transformers' Trainer"
            )


def _check_callbacks(caller: str) -> None:
    """Raise ValueError if a script has added callbacks for every Trainer of transformers."""
    added = _found("transformers.trainer", "DEFAULT_CALLBACKS")
    own = _found("transformers.trainer_callback", "DefaultFlowCallback")
    others = [item for item in added if item is not own] if isinstance(added, Sequence) else []
    if others:
        raise ValueError(
            f"{caller}: transformers.trainer.DEFAULT_CALLBACKS has {_name_of(others[0])}, which fastsft's "
            "Trainer does not read; give it as Trainer(callbacks=[...])"
        )


def _found(place: str, name: str) -> object:
    """Return the current value; None if the module is not imported, or the release lacks the name."""
    value: object = sys.modules.get(place)
    for part in name.split("."):
        value = None if value is None else getattr(value, part, None)
    return value


def _is_original(value: object, package: str, name: str) -> bool:
    """Return True if a file of `package` defines `value` as `name`; wrappers from `package` are allowed."""
    if isinstance(value, type):
        module = value.__module__
        inside = module == package or module.startswith(package + ".")
        return inside and value.__name__ == name and _found(module, value.__qualname__) is value
    if isinstance(value, BuiltinFunctionType):
        return value is _found("torch._C", f"_VariableFunctions.{name}")
    return _leads_to(value, package, name, _MAX_LAYERS)


def _leads_to(value: object, package: str, name: str, depth: int) -> bool:
    function = plain(uncompiled(value))
    if depth == 0 or not isinstance(function, FunctionType) or not is_written_in(function, package):
        return False
    if function.__code__.co_name == name:
        return True
    return any(_leads_to(inner, package, name, depth - 1) for inner in functions_inside(function))


def _name_of(value: object) -> str:
    value = plain(value)
    named = hasattr(value, "__qualname__") and hasattr(value, "__module__")
    kind = value if named else type(value)
    return f"{kind.__module__}.{getattr(kind, '__qualname__', '')}"


def _refuse(caller: str, where: str, value: object, instead: str) -> None:
    raise ValueError(
        f"{caller}: {where} was replaced by {_name_of(value)}, which transformers' Trainer would use, and "
        f"fastsft's does not; take the change back ({instead}), or train with transformers' Trainer"
    )


def _registered_kernels() -> Set[str]:
    """Return all kernels that Python code has registered, as "namespace/operation/key"."""
    known = getattr(sys.modules.get("torch.library"), "_impls", None)
    return known if isinstance(known, set) else set()


def _kernels_of_torch() -> Set[str]:
    """Return the kernels that torch registers itself."""
    module, names = KERNELS_OF_TORCH
    entries: set[str] = set()
    for name in names:
        known = getattr(sys.modules.get(module), name, None)
        for entry in known if isinstance(known, dict) else ():
            entries.add("/".join(entry if len(entry) == 3 else ("aten", *entry)))
    return entries


def _check_kernels(caller: str) -> None:
    """Raise a ValueError if a script has registered another kernel for an operation of torch."""
    for entry in sorted(_registered_kernels() - _kernels_of_torch()):
        namespace, _, rest = entry.partition("/")
        operation, _, key = rest.rpartition("/")
        if namespace == "aten" and key in _COMPUTING:
            raise ValueError(
                f"{caller}: torch.library has a kernel of the script for aten::{operation} ({key}), which a "
                "model of transformers would compute with, and the engine does not everywhere; leave the "
                "registration out (a fresh process), or train with transformers' Trainer"
            )
