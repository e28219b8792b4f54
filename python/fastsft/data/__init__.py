"""FastChat's data functions and data sets; the modules below make labelled rows and batches.

As in FastChat's module, `train()` uses the objects that a script binds to these names
(script_names/module_names.py).
"""

from typing import TYPE_CHECKING

from fastsft.runtime.imports import lazy_names

if TYPE_CHECKING:
    from fastsft.data.data_module import make_supervised_data_module
    from fastsft.data.supervised import IGNORE_TOKEN_ID, LazySupervisedDataset, SupervisedDataset, preprocess

__all__ = ["IGNORE_TOKEN_ID", "LazySupervisedDataset", "SupervisedDataset", "make_supervised_data_module",
           "preprocess"]  # fmt: skip
__getattr__ = lazy_names(
    __name__, {**dict.fromkeys(__all__, "supervised"), "make_supervised_data_module": "data_module"}
)
