"""The day that a chat template was told when a run was begun, which a resumed run tells it again."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from fastsft import _C
from fastsft.checkpoint.finished_run import RECORD_NAME
from fastsft.checkpoint.run_identity import STATE_NAME
from fastsft.checkpoint.trainer_state_file import MOST_STATE_BYTES
from fastsft.data.chat.labelling import DATE
from fastsft.ranks.exchange import AllOrNone
from fastsft.runtime.regular_files import read_json

if TYPE_CHECKING:
    from fastsft.arguments import TrainingArguments

T = TypeVar("T")


def keep_template_date(data_args: T, args: TrainingArguments) -> T:
    """DataArguments with the day of the begin of the run in `output_dir`; collective.

    A copy, or `data_args` itself: where they name a day, where nothing is resumed, and where the template
    of that run asked for none.
    """
    if getattr(data_args, DATE, None) is not None or args.no_resume:
        return data_args
    agreement = AllOrNone("reading when the run was begun")
    found = agreement.settle_on_rank0(agreement.attempt_on_rank0(lambda: _day_of_begin(args)))
    if not found:
        return data_args
    kept = copy.copy(data_args)
    setattr(kept, DATE, found)
    return kept


def _day_of_begin(args: TrainingArguments) -> str:
    for path in _records(args):
        try:
            content = read_json(path, MOST_STATE_BYTES)
            request = content.get("request", content)
            return date.fromisoformat(request[DATE]).isoformat()
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            continue  # what is wrong with a checkpoint is told when it is verified
    return ""


def _records(args: TrainingArguments) -> Iterator[Path]:
    """Files that may name it, the newest first."""
    named, folder = args.resume_from_checkpoint, Path(args.output_dir or ".")
    if isinstance(named, str):
        yield Path(named) / STATE_NAME
    elif folder.is_dir():
        yield from (folder / name / STATE_NAME for name in reversed(_C.list_checkpoints(str(folder))))
        yield folder / RECORD_NAME
