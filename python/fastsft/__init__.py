"""fastsft: fine-tunes chat models with FastChat's flags and labels on a C++/CUDA core."""

# No `from __future__ import annotations`: the statement imports a module, and until the working directory
# leaves sys.path, a file in it could take that module's place.
from fastsft.runtime.search_path import is_program, leave_working_directory

if is_program():
    leave_working_directory()

from typing import Any

from fastsft.ranks import launcher_watch as _launcher_watch  # noqa: F401  notes who started this process
from fastsft.runtime.imports import lazy_names
from fastsft.runtime.imports import load_native as _load_native
from fastsft.runtime.terminal import occupy_closed

__version__ = "0.1.0"

occupy_closed()

# Maps each lazily loaded name to its module. `train` is not listed, since the function would hide the module
# of the same name.
_HOMES = {
    "CausalLM": "model.causal_lm",
    "DataArguments": "arguments",
    "EarlyStoppingCallback": "trainer.early_stopping",
    "ModelArguments": "arguments",
    "Tokenizer": "tokenizer.tokenizer",
    "Trainer": "trainer.trainer",
    "TrainerCallback": "callbacks",
    "TrainingArguments": "arguments",
    "inspect": "inspection.inspect",
    "launch": "notebook.launch",
}

__all__ = ["CausalLM", "DataArguments", "EarlyStoppingCallback", "ModelArguments", "Tokenizer", "Trainer",
           "TrainerCallback", "TrainingArguments", "__version__", "inspect", "launch"]  # fmt: skip

_load_name = lazy_names(__name__, _HOMES)


def __getattr__(name: str) -> Any:
    if name == "_C":
        return _load_native()
    return _load_name(name)


def __dir__() -> list[str]:
    return sorted(__all__)
