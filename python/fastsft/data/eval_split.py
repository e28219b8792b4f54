"""Split the evaluation data off the training data (`--eval_split`).

A conversation's place in the draw is a hash of the seed and its tokens. So the split depends neither on the
order of the data nor on the rank count, and conversations with equal tokens are on the same side.
"""

from __future__ import annotations

import copy
import hashlib
import math
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from fastsft import _C
from fastsft.data.labelled_rows import LabelledRows

if TYPE_CHECKING:
    from fastsft.arguments import TrainingArguments

T = TypeVar("T")
SEED_NAME = "eval_split_seed"  # attribute of data arguments, which a run sets to --data_seed or --seed
DEFAULT_SEED = 42  # the default of --seed, for scripts that label data without TrainingArguments
_DIGEST_BYTES = 16


def split_rows(path: str, rows: LabelledRows, share: float, seed: int) -> tuple[LabelledRows, LabelledRows]:
    """Return the rows to train on and the rows to evaluate on, both in the order of `rows`.

    share: the evaluated fraction of the conversations, rounded up, or their number if at least 1. Equal
    conversations stay together, so there may be more rows, or fewer if few conversations differ. Rows
    without targets are only trained. ValueError if one side would be empty, or if a conversation has several
    rows, which could be on both sides.
    """
    if rows.report.num_whole < rows.report.num_records or "split" in rows.report.entries:
        raise ValueError(
            f"--eval_split {share:g}: expected a row for each conversation of {path}, got several for some "
            "(--train_turns each, --overlong split, or thoughts that the template leaves out later); name a "
            "file with --eval_data_path"
        )
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
            f"--eval_split {share:g}: all conversations of {path} with learned tokens are equal, and equal "
            "ones are not divided; name other data with --eval_data_path"
        )
    split = {
        "share": share, "seed": seed, "conversations": len(chosen), "of": len(rows.native), "asked": wanted
    }  # fmt: skip
    rest = np.setdiff1d(np.arange(len(rows.native)), chosen)
    return rows.select(rest, split), rows.select(chosen, split)


def with_split_seed(data_args: T, args: TrainingArguments) -> T:
    """Return data arguments with the split's seed, which is --data_seed if given, else --seed.

    Without --eval_split, return `data_args` itself.
    """
    if not getattr(data_args, "eval_split", 0):
        return data_args
    seeded = copy.copy(data_args)
    setattr(seeded, SEED_NAME, args.seed if args.data_seed is None else args.data_seed)
    return seeded


def check_split(share: float, train_dataset: object) -> None:
    """Raise ValueError if --eval_split had no effect, since the script loads the data."""
    if share and getattr(train_dataset, "eval_split", None) is None:
        raise ValueError(
            f"--eval_split {share:g} has no effect: make_supervised_data_module was set by the script; leave "
            "the flag out"
        )


def split_line(path: str, split: dict[str, float]) -> str:
    """Return the line about the split. split: `eval_split` of the split rows."""
    differs = split["conversations"] != split["asked"]
    more = f" ({split['asked']:,} asked for; equal ones are not divided)" if differs else ""
    return (
        f"{path}: --eval_split {split['share']:g}: {split['conversations']:,} of {split['of']:,} "
        f"conversations to evaluate on{more}, the rest to train on; drawn with seed {split['seed']}"
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
    """Return at least `wanted` rows in ascending order: the first groups, but never all groups.

    A group that exceeds the number is taken, too: without it, conversations with few copies would be drawn
    more often than others.
    """
    chosen: list[int] = []
    for group in groups[:-1]:
        chosen += group
        if len(chosen) >= wanted:
            break
    return np.sort(np.asarray(chosen, dtype=np.int64))
