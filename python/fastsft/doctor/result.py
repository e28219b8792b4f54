"""Result of a check."""

from __future__ import annotations

from dataclasses import dataclass

OK, WARNING, FAILED, UNCHECKED = "ok", "warning", "failed", "not checked"


@dataclass(frozen=True)
class Result:
    """One check. mark: `ok`, `warning`, `failed` or `not checked`; way_out: for what is not ok."""

    name: str
    mark: str
    found: str
    way_out: str = ""


class ProblemError(Exception):
    """Ends a check: it failed, or only warns."""

    def __init__(self, found: str, way_out: str = "", mark: str = FAILED) -> None:
        super().__init__(found)
        self.way_out, self.mark = way_out, mark


class NotCheckedError(Exception):
    """Ends a check that cannot be made; the message is the reason."""
