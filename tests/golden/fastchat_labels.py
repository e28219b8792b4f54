"""Ids and labels of FastChat's own `preprocess()`, for the recorders of labels and labels_full.

Each conversation is passed alone, as FastChat's lazy data set does, so that an exception belongs to one.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from typing import Any

from golden_text import digest, hf_tokenizer, read_records

MODES = ("llama2_legacy", "llama2_nonlegacy")
MISMATCH = re.compile(r"WARNING: tokenization mismatch: (\d+) vs\. (\d+)\. #turn = (-?\d+)\. \(ignored\)")


def labelled(name: str, mode: str, max_length: int, first: int | None = None) -> Iterator[dict[str, Any]]:
    """Yield ids and labels of each conversation of a file, or of the `first` ones."""
    from fastchat.train import train

    train.local_rank = 0  # else FastChat does not print its warnings
    tokenizer = hf_tokenizer(mode, max_length)
    for index, record in enumerate(read_records(name)[:first]):
        row = _row(train.preprocess, record["conversations"], tokenizer)
        yield {"index": index, "id": record["id"], **row}


def _row(preprocess: Any, messages: list[Any], tokenizer: Any) -> dict[str, Any]:
    """Return ids and labels without the padding, or the name of the exception."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            found = preprocess([messages], tokenizer)
    except Exception as error:
        return {"error": type(error).__name__}
    ids, labels, mask = (found[key][0].tolist() for key in ("input_ids", "labels", "attention_mask"))
    assert mask == [number != tokenizer.pad_token_id for number in ids]
    length = len(ids)
    while length and ids[length - 1] == tokenizer.pad_token_id:
        length -= 1
    assert all(label == -100 for label in labels[length:])
    row = {"ids": ids[:length], "labels": labels[:length], "dropped": False}
    if warning := MISMATCH.search(printed.getvalue()):
        row |= {"dropped": True, "mismatch": [int(number) for number in warning.groups()]}
    return row


def compact(row: dict[str, Any]) -> dict[str, Any]:
    """Replace ids and labels by their length, the number of labels, and a hash."""
    if "error" in row:
        return {"error": row["error"]}
    short = {
        "length": len(row["ids"]),
        "label_tokens": sum(label != -100 for label in row["labels"]),
        "dropped": row["dropped"],
        "hash": digest(row["ids"], row["labels"]),
    }
    return {**short, "mismatch": row["mismatch"]} if row["dropped"] else short
