"""Parts that are saved next to the weights of a model, or in their place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from fastsft import _C


class SavedTokenizer(Protocol):
    """A tokenizer, of fastsft or another library, that writes its files."""

    def save_pretrained(self, directory: str, /) -> object:
        """Write all files into a directory that is there."""


class AdapterToSave(Protocol):
    """Adapters that are saved in the place of their model."""

    def write(self, directory: str, /) -> list[_C.FileDigest]:
        """Write the files into a new directory, durable on return. Their digests."""


def tokenizer_to_save(trainer: object) -> SavedTokenizer | None:
    """The tokenizer of a Trainer, else its data collator's, which transformers' Trainer saves then."""
    own = getattr(trainer, "tokenizer", None)
    if own is not None:
        return cast(SavedTokenizer, own)
    found = getattr(getattr(trainer, "data_collator", None), "tokenizer", None)
    return cast(SavedTokenizer, found) if hasattr(found, "save_pretrained") else None
