"""Alterations, which are changes by a script to a model or a library, and an error message about them."""

from __future__ import annotations

from dataclasses import dataclass

_SHOWN = 4


@dataclass(frozen=True)
class Alteration:
    """A change that a script has made.

    where: the changed object or attribute. found: its present value. native: the engine's computation, which
    ignores the change. way_out: advice for the user.
    """

    where: str
    found: str
    native: str
    way_out: str

    def __str__(self) -> str:
        return f"{self.where} {self.found}; fastsft would compute {self.native}; {self.way_out}"


def refuse(alterations: list[Alteration], caller: str) -> None:
    """Raise a ValueError that names the first alteration in each kind; do nothing without alterations.

    caller: message prefix.
    """
    if not alterations:
        return
    kinds: dict[tuple[str, str], list[Alteration]] = {}
    for alteration in dict.fromkeys(alterations):
        kinds.setdefault((alteration.found, alteration.native), []).append(alteration)
    lines = [_line(same) for same in list(kinds.values())[:_SHOWN]]
    rest = len(kinds) - len(lines)
    more = f" (and {rest} more)" if rest else ""
    raise ValueError(f"{caller}: " + " | ".join(lines) + more)


def _line(same: list[Alteration]) -> str:
    first = same[0]
    others = f" (and {len(same) - 1} more like it)" if len(same) > 1 else ""
    return f"{first.where} {first.found}{others}; fastsft would compute {first.native}; {first.way_out}"


def path_of(name: str) -> str:
    """Return a name such as `layers.3.mlp` as a script writes it: `model.layers[3].mlp`."""
    parts = [f"[{part}]" if part.isdigit() else f".{part}" for part in name.split(".") if part]
    return "model" + "".join(parts)
