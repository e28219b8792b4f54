"""Hints for unknown flags: the replacement of another trainer's flag, or a known flag with a similar name.

The messages about wrong values of known flags are in wrong_values.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from fastsft.arguments.parsing.foreign_flags import (
    OF_COMMANDS,
    SHORT_NAMES,
    about_foreign,
    about_value,
    is_of_lora,
    is_of_quantising,
)
from fastsft.arguments.parsing.wrong_values import of_argparse
from fastsft.runtime.near_names import nearest

# flags of one letter in other programs
_OF_LETTERS = {
    "m": "model_name_or_path", "d": "data_path", "o": "output_dir", "c": "config", "e": "num_train_epochs",
    "b": "per_device_train_batch_size", "s": "seed", "v": "version",
}  # fmt: skip
_LETTERS_PER_SLIP = 5  # one typing error is allowed per five letters: none in --lr, two in --learnig_rate
_MOST_SLIPS = 3
_WHOLE_WEIGHTS = (
    "write --dtype bfloat16 or float16; weights of fewer bits are not written: llama.cpp's "
    "llama-quantize makes them of fastsft export gguf"
)
_DASHES = "-\u2013\u2014\u2212"  # the hyphen, and what word processors make of it
_AMBIGUOUS = re.compile(r"ambiguous option: (--[\w-]+)\S* could match (.*)", re.S)


def near_flag(name: str, names: Iterable[str]) -> str | None:
    """Return the known flag whose name is similar to `name`; None if no name is. Names lack the dashes.

    Two names are similar if they differ by a few typing errors; longer names may have more errors. `name` is
    also similar to a known flag if it has several words, and only this flag has these words in a row.
    """
    given = name.replace("-", "_")
    flags = sorted({flag.replace("-", "_") for flag in names})
    limit = min(len(given) // _LETTERS_PER_SLIP, _MOST_SLIPS)
    distance, nearest = min(((slips(given, flag, limit), flag) for flag in flags), default=(limit + 1, ""))
    if distance <= limit:
        return nearest
    longer = [flag for flag in flags if f"_{given}_" in f"_{flag}_"] if "_" in given else []
    return longer[0] if len(longer) == 1 else None


def slips(given: str, other: str, limit: int) -> int:
    """Count the typing errors between two names, but at most limit + 1.

    An error is a letter that is missing, added, changed or swapped with its neighbour.
    """
    if abs(len(given) - len(other)) > limit:
        return limit + 1
    two_above: list[int] = []
    above = list(range(len(other) + 1))
    for i, letter in enumerate(given, 1):
        row = [i]
        for j, expected in enumerate(other, 1):
            cost = min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (letter != expected))
            if i > 1 and j > 1 and letter == other[j - 2] and given[i - 2] == expected:
                cost = min(cost, two_above[j - 2] + 1)
            row.append(cost)
        two_above, above = above, row
    return min(above[-1], limit + 1)


def hints(
    flags: Sequence[str],
    known: Iterable[str],
    values: Mapping[str, object] | None = None,
    of_training: Collection[str] = (),
) -> list[str]:
    """Return a hint for each unknown flag; flags about LoRA share one hint.

    flags: as the user wrote them. known: all known flags, with two leading dashes. values: values that the
    user gave to flags, as far as known. of_training: the fields of training, if the command has other flags.
    """
    names = [_name(flag) for flag in known if flag.startswith("--")]
    names += [short for short, full in SHORT_NAMES.items() if full in names]
    has_lora = not of_training or "lora" in names
    lora = [flag for flag in flags if has_lora and is_of_lora(_name(flag))]
    texts = [about_lora(lora)] if lora else []
    for flag in flags:
        meant = _of_value(flag, values or {})
        if meant is not None or flag not in lora:
            texts.append(f"{flag}: {meant or _hint(flag, names, known, of_training)}")
    return texts


def _of_value(flag: str, values: Mapping[str, object]) -> str | None:
    """Return the hint for this value of another trainer's flag; None if it does not matter."""
    name = _name(flag)
    is_foreign = about_foreign(name) is not None or is_of_lora(name)
    return about_value(name, values[flag]) if is_foreign and flag in values else None


