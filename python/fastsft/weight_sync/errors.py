"""A failure that several places keep is raised once."""

from __future__ import annotations


class ReplacedError(RuntimeError):
    """A save that a later one replaced before it began: no failure, and nothing was written."""


_MARK = "_fastsft_reported"


def raise_once(error: BaseException) -> None:
    """Raise `error`, unless it has been raised this way before."""
    if not getattr(error, _MARK, False):
        setattr(error, _MARK, True)
        raise error
