"""Rows as other libraries keep them: dictionaries of arrays, padded to one width."""

from __future__ import annotations

from typing import Any

import numpy as np

WIDTH = 24


def random_items() -> list[dict[str, Any]]:
    """Seven rows padded to 24 tokens, whose second halves are learned."""
    generator, items = np.random.default_rng(3), []
    for length in [5, 9, 12, 6, 20, 3, 11]:
        ids = np.zeros(WIDTH, np.int64)
        ids[:length] = generator.integers(1, 70, length)
        at = np.arange(WIDTH)
        labels = np.where((at >= length // 2) & (at < length), ids, -100)
        items.append({"input_ids": ids, "labels": labels, "attention_mask": at < length})
    return items
