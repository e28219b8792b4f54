"""fastsft: fine-tunes chat models with FastChat's flags and labels on a C++/CUDA core."""

# No `from __future__`: that module would be looked for in the working directory.
from fastsft.search_path import is_program, leave_working_directory

if is_program():
    leave_working_directory()

import importlib
from typing import Any

from fastsft.native import load_native as _load_native
from fastsft.ranks import launcher_watch as _launcher_watch  # noqa: F401  notes who started this process
from fastsft.standard_streams import occupy_closed

__version__ = "0.1.0"

occupy_closed()

# Loaded when asked for. The module fastsft.train is not a name of this list: its function would hide it.
_HOMES = {
    "CausalLM": "model",
    "DataArguments": "arguments",
    "EarlyStoppingCallback": "training.early_stopping",
    "ModelArguments": "arguments",
    "Tokenizer": "tokenizer",
    "Trainer": "trainer",
    "TrainerCallback": "callbacks",
    "TrainingArguments": "arguments",
    "inspect": "inspection",
    "launch": "notebook.launch",
}

__all__ = ["CausalLM", "DataArguments", "EarlyStoppingCallback", "ModelArguments", "Tokenizer", "Trainer",
           "TrainerCallback", "TrainingArguments", "__version__", "inspect", "launch"]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "_C":
        return _load_native()
    if name in _HOMES:
        value = getattr(importlib.import_module(f"fastsft.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'fastsft' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
