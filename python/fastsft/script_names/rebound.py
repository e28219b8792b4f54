"""Names of `fastsft.train` and `fastsft.data` that a script has bound to something of its own.

FastChat's functions look their names up in the module when they are called: `train.preprocess = f` is what
the data sets call. fastsft's ask here instead, because they live in more than one module.
"""

from __future__ import annotations

import sys
from types import FunctionType
from typing import Any

from fastsft.script_names import reexports

_MODULES = ("fastsft.train", "fastsft.data")
# Those of which labels, rows or files of a run depend on what a script made.
_OF_DATA = ("preprocess", "SupervisedDataset", "LazySupervisedDataset", "make_supervised_data_module")
_DEFAULTS = ("DEFAULT_PAD_TOKEN", "DEFAULT_EOS_TOKEN", "DEFAULT_BOS_TOKEN", "DEFAULT_UNK_TOKEN")
_LABEL = -100
_LEFT_ALONE = frozenset({"torch", "np", "math", "pathlib", "Dataset", "LabelSmoother", *_DEFAULTS})

_own: dict[str, object] = {}
_codes: dict[str, tuple[object, ...]] = {}


def remember_own(**values: object) -> None:
    """Remember what names mean while no script has bound them; called by the module that defines them."""
    _own.update(values)
    _codes.update({name: code_of(value) for name, value in values.items()})


def current(name: str) -> Any:
    """The value that a script bound `name` to in fastsft.train, else in fastsft.data, else our own."""
    for module in _MODULES:
        found = vars(sys.modules.get(module, object)).get(name, _own[name])
        if found is not _own[name]:
            return found
    return _own[name]


def is_rebound(name: str) -> bool:
    """True if a script has bound `name`, which `remember_own` knows, to something else.

    Also where it gave our function another code, or other default values.
    """
    return current(name) is not _own[name] or code_of(_own[name]) != _codes[name]


def code_of(value: object) -> tuple[object, ...]:
    """The code that a call of a function runs, to compare with later; nothing of other values."""
    if not isinstance(value, FunctionType):
        return ()
    return value.__code__, value.__defaults__, tuple(sorted((value.__kwdefaults__ or {}).items()))


def rebound_data_names() -> list[str]:
    """Names of functions and classes of data that a script has bound."""
    return [name for name in _OF_DATA if is_rebound(name)]


def refuse_unused() -> None:
    """ValueError for a name that a script bound, that FastChat's module would use, and fastsft does not."""
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
    return value is _own[name] if name in _own else reexports.is_original(name, value)


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
# Why a name has no use here, and what has; other names of FastChat's module are to be left alone.
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
