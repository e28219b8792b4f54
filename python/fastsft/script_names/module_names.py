"""Looks up names of FastChat's train module that scripts import, or bind to other values.

`from fastsft.train import torch, Dict, transformers` works as in all FastChat releases; transformers and
fastchat are imported only when a script names them.

In FastChat, all functions are in one module, so a script can replace a function by `train.preprocess = f`.
fastsft's functions are in several modules; they ask `current` for the replacement.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import FunctionType, ModuleType
from typing import Any

_EARLY = "fastsft.script_names.early_releases"
# name -> (module, attribute of the module; "" for the module itself)
_HOMES = {
    **{name: (name, "") for name in ("copy", "json", "logging", "math", "pathlib", "torch", "transformers")},
    **{name: ("typing", name) for name in ("Dict", "Optional", "Sequence")},
    **{name: ("dataclasses", name) for name in ("dataclass", "field")},
    "np": ("numpy", ""),
    "Dataset": ("torch.utils.data", "Dataset"),
    "LabelSmoother": ("transformers.trainer_pt_utils", "LabelSmoother"),
    "SeparatorStyle": ("fastchat.conversation", "SeparatorStyle"),
    "conversation_lib": ("fastchat.conversation", ""),
    "get_conversation_template": ("fastchat.model.model_adapter", "get_conversation_template"),
    "get_default_conv_template": ("fastchat.conversation", "get_default_conv_template"),
    **{
        name: (_EARLY, name)
        for name in (
            *("DEFAULT_PAD_TOKEN", "DEFAULT_EOS_TOKEN", "DEFAULT_BOS_TOKEN", "DEFAULT_UNK_TOKEN"),
            *("IGNORE_INDEX", "DataCollatorForSupervisedDataset", "safe_save_model_for_hf_trainer"),
            *("smart_tokenizer_and_embedding_resize", "_tokenize_fn", "_mask_targets"),
            "_add_speaker_and_signal",
        )
    },
}  # fmt: skip
NAMES = frozenset(_HOMES)
_PACKAGES = {"transformers": "transformers", "fastchat": "fschat"}


def look_up(name: str) -> object:
    """Import and return the object that `name` stands for. ImportError names the package to install."""
    module, attribute = _HOMES[name]
    package = module.split(".")[0]
    try:
        imported = importlib.import_module(module)
        return getattr(imported, attribute) if attribute else imported
    except ModuleNotFoundError as error:
        raise ImportError(
            f"fastsft.train.{name} is {module}.{attribute or '*'}, which is not installed ({error}): "
            f"pip install {_PACKAGES.get(package, package)}"
        ) from None
    except AttributeError:
        raise ImportError(
            f"fastsft.train.{name}: the installed {_PACKAGES.get(package, package)} has no "
            f"{module}.{attribute}; an older release of it had"
        ) from None


def is_original(name: str, value: object) -> bool:
    """True if `value`, which a script bound to `name`, is the original object."""
    try:
        original = look_up(name)
    except ImportError:
        return False
    # If transformers is imported again, the library replaces its module object in sys.modules, so files are
    # compared instead of module objects.
    if isinstance(value, ModuleType) and isinstance(original, ModuleType):
        return (value.__name__, value.__file__) == (original.__name__, original.__file__)
    return value is original


def star_names() -> list[str]:
    """Return the names for `import *`: public names whose package is installed and still has them."""
    return [name for name in sorted(_HOMES) if name[0] != "_" and _is_there(name)]


def _is_there(name: str) -> bool:
    package = _HOMES[name][0].split(".")[0]
    is_gone = name == "get_default_conv_template"  # only FastChat releases before 0.2.9 have this name
    return not is_gone and importlib.util.find_spec(package) is not None


_MODULES = ("fastsft.train", "fastsft.data")
# Data functions and classes, on which a run's labels and rows depend.
_DATA_NAMES = ("preprocess", "SupervisedDataset", "LazySupervisedDataset", "make_supervised_data_module")
_DEFAULTS = ("DEFAULT_PAD_TOKEN", "DEFAULT_EOS_TOKEN", "DEFAULT_BOS_TOKEN", "DEFAULT_UNK_TOKEN")
_LABEL = -100
_LEFT_ALONE = frozenset({"torch", "np", "math", "pathlib", "Dataset", "LabelSmoother", *_DEFAULTS})

_own: dict[str, object] = {}
_codes: dict[str, tuple[object, ...]] = {}


def remember_own(**values: object) -> None:
    """Record the original values of names. Called by the module that defines them."""
    _own.update(values)
    _codes.update({name: code_of(value) for name, value in values.items()})


def current(name: str) -> Any:
    """Return the value that a script bound to `name` in fastsft.train or fastsft.data, else the original."""
    for module in _MODULES:
        value = vars(sys.modules.get(module, object)).get(name, _own[name])
        if value is not _own[name]:
            return value
    return _own[name]


def is_rebound(name: str) -> bool:
    """True if a script has bound `name` to another value, or changed fastsft's function in place."""
    return current(name) is not _own[name] or code_of(_own[name]) != _codes[name]


