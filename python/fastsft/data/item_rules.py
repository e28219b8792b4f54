"""Rules for reading items, so that columns, labels and masks are the same as in transformers' Trainer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fastsft.arguments import TrainingArguments
from fastsft.originals.classes import is_own_object
from fastsft.runtime.messages import tell

if TYPE_CHECKING:
    from fastsft import _C

LABELS = ("labels", "label_ids", "label")
READ = ("input_ids", "attention_mask", "position_ids", *LABELS)
# Other arguments of a model's forward. They would change the result.
_ARGUMENTS = frozenset(
    ("inputs_embeds", "past_key_values", "use_cache", "cache_position", "logits_to_keep", "kwargs")
)
# Keyword arguments of forward that a model, its attention or its loss may read.
_KEYWORDS = frozenset(
    (
        "shift_labels", "ignore_index", "num_items_in_batch", "output_attentions", "output_hidden_states",
        "return_dict", "is_causal", "dropout", "scaling", "head_mask", "vocab_size", "logits", "debug_io",
        "hidden_states", "position_embeddings", "query", "key", "value", "module", "source", "target",
        "sliding_window", "softcap", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k",
    )
)  # fmt: skip
_MASKING = ("DataCollatorWithPadding", "DataCollatorForSeq2Seq")
# The label keys that the collators of transformers and torch look for. A collator uses the first of its keys
# that an item has.
_OF_STACKING = ("labels", "label", "label_ids")
_OF_PADDING = ("label_ids", "label", "labels")
_OF_SEQUENCES = ("label", "labels")
_OF_TORCH = ("labels",)


@dataclass
class ItemRules:
    """The rules for reading the items of a data set. The object remembers the keys of the first item.

    removes_columns: drop keys that the model's forward does not take, as transformers drops them from a dict
    (--remove_unused_columns). adds_mask: True if a tokenizer pads the batches, so that each row has an
    attention mask. pads_left: the collator's name if it pads rows on the left, otherwise None.
    attention: the model's attention implementation. is_quiet: drop columns without a message. label_keys:
    keys that may contain the labels; the first key that an item has is used. needs_labels: refuse items
    without labels, as in training.
    """

    removes_columns: bool = True
    adds_mask: bool = False
    pads_left: str | None = None
    attention: str = "sdpa"
    is_quiet: bool = False
    label_keys: tuple[str, ...] = _OF_STACKING
    needs_labels: bool = True
    _columns: tuple[str, ...] | None = None
    _dropped: set[str] = field(default_factory=set)

    @classmethod
    def from_trainer(
        cls, args: TrainingArguments, collator: object, tokenizer: object, model: object
    ) -> ItemRules:
        """Return the rules of a Trainer.

        collator: None if `tokenizer` pads the batches, which is transformers' default.
        """
        padder = tokenizer
        if collator is not None:
            padder = getattr(collator, "tokenizer", None) if is_own_object(collator, _MASKING) else None
        names = getattr(padder, "model_input_names", None) or ("attention_mask",)
        config = getattr(getattr(model, "module", None), "config", None)
        return cls(
            removes_columns=bool(args.remove_unused_columns),
            adds_mask=padder is not None and "attention_mask" in names,
            pads_left=_left_padder(args, collator),
            attention=_attention_of(config),
            label_keys=_label_keys(collator, tokenizer),
        )

    @property
    def has_labels(self) -> bool:
        """True unless the first item that was read had none of `label_keys`."""
        return self._columns is None or self.label_of(self._columns) is not None

    def label_of(self, columns: Iterable[str]) -> str | None:
        """Return the name in `columns` whose column contains the labels; None if there are no labels."""
        return next((name for name in self.label_keys if name in columns), None)

    def columns_of(self, item: Mapping[str, Any], row: int) -> tuple[str, ...]:
        """Return the keys of `item` that fastsft reads, after a check of all other keys.

        ValueError if the model would use a key that fastsft does not read. ValueError also if the keys differ
        from the first item's keys, because transformers' collators read the keys of the first item in each
        batch.
        """
        columns = tuple([name for name in READ if item.get(name) is not None])
        if len(columns) != len(item):
            self._drop([name for name in item if name not in READ and item[name] is not None], item, row)
        if self._columns is None:
            self._columns = columns
        if columns != self._columns:
            raise ValueError(
                f"row {row}: expected the keys of the first item, {', '.join(self._columns)}, got "
                f"{', '.join(columns)}; give every item the same keys"
            )
        return columns

    def _drop(self, names: Iterable[str], item: Mapping[str, Any], row: int) -> None:
        new = [name for name in names if name not in self._dropped]
        if not new:
            return
        check_inputs(new, f"row {row}", removed=self.removes_columns and isinstance(item, dict))
        if not self._dropped and not self.is_quiet:
            tell(f"columns that the model does not take are left out: {', '.join(map(str, new))}")
        self._dropped.update(new)

    def check(self, needs: _C.RowNeeds, *, learns_first: bool, row: int) -> None:
        """Raise ValueError if the result of a row with transformers differs from fastsft's.

        Also raise it if that result depends on the other rows of the batch. needs: the demands of the row's
        mask and positions on attention. learns_first: True if the first label is not -100.
        """
        if self.pads_left is not None and learns_first:
            raise ValueError(
                f"row {row}: label 0 is learned, and {self.pads_left} pads on the left: transformers learns "
                'it from the padding in some batches; set it to -100, or padding_side to "right"'
            )
        if self.attention == "sdpa" or not (needs.masked_query or needs.packing):
            return
        what = "attention_mask has a masked token that the next label is learned from"
        if not needs.masked_query:
            what = "position_ids restart"
        if self.attention == "eager":
            if not needs.blind_query or not needs.masked_query:
                return
            what = "attention_mask leaves a token that is learned from no token to see"
        raise ValueError(
            f"row {row}: {what}; fastsft computes that as transformers' sdpa attention, and the model has "
            f"{self._loaded_with}, which does it otherwise: load it with "
            'attn_implementation="sdpa", or set those labels to -100'
        )

    @property
    def _loaded_with(self) -> str:
        """The argument of from_pretrained that selects `attention`, for messages."""
        name, _, window = self.attention.partition(" with ")
        return f"attn_implementation {name!r}" + (f" and {window}" if window else "")

    def check_outputs(self, *, hides: bool, blind: bool, row: int) -> None:
        """Raise ValueError if the model's attention and the engine compute different outputs for a row.

        hides: True if the row's attention mask hides tokens. blind: True if a token of the row can attend to
        no token.
        """
        if not hides or self.attention == "sdpa" or (self.attention == "eager" and not blind):
            return
        where = "in front of its first token" if self.attention == "eager" else "where attention_mask is 0"
        raise ValueError(
            f"row {row}: outputs {where} are part of the predictions; fastsft computes them as transformers' "
            f"sdpa attention, and the model has {self._loaded_with}, which gives others "
            'there: load it with attn_implementation="sdpa", or pad on the right'
        )


def check_inputs(names: Iterable[str], where: str, *, removed: bool) -> None:
    """Raise ValueError if a model's forward would use a key that fastsft does not use.

    removed: True if columns are removed; then only keys that are named arguments of forward reach it.
    """
    for name in names:
        if name in _ARGUMENTS or (name in _KEYWORDS and not removed):
            raise ValueError(
                f"{where}: expected {', '.join(READ[:4])}, got {name}, which fastsft does not compute with; "
                "leave it out"
                + ("" if name in _ARGUMENTS else ", or use --remove_unused_columns True with dict items")
            )


def pads_left_unmasked(tokenizer: object) -> bool:
    """True if `tokenizer.pad` pads on the left and makes no attention mask that hides the padding."""
    names = getattr(tokenizer, "model_input_names", None) or ("attention_mask",)
    return getattr(tokenizer, "padding_side", "right") == "left" and "attention_mask" not in names


def _label_keys(collator: object, tokenizer: object) -> tuple[str, ...]:
    """Return the keys in which a collator looks for labels, the preferred key first.

    collator: one that only stacks or pads, or None for transformers' default collator.
    """
    if collator is None:
        return _OF_STACKING if tokenizer is None else _OF_PADDING
    if is_own_object(collator, _MASKING):
        return _OF_PADDING if is_own_object(collator, _MASKING[:1]) else _OF_SEQUENCES
    return _OF_TORCH if getattr(collator, "__name__", "") == "default_collate" else _OF_STACKING


def _attention_of(config: object) -> str:
    """Return the attention implementation that a transformers configuration selects; sdpa by default.

    Eager attention with a sliding window has a name of its own, because the window can hide all tokens from a
    token, and the row's mask does not show this.
    """
    name = getattr(config, "_attn_implementation", None) or "sdpa"
    windowed = name == "eager" and getattr(config, "sliding_window", None)
    return "eager with a sliding window" if windowed else str(name)


def _left_padder(args: TrainingArguments, collator: object) -> str | None:
    """Return the collator's name if it may put padding before a row's first label; otherwise None."""
    tokenizer = getattr(collator, "tokenizer", None)
    if getattr(tokenizer, "padding_side", "right") != "left" or not is_own_object(collator, _MASKING[1:]):
        return None
    if pads_left_unmasked(tokenizer):  # such a collator is called, and its padding becomes part of the rows
        return None
    alone = max(args.train_batch_size, args.eval_batch_size) == 1
    fixed = getattr(collator, "padding", None) is not True or getattr(collator, "pad_to_multiple_of", None)
    if alone and not fixed:
        return None
    return _MASKING[1]
