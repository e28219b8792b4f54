"""Which `data_collator` a Trainer takes: rows are packed by the engine, so that none is ever called."""

from __future__ import annotations

from typing import Any

# They stack rows or fill them up, which packing makes needless; labels stay those of the items.
_STACKING = (
    "default_data_collator", "torch_default_data_collator", "numpy_default_data_collator", "default_collate",
    "DefaultDataCollator", "DataCollatorWithPadding", "DataCollatorForSeq2Seq",
)  # fmt: skip
_IGNORED = -100


def check_collator(collator: Any) -> None:
    """ValueError unless `collator` is None or only stacks and pads: others would change what is learned."""
    if collator is None:
        return
    name = getattr(collator, "__name__", type(collator).__name__)
    pad_label = getattr(collator, "label_pad_token_id", _IGNORED)
    if name not in _STACKING or pad_label != _IGNORED:
        reason = f" with label_pad_token_id {pad_label}" if pad_label != _IGNORED else ""
        raise ValueError(
            f"Trainer: data_collator {name}{reason} is not called here: fastsft packs rows itself, and takes "
            f"only collators that stack and pad ({', '.join(_STACKING)}); leave it out, and let the items of "
            "the data set have their final input_ids and labels"
        )