def code_of(value: object) -> tuple[object, ...]:
    """Return a function's code and defaults, to detect later changes; () for values of other types."""
    if not isinstance(value, FunctionType):
        return ()
    return value.__code__, value.__defaults__, tuple(sorted((value.__kwdefaults__ or {}).items()))


def rebound_data_names() -> list[str]:
    """Return the names of data functions and classes that a script has replaced."""
    return [name for name in _DATA_NAMES if is_rebound(name)]


def refuse_unused() -> None:
    """Raise ValueError if a script replaced a name that only FastChat's functions use."""
    for module in _MODULES:
        values = vars(sys.modules.get(module, object))
        for name, value in values.items():
            advice = _ADVICE.get(name) or ("leave it as it was" if name in _LEFT_ALONE else None)
            if advice and not _is_original(name, value):
                raise ValueError(
                    f"{module}.{name} was set by the script to {_described(value)}, and fastsft's functions "
                    f"do not use it; {advice}"
                )


def _is_original(name: str, value: object) -> bool:
    if name in ("IGNORE_TOKEN_ID", "IGNORE_INDEX"):
        return bool(value == _LABEL)
    return value is _own[name] if name in _own else is_original(name, value)


def _described(value: object) -> str:
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    return f"{name}" if name else repr(value)[:80]


_TEMPLATE = (
    "labels are those of FastChat's vicuna template: leave the name alone and give --mask_policy spans "
    "with --template NAME, or set train.preprocess to a function of your own"
)
_LOADING = (
    "models and tokenizers are read natively: set train.make_supervised_data_module, or write your train()"
)
_OLD_SAVE = "train() saves with trainer_save_model_safe: set that one"
_OLD_DATA = "labels are made by preprocess, and rows are not padded: set train.preprocess"
# name -> reason why fastsft does not use the name, and what to do instead
_ADVICE = {
    "get_conversation_template": _TEMPLATE,
    "get_default_conv_template": _TEMPLATE,
    "conversation_lib": _TEMPLATE,
    "SeparatorStyle": _TEMPLATE,
    "IGNORE_TOKEN_ID": f"the loss leaves out labels of {_LABEL}: leave it, or set train.preprocess",
    "IGNORE_INDEX": f"the loss leaves out labels of {_LABEL}: leave it, or set train.preprocess",
    "transformers": _LOADING,
    "json": "files are read natively: set train.make_supervised_data_module",
    "safe_save_model_for_hf_trainer": _OLD_SAVE,
    "smart_tokenizer_and_embedding_resize": _LOADING,
    "DataCollatorForSupervisedDataset": _OLD_DATA,
    "_tokenize_fn": _OLD_DATA,
    "_mask_targets": _OLD_DATA,
    "_add_speaker_and_signal": _OLD_DATA,
}
