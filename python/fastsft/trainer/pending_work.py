"""Work interrupted by a checkpoint, resumed first (docs/spec/reliability.md, section 3)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any


@dataclass
class Due:
    """Kept in fastsft_state.json, so that a resumed run does first what a signal left undone.

    evaluate: an evaluation of this step; save: a checkpoint after it. epoch_end: if the epoch ends with this
    step, what follows from that. stop: a callback had ended the run. log_entries: how many logs there were
    before the evaluation, whose first ones may have been logged (several data sets); None for all.
    """

    evaluate: bool = False
    save: bool = False
    epoch_end: bool = False
    stop: bool = False
    log_entries: int | None = None

    def to_json(self) -> dict[str, Any]:
        """As it is in fastsft_state.json."""
        return dataclasses.asdict(self)

    @classmethod
    def of_checkpoint(cls, saved: dict[str, Any] | None) -> Due:
        """Of the content of fastsft_state.json; nothing is due in those of older versions."""
        return cls(**((saved or {}).get("due") or {}))

    def begin_evaluation(self, save: bool, log_entries: int) -> None:
        """An evaluation is under way, and no result of it counts before its end."""
        self.evaluate, self.save, self.log_entries = True, save, log_entries

    def end_evaluation(self) -> None:
        """Its results count."""
        self.evaluate, self.save, self.log_entries = False, False, None