def _hint(flag: str, names: Sequence[str], known: Iterable[str], of_training: Collection[str]) -> str:
    name = _name(flag)
    if (plain := name.lower().replace(" ", "_")) in names and plain != name:
        return f"write --{plain}"
    if name in names and not flag.startswith("--"):
        return f"write --{name}, with two hyphens"
    if re.fullmatch(r"[A-Z]+(_[A-Z0-9]+)+", name):
        return f"a variable of the environment: leave it out, and export {name}=... before the command"
    if (full := _OF_LETTERS.get(name)) in names and not flag.startswith("--"):
        return f"write --{full}"
    if of_training and (own := OF_COMMANDS.get(name)) in names:
        return f"write --{own}"
    if "dtype" in names and is_of_quantising(name):
        return _WHOLE_WEIGHTS
    foreign = about_foreign(name)
    if foreign is not None and (not of_training or any(f"--{known}" in foreign for known in names)):
        return foreign
    if near := near_flag(name, names) or (_nearest_of_few(name, names) if of_training else None):
        spelled = {_name(option): option for option in reversed(list(known))}
        return f"the nearest known flag is {spelled.get(near, f'--{near}')}"
    if not of_training:
        return "no known flag is near it (fastsft args lists all)"
    if name in of_training or (foreign is not None and "model_name_or_path" in names):
        return "a flag of training alone: leave it out"
    return f"no known flag is near it; known: {', '.join(known)}"


def _nearest_of_few(name: str, names: Sequence[str]) -> str | None:
    longer = [known for known in names if known.startswith(f"{name}_") or name.startswith(f"{known}_")]
    return longer[0] if len(longer) == 1 else nearest(name, names)


def about_lora(flags: Sequence[str]) -> str:
    """Return the hint with the names that LoRA's flags have in fastsft."""
    return (
        f"{', '.join(flags)}: LoRA's flags are FastChat's, with --lora True or in fastsft.train_lora: "
        "--lora_r, --lora_alpha, --lora_dropout, --lora_target_modules, --lora_bias, --q_lora "
        "(docs/lora.md)"
    )


def clearer(message: str, words: Sequence[str] = (), options: Collection[str] = ()) -> str:
    """Improve argparse's message about an ambiguous flag or a wrong value; return other messages unchanged.

    The new message names each match once, or is the hint for another trainer's flag. words: the command line.
    options: the known flags.
    """
    match = _AMBIGUOUS.search(message)
    if match is None:
        return of_argparse(message, words, options)
    flag, matches = match[1], match[2].split(", ")
    if is_of_lora(_name(flag)):
        return about_lora([flag])
    foreign = about_foreign(_name(flag))
    if foreign is not None:
        return f"{flag}: {foreign}"
    flags = dict.fromkeys(f"--{_name(name)}" for name in matches)
    return f"{flag} is the beginning of several flags: {', '.join(flags)}"


def _name(flag: str) -> str:
    return flag.lstrip(_DASHES).replace("-", "_")


def _way_of_stray(word: str, options: Iterable[str], *, in_training: bool) -> str:
    name, equals, value = word.partition("=")
    if equals and f"--{name}" in options:
        return f"write --{name} {value}"
    if equals and in_training:
        key = name.lstrip("+~").rpartition(".")[2]
        hint = about_foreign(key) or _of_near(near_flag(key, [option.lstrip("-") for option in options]))
        return f"{hint or 'fastsft args lists all flags'}; a flag is written --NAME VALUE"
    if not word.strip(_DASHES):
        return "flags begin with two hyphens, and no space follows them"
    if in_training and word.endswith(".py"):
        return "a script is started by torchrun or python, without fastsft train: leave it out"
    if in_training and os.path.isdir(word):
        return f"a model is given as --model_name_or_path {word}"
    if not in_training:
        return "no such argument is taken: leave it out, or put a value with spaces into quotes"
    if word.endswith((".yaml", ".yml")):
        return f"a file of flags is given as --config {word}"
    if word.endswith(".json"):
        return (
            f"several files of data are one value: --data_path a.json,b.json; a file of flags is given as "
            f"--config {word}"
        )
    if word.endswith((".jsonl", ".parquet", ".arrow", ".csv", ".tsv", ".gz", ".zst")):
        return "several files of data are one value: --data_path a.json,b.json, or a pattern in quotes"
    return "a value with spaces needs quotes"


def _of_near(flag: str | None) -> str:
    return f"write --{flag}" if flag else ""


def unknown_words(argv: Sequence[str], options: Collection[str], of_training: Collection[str] = ()) -> str:
    """Return the message about words that no option accepts, with a hint for each flag and stray value.

    of_training: as in `hints`.
    """
    strays = []
    values: dict[str, str | None] = {}
    waiting: str | None = None
    for word in argv:
        if word[0] in _DASHES and word.lstrip(_DASHES)[:1].isalpha():
            flag, equals, value = word.partition("=")
            values[flag], waiting = value if equals else None, None if equals else flag
            continue
        if waiting is not None:
            values[waiting] = word
        else:
            strays.append(
                f"{word!r} follows no flag; {_way_of_stray(word, options, in_training=not of_training)}"
            )
        waiting = None
    flags = list(values)
    texts = [
        *hints(
            flags, options, {name: word for name, word in values.items() if word is not None}, of_training
        ),
        *strays,
    ] or [f"{argv[0]} is no flag; flags begin with two dashes"]
    return f"{'unknown flag ' if flags else ''}{'; '.join(texts)}"
