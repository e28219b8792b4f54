"""Functions of libraries that transformers' Trainer goes through, and fastsft's does not.

A script that replaces one of them changes what is trained there, and nothing here: it is told by name.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import NamedTuple

from fastsft.originals.functions import functions_inside, is_written_in, plain, uncompiled
from fastsft.originals.kernels import check_kernels, registered_kernels
from fastsft.originals.patched_classes import CheckedArguments, patched_methods, watched_classes
from fastsft.originals.places import Places
from fastsft.originals.source import source_of

_MAX_LAYERS = 8
# Files of the step and of loading whose imported modules count.
_OF_MODULES = (
    "transformers.trainer", "transformers.trainer_pt_utils", "transformers.trainer_utils",
    "transformers.optimization", "transformers.data.data_collator", "accelerate.accelerator",
    "accelerate.data_loader", "accelerate.optimizer", "accelerate.scheduler",
)  # fmt: skip


class _Group(NamedTuple):
    """`names` are looked up in module `place`; what is there comes from a file of `package`."""

    instead: str
    place: str
    package: str
    names: tuple[str, ...]


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
    _Group(_READING, "transformers.trainer", "torch",
           ("DataLoader", "DataLoader.__iter__", "DataLoader.__init__")),
    _Group(_READING, "torch.utils.data", "torch", ("DataLoader",)),  # accelerate prepares objects of it alone
    _Group(_READING, "transformers.trainer", "torch", ("SequentialSampler", "SequentialSampler.__iter__")),
    _Group(_READING, "transformers.trainer", "transformers", ("seed_worker",)),
    _Group(_READING, "torch.utils.data._utils.fetch", "torch",
           ("_MapDatasetFetcher", "_MapDatasetFetcher.fetch")),
    _Group(_READING, "torch.utils.data.dataloader", "torch",
           ("_BaseDataLoaderIter.__next__", "_SingleProcessDataLoaderIter._next_data")),
    _Group(_READING, "accelerate.data_loader", "accelerate",
           ("prepare_data_loader", "send_to_device", "BatchSamplerShard.__iter__",
            "DataLoaderShard.__iter__", "SeedableRandomSampler")),
    _Group(_COLUMNS, "transformers.trainer", "transformers", ("RemoveColumnsCollator",)),
)  # fmt: skip
_COLLATING = (
    _Group(_ROWS, "transformers.trainer", "transformers",
           ("default_data_collator", "DataCollatorWithPadding", "DataCollatorWithPadding.__call__")),
    _Group(_ROWS, "transformers.data.data_collator", "transformers",
           ("torch_default_data_collator", "pad_without_fast_tokenizer_warning")),
)  # fmt: skip
_TRAINING = (
    _Group(_SEED, "transformers.trainer", "transformers", ("set_seed", "enable_full_determinism")),
    _Group(_RATES, "transformers.trainer", "transformers", ("get_scheduler",)),
    _Group(_RATES, "transformers.optimization", "torch", ("LambdaLR",)),
    _Group(_RATES, "accelerate.scheduler", "accelerate", ("AcceleratedScheduler.step",)),
    _Group(_READING, "transformers.trainer", "torch", ("RandomSampler", "RandomSampler.__iter__")),
    _Group(_READING, "transformers.trainer", "transformers",
           ("LengthGroupedSampler", "LengthGroupedSampler.__iter__")),
    _Group(_READING, "transformers.trainer_pt_utils", "transformers", ("get_length_grouped_indices",)),
    _Group(_EVENTS, "transformers.trainer_callback", "transformers",
           ("DefaultFlowCallback.on_step_end", "DefaultFlowCallback.on_epoch_end")),
    _Group(_STEP, "transformers.trainer", "transformers",
           ("get_parameter_names", "LabelSmoother", "LabelSmoother.__call__")),
    _Group(_STEP, "transformers.trainer", "accelerate", ("Accelerator",)),
    _Group(_STEP, "accelerate.accelerator", "accelerate",
           ("Accelerator.clip_grad_norm_", "Accelerator.backward")),
    _Group(_STEP, "accelerate.optimizer", "accelerate", ("AcceleratedOptimizer.step",)),
    _Group(_READING, "torch", "torch", ("randperm",)),
    _Group(_STEP, "torch.nn.utils", "torch", ("clip_grad_norm_",)),
    _Group(_STEP, "torch.nn.utils.clip_grad", "torch", ("_get_total_norm", "_clip_grads_with_norm_")),
    _Group(_STEP, "torch.nn", "torch", ("Module.zero_grad",)),
    _Group(_STEP, "torch", "torch", ("Tensor.backward",)),
    _Group(_STEP, "torch.autograd", "torch", ("backward",)),
    _Group(_STEP, "torch.optim", "torch", ("AdamW", "AdamW.step", "AdamW.__init__")),
    _Group(_STEP, "torch.optim.adam", "torch",
           ("adam", "_single_tensor_adam", "_multi_tensor_adam", "_fused_adam")),
)  # fmt: skip


_SMOOTHING = (_Group("leave label_smoothing_factor 0", "torch.nn.functional", "torch", ("log_softmax",)),)

# What transformers takes for each name.
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


def check_patched_functions(
    args: CheckedArguments, caller: str, *, training: bool, has_collator: bool
) -> None:
    """ValueError, naming the first one that a script has replaced.

    training: also what only a step goes through. has_collator: a data_collator was given, so that nobody
    asks for the one that transformers takes then.
    """
    groups = _LOADING if has_collator else (*_LOADING, *_COLLATING)
    if args.label_smoothing_factor:
        groups = (*groups, *_SMOOTHING)
    for group in (*groups, *_TRAINING) if training else groups:
        for name in group.names:
            value = _found(group.place, name)
            if value is not None and not _is_original(value, group.package, name.split(".")[-1]):
                _refuse(caller, f"{group.place}.{name}", value, group.instead)
    for method in patched_methods(args, training=training):
        _refuse(caller, method.where, method.value, method.instead)
    check_kernels(caller)
    _check_modules(caller)
    if training:
        _check_schedule(args, caller)
        _check_hooks(caller)
        _check_callbacks(caller)


def places_of(args: CheckedArguments, *, has_collator: bool) -> Places:
    """The places that `check_patched_functions` looks at for training, as they are now."""
    places = Places()
    groups = _LOADING if has_collator else (*_LOADING, *_COLLATING)
    smoothing = _SMOOTHING if args.label_smoothing_factor else ()
    for group in (*groups, *smoothing, *_TRAINING):
        for name in group.names:
            owner = sys.modules.get(group.place)
            for part in name.split("."):
                if owner is not None:
                    places.add(owner, part)
                    owner = getattr(owner, part, None)
    for kind in watched_classes():
        places.add_all(kind)
    places.add_size(registered_kernels())
    return places


def _check_modules(caller: str) -> None:
    """Modules that the files of the step import under a name, like `nn`, are those."""
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
    """The module that an import means; None for what is none, or is not imported."""
    return sys.modules.get(home if name is None else f"{home}.{name}")


def _check_schedule(args: CheckedArguments, caller: str) -> None:
    """The function of the schedule's name, and the functions of its file that it reads by name."""
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
                f"{caller}: a hook of all optimizers is registered ({_described(hook)}), and fastsft's step "
                "has no torch optimizer that would call it; take it away, or train with transformers' Trainer"
            )


