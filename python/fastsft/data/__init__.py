"""The data functions and data sets of FastChat's script. The package makes labelled rows and batches.

A script may assign its own objects to the names in `__all__`. `train()` then uses these objects, as
FastChat's script would (script_names/module_names.py).
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
