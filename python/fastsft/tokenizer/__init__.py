"""Load the tokenizers of model directories: `from fastsft.tokenizer import Tokenizer`."""

from typing import TYPE_CHECKING

from fastsft.runtime.imports import lazy_names

if TYPE_CHECKING:
    from fastsft.tokenizer.tokenizer import Tokenizer

__all__ = ["Tokenizer"]
__getattr__ = lazy_names(__name__, {"Tokenizer": "tokenizer"})