def _check_callbacks(caller: str) -> None:
    """Callbacks that every Trainer of transformers gets: they are given to this one in another way."""
    added = _found("transformers.trainer", "DEFAULT_CALLBACKS")
    own = _found("transformers.trainer_callback", "DefaultFlowCallback")
    others = [item for item in added if item is not own] if isinstance(added, Sequence) else []
    if others:
        raise ValueError(
            f"{caller}: transformers.trainer.DEFAULT_CALLBACKS has {_described(others[0])}, which fastsft's "
            "Trainer does not read; give it as Trainer(callbacks=[...])"
        )


def _found(place: str, name: str) -> object:
    """The value there now; None for a module that nobody has imported, or a release without the name."""
    value: object = sys.modules.get(place)
    for part in name.split("."):
        value = None if value is None else getattr(value, part, None)
    return value


def _is_original(value: object, package: str, name: str) -> bool:
    """True if it is written under `name` in a file of `package`, in whatever wrappers of that package."""
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


def _described(value: object) -> str:
    value = plain(value)
    named = hasattr(value, "__qualname__") and hasattr(value, "__module__")
    kind = value if named else type(value)
    return f"{kind.__module__}.{getattr(kind, '__qualname__', '')}"


def _refuse(caller: str, where: str, value: object, instead: str) -> None:
    raise ValueError(
        f"{caller}: {where} was replaced by {_described(value)}, which transformers' Trainer would use, and "
        f"fastsft's does not; take the change back ({instead}), or train with transformers' Trainer"
    )
