"""Fields whose effect the trainer does not have yet: refused away from their default, never ignored."""

from __future__ import annotations

from typing import Any

from fastsft.arguments.treatment import refusal

# name -> (values that may stand, the way out)
UNFINISHED: dict[str, tuple[tuple[Any, ...], str]] = {
    "push_to_hub": ((False,), "upload output_dir with `huggingface-cli upload` when the run has ended"),
}


def refuse_unfinished(args: Any) -> None:
    """ValueError for a field that is accepted by the table of arguments but not done yet."""
    for name, (neutral, advice) in UNFINISHED.items():
        if getattr(args, name) not in neutral:
            raise ValueError(refusal(name, getattr(args, name), f"not yet; {advice}"))
