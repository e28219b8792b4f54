"""Message about an unknown flag: what another trainer means by it, or the known one that is near, if any."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from fastsft.arguments.parsing.foreign_flags import SHORT_NAMES, about_foreign, is_of_lora
from fastsft.arguments.parsing.foreign_values import about_value

_LETTERS_PER_SLIP = 5  # of a flag: --lr has no slip, --learnig_rate may have two
_MOST_SLIPS = 3
_AMBIGUOUS = re.compile(r"ambiguous option: (--[\w-]+)\S* could match (.*)", re.S)


def near_flag(name: str, known: Iterable[str]) -> str | None:
    """The known flag whose name is near, all without dashes in front; None when none is.

    Near: a few slips of the pen, more in a longer name; or some of the words of one known flag alone.
    """
    wanted = name.replace("-", "_")
    names = sorted({each.replace("-", "_") for each in known})
    limit = min(len(wanted) // _LETTERS_PER_SLIP, _MOST_SLIPS)
    distance, nearest = min(((slips(wanted, each, limit), each) for each in names), default=(limit + 1, ""))
    if distance <= limit:
        return nearest
    longer = [each for each in names if f"_{wanted}_" in f"_{each}_"] if "_" in wanted else []
    return longer[0] if len(longer) == 1 else None


def slips(given: str, known: str, limit: int) -> int:
    """Letters left out, added, changed or exchanged with their neighbour; limit + 1 for more than `limit`."""
    if abs(len(given) - len(known)) > limit:
        return limit + 1
    two_above: list[int] = []
    above = list(range(len(known) + 1))
    for i, letter in enumerate(given, 1):
        row = [i]
        for j, other in enumerate(known, 1):
            cost = min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (letter != other))
            if i > 1 and j > 1 and letter == known[j - 2] and given[i - 2] == other:
                cost = min(cost, two_above[j - 2] + 1)
            row.append(cost)
        two_above, above = above, row
    return min(above[-1], limit + 1)


def hints(
    flags: Sequence[str], known: Iterable[str], values: Mapping[str, object] | None = None
) -> list[str]:
    """A hint for each of `flags`, as they were written; `known` with two dashes in front.

    values: of the flags, by `flags`' spelling, where they are known.
    """
    names = [flag.lstrip("-") for flag in known if flag.startswith("--")]
    names += [short for short, full in SHORT_NAMES.items() if full in names]
    lora = [flag for flag in flags if is_of_lora(_name(flag))]
    said = [about_lora(lora)] if lora else []
    for flag in flags:
        meant = _of_value(flag, values or {})
        if meant is not None or flag not in lora:
            said.append(f"{flag}: {meant or _hint(_name(flag), names)}")
    return said


def _of_value(flag: str, values: Mapping[str, object]) -> str | None:
    """The hint for a flag of another trainer with its value; None where the value says no more."""
    name = _name(flag)
    is_foreign = about_foreign(name) is not None or is_of_lora(name)
    return about_value(name, values[flag]) if is_foreign and flag in values else None


def _hint(name: str, names: Sequence[str]) -> str:
    foreign = about_foreign(name)
    if foreign is not None:
        return foreign
    near = near_flag(name, names)
    return (
        f"the nearest known flag is --{near}" if near else "no known flag is near it (fastsft args lists all)"
    )


def about_lora(flags: Sequence[str]) -> str:
    """Why there are no such flags, and the way out."""
    return (
        f"{', '.join(flags)}: LoRA's flags are FastChat's, with --lora True or in fastsft.train_lora: "
        "--lora_r, --lora_alpha, --lora_dropout, --lora_target_modules, --lora_bias, --q_lora "
        "(docs/lora.md)"
    )


def clearer(message: str) -> str:
    """argparse's message about a beginning of several flags: each once, or the hint of `about_foreign`."""
    found = _AMBIGUOUS.search(message)
    if found is None:
        return message
    flag, matches = found[1], found[2].split(", ")
    if is_of_lora(_name(flag)):
        return about_lora([flag])
    foreign = about_foreign(_name(flag))
    if foreign is not None:
        return f"{flag}: {foreign}"
    flags = dict.fromkeys(f"--{_name(match)}" for match in matches)
    return f"{flag} is the beginning of several flags: {', '.join(flags)}"


def _name(flag: str) -> str:
    return flag.lstrip("-").replace("-", "_")
