"""Split the evaluation data off the training data (`--eval_split`).

A conversation's place in the draw is a hash of the seed and its tokens. So the split depends neither on the
order of the data nor on the rank count, and conversations with equal tokens are on the same side.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
import numpy.typing as npt

from fastsft import _C
from fastsft.data.labelled_rows import LabelledRows

DEFAULT_SEED = 42  # the default of --seed, for scripts that label data without TrainingArguments
_DIGEST_BYTES = 16


def split_rows(path: str, rows: LabelledRows, share: float, seed: int) -> tuple[LabelledRows, LabelledRows]:
    """Return the rows to train on and the rows to evaluate on, both in the order of `rows`.

    share: the evaluated fraction of the conversations, rounded up, or their number if at least 1. Rows
    without targets are only trained. ValueError if one side would be empty.
    """
    groups = _groups(rows.native, seed)
    count = sum(map(len, groups))
    wanted = math.ceil(share * count) if share < 1 else int(share)
    if wanted >= count:
        raise ValueError(
            f"--eval_split {share:g}: expected fewer than the {count:,} conversations with learned tokens of "
            f"{path}; give a smaller number, or a fraction such as 0.05"
        )
    chosen = _first(groups, wanted)
    if not len(chosen):
        raise ValueError(
            f"--eval_split {share:g}: each conversation of {path} is there more than {wanted:,} times, and "
            "equal ones are not divided; give a larger number, or other data with --eval_data_path"
        )
    split = {"share": share, "seed": seed, "conversations": len(chosen), "of": len(rows.native)}
    rest = np.setdiff1d(np.arange(len(rows.native)), chosen)
    return rows.select(rest, split), rows.select(chosen, split)


def split_line(path: str, split: dict[str, float]) -> str:
    """Return the line about the split. split: `eval_split` of the split rows."""
    return (
        f"{path}: --eval_split {split['share']:g}: {split['conversations']:,} of {split['of']:,} "
        f"conversations to evaluate on, the rest to train on; drawn with seed {split['seed']}"
    )


def _groups(native: _C.TokenDataset, seed: int) -> list[list[int]]:
    """Return the rows with equal tokens together, in the order of their hashes.

    Groups in which no row has a target are left out.
    """
    key = seed.to_bytes(8, "little")
    by_digest: dict[bytes, list[int]] = {}
    for row in range(len(native)):
        tokens = native.ids(row).tobytes()
        digest = hashlib.blake2b(tokens, digest_size=_DIGEST_BYTES, key=key).digest()
        by_digest.setdefault(digest, []).append(row)
    has_targets = native.target_counts() > 0
    return [rows for _, rows in sorted(by_digest.items()) if has_targets[rows].any()]


def _first(groups: list[list[int]], wanted: int) -> npt.NDArray[np.int64]:
    """Return at most `wanted` rows in ascending order: the first groups, except groups that are too large."""
    chosen: list[int] = []
    for group in groups:
        if len(chosen) + len(group) <= wanted:
            chosen += group
        if len(chosen) == wanted:
            break
    return np.sort(np.asarray(chosen, dtype=np.int64))
