"""A tokenizer object that is called for ids itself, as FastChat calls it."""

from __future__ import annotations

from fastsft import _C
from fastsft.originals.classes import Method, replaced_methods_of
from fastsft.originals.functions import described
from fastsft.tokenizer.interfaces import CallableTokenizer, is_callable


def called_tokenizer(tokenizer: object) -> _C.CalledTokenizer:
    """`tokenizer` as labels are made with it.

    FastChat calls it with a text, and with a list of texts to be padded and cut. Where a script has changed a
    method, a text whose ids are others then is refused by a ValueError.
    TypeError for an object that cannot be called.
    """
    if not is_callable(tokenizer):
        raise TypeError(
            f"expected a tokenizer of fastsft or transformers, got {type(tokenizer).__name__}, which cannot "
            "be called"
        )
    ids = (tokenizer.bos_token_id, tokenizer.eos_token_id)
    changed = replaced_methods_of(tokenizer)
    encode = _CheckedCalls(tokenizer, changed[0]) if changed else lambda text: tokenizer(text).input_ids
    return _C.CalledTokenizer(
        encode,
        lambda: bool(tokenizer.legacy),
        _C.NamedIds(*(-1 if i is None else i for i in ids)),
    )


class _CheckedCalls:
    """The ids of a text, known to be the same in a batch."""

    def __init__(self, tokenizer: CallableTokenizer, changed: Method) -> None:
        self._tokenizer, self._changed = tokenizer, changed
        empty = list(tokenizer("").input_ids)
        self._adds_eos = 0 < len(empty) <= 2 and empty[-1] == tokenizer.eos_token_id

    def __call__(self, text: str) -> list[int]:
        alone = list(self._tokenizer(text).input_ids)
        width = self._tokenizer.model_max_length
        in_batch = self._tokenizer(
            [text], return_tensors="pt", padding="max_length", max_length=width, truncation=True
        ).input_ids[0]
        if in_batch.tolist() != self._padded(alone, width):
            raise ValueError(
                f"{self._changed.where} is {described(self._changed.value)}, and a text has other ids alone "
                "than in a batch with padding and truncation, which FastChat uses both: set "
                "fastsft.train.preprocess to a function that makes the labels"
            )
        return alone

    def _padded(self, ids: list[int], width: int) -> list[int | None]:
        cut = ids[:width]
        if len(ids) > width and self._adds_eos:
            cut[-1] = ids[-1]
        return [*cut, *([self._tokenizer.pad_token_id] * (width - len(cut)))]
