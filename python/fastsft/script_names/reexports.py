"""Names that FastChat's train.py imported in all its releases, found when they are asked for.

`from fastsft.train import torch, Dict, transformers` works as it does there; transformers and fastchat are
imported only for who names them.
"""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

# name -> module, and the attribute of it; "" is the module itself.
_HOMES = {
    "Dict": ("typing", "Dict"),
    "Optional": ("typing", "Optional"),
    "Sequence": ("typing", "Sequence"),
    "copy": ("copy", ""),
    "dataclass": ("dataclasses", "dataclass"),
    "field": ("dataclasses", "field"),
    "json": ("json", ""),
    "logging": ("logging", ""),
    "math": ("math", ""),
    "pathlib": ("pathlib", ""),
    "np": ("numpy", ""),
    "torch": ("torch", ""),
    "Dataset": ("torch.utils.data", "Dataset"),
    "transformers": ("transformers", ""),
    "LabelSmoother": ("transformers.trainer_pt_utils", "LabelSmoother"),
    "SeparatorStyle": ("fastchat.conversation", "SeparatorStyle"),
    "conversation_lib": ("fastchat.conversation", ""),
    "get_conversation_template": ("fastchat.model.model_adapter", "get_conversation_template"),
    "get_default_conv_template": ("fastchat.conversation", "get_default_conv_template"),
    "DEFAULT_PAD_TOKEN": ("fastsft.script_names.early_releases", "DEFAULT_PAD_TOKEN"),
    "DEFAULT_EOS_TOKEN": ("fastsft.script_names.early_releases", "DEFAULT_EOS_TOKEN"),
    "DEFAULT_BOS_TOKEN": ("fastsft.script_names.early_releases", "DEFAULT_BOS_TOKEN"),
    "DEFAULT_UNK_TOKEN": ("fastsft.script_names.early_releases", "DEFAULT_UNK_TOKEN"),
    "IGNORE_INDEX": ("fastsft.script_names.early_releases", "IGNORE_INDEX"),
    "DataCollatorForSupervisedDataset": (
        "fastsft.script_names.early_releases", "DataCollatorForSupervisedDataset",
    ),
    "safe_save_model_for_hf_trainer": (
        "fastsft.script_names.early_releases", "safe_save_model_for_hf_trainer",
    ),
    "smart_tokenizer_and_embedding_resize": (
        "fastsft.script_names.early_releases", "smart_tokenizer_and_embedding_resize",
    ),
    "_tokenize_fn": ("fastsft.script_names.early_releases", "_tokenize_fn"),
    "_mask_targets": ("fastsft.script_names.early_releases", "_mask_targets"),
    "_add_speaker_and_signal": ("fastsft.script_names.early_releases", "_add_speaker_and_signal"),
}  # fmt: skip
NAMES = frozenset(_HOMES)
_PACKAGES = {"transformers": "transformers", "fastchat": "fschat"}


def look_up(name: str) -> object:
    """The object of `name`. ImportError, with the package to install, when it is not there."""
    module, attribute = _HOMES[name]
    package = module.split(".")[0]
    try:
        found = importlib.import_module(module)
        return getattr(found, attribute) if attribute else found
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
    """True if `value`, which a script bound to `name`, is the object that is there anyway."""
    try:
        found = look_up(name)
    except ImportError:
        return False
    # transformers puts another module object into sys.modules when a part of it is imported again.
    if isinstance(value, ModuleType) and isinstance(found, ModuleType):
        return (value.__name__, value.__file__) == (found.__name__, found.__file__)
    return value is found


def star_names() -> list[str]:
    """The names here that `import *` brings: public ones whose package is installed and still has them."""
    return [name for name in sorted(_HOMES) if name[0] != "_" and _is_there(name)]


def _is_there(name: str) -> bool:
    package = _HOMES[name][0].split(".")[0]
    gone = name == "get_default_conv_template"  # of releases before 0.2.9 alone
    return not gone and importlib.util.find_spec(package) is not None
