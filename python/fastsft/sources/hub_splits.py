"""The training files of a data set's repository, by the rules of the library `datasets`.

Its order (datasets/data_files.py, MetadataConfigs): the card's configurations; `data/SPLIT-00000-of-00001.*`;
directories named after a split; files named after one; else all files are `train`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from fastsft.sources.data_directories import NOT_DATA, kind_of_data
from fastsft.sources.hub_card import Configuration

Splits = dict[str, list[str]]  # the files of each, in order
Card = Mapping[str, Configuration]

_SHARDED = re.compile(r"data/([^/]*)-\d{5}-of-\d{5}[^/]*\.[^/]*")
_KEYWORDS = {"train": "train|training", "validation": "validation|valid|dev|val",
             "test": "test|testing|eval|evaluation"}  # fmt: skip
_EDGE = "[-._ 0-9]"
_DIRECTORY = {split: re.compile(f"(.*{_EDGE})?({words})({_EDGE}.*)?") for split, words in _KEYWORDS.items()}
_FILE = {split: re.compile(f"(.*{_EDGE})?({words}){_EDGE}.*") for split, words in _KEYWORDS.items()}
_IGNORED = frozenset({"README.md", "config.json", *NOT_DATA})
# Data to `datasets` but not to fastsft. They count when splits are looked for: a training split of CSV is
# refused, and not taken for one that is not there.
_UNREAD = re.compile(
    r"\.(?:(?:csv|tsv|xml|conllu?|tar|h5|hdf5|lance|geoparquet|gpq)(?:\.(?:gz|zst|bz2|xz|lz4|zip|7z))?"
    r"|(?:json|jsonl|ndjson|parquet|arrow)\.(?:bz2|xz|lz4|zip|7z)|zip)$"
)
_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})")


@dataclass(frozen=True)
class Choice:
    """`files` to read; `others`: a path or pattern for each other split; `rest`: what is no data.

    `is_named`: path or card say which files, not only how their names begin or end.
    """

    files: list[str]
    others: Mapping[str, str]
    rest: Sequence[str] = ()
    is_named: bool = True


def choose_files(names: Sequence[str], path: str, root: str, card: Callable[[], Card]) -> Choice:
    """The files that `path` of the repository `root` (`hf://datasets/owner/name`) means.

    `names`: all of its files; `card`: gives its configurations. `path` is a file, a pattern, a configuration,
    a folder, or empty. ValueError for what is not there and what leaves a choice.
    """
    if path in names:
        return Choice([path], {})
    if not set("*?[").isdisjoint(path):
        return Choice(_some(_matched(names, path), "no file matches it"), {})
    configurations = card()
    if path in configurations or (not path and configurations):
        chosen = configurations[path or _default_of(configurations, root)]
        splits = _of_card(names, chosen) if chosen.patterns else default_splits(names, chosen.folder)
        return replace(_one_split(names, splits, root), is_named=bool(chosen.patterns))
    inside = [name for name in names if not path or name.startswith(f"{path}/")]
    if not inside:
        there = sorted({name.split("/")[0] for name in names})
        raise ValueError(f"no file, folder or configuration has this name; there are: {_listed(there)}")
    rest = [name for name in inside if kind_of(name) is None and _is_shown(name, "")]
    return replace(_one_split(names, default_splits(inside, path), root), rest=rest, is_named=False)


def kind_of(name: str) -> str | None:
    """The end of the name by which `datasets` takes it for data, such as .jsonl or .csv; None for others."""
    return kind_of_data(name) or (match[0] if (match := _UNREAD.search(name)) else None)


def default_splits(names: Iterable[str], folder: str = "") -> Splits:
    """The splits of a repository without configurations, or of one folder of it."""
    base = f"{folder}/" if folder else ""
    data = {name[len(base) :]: name for name in sorted(names) if name.startswith(base)}
    data = {inner: name for inner, name in data.items() if kind_of(inner) and _is_shown(inner, "")}
    found: Splits = {}
    for inner, name in data.items():
        if match := _SHARDED.fullmatch(inner):
            found.setdefault(match[1], []).append(name)
    if found:
        return found
    for rule in (_in_directory, _in_file):
        for split in _KEYWORDS:
            if files := [name for inner, name in data.items() if rule(split, inner)]:
                found[split] = files
        if found:
            return found
    return {"train": list(data.values())} if data else {}


def incomplete_sets(files: Iterable[str]) -> list[str]:
    """Of files numbered `-00000-of-00003`, in words: the sets of which some are not among `files`."""
    numbers: dict[tuple[str, str], set[str]] = {}
    for match in filter(None, map(_SHARD.match, files)):
        numbers.setdefault((match[1], match[3]), set()).add(match[2])
    return [
        f"{len(there)} of {int(total)} files {stem}-*-of-{total}"
        for (stem, total), there in sorted(numbers.items())
        if len(there) < int(total)
    ]


def _in_directory(split: str, inner: str) -> bool:
    return any(_DIRECTORY[split].fullmatch(part) for part in inner.split("/")[:-1])


def _in_file(split: str, inner: str) -> bool:
    return _FILE[split].fullmatch(inner.rpartition("/")[2]) is not None


def _is_shown(name: str, pattern: str) -> bool:
    """Neither a description nor hidden, unless the pattern itself says so."""
    if name.rpartition("/")[2] in _IGNORED - {pattern.rpartition("/")[2]}:
        return False
    parts, asked = name.split("/"), pattern.split("/")
    hidden = [sum(part.startswith(".") for part in each) for each in (parts, asked)]
    special = [sum(part.startswith("__") for part in each[:-1]) for each in (parts, asked)]
    return hidden[0] == hidden[1] and special[0] == special[1]


def _matched(names: Iterable[str], pattern: str) -> list[str]:
    from fsspec.utils import glob_translate

    try:
        matches = re.compile(glob_translate(pattern)).match
    except (ValueError, re.error):
        raise ValueError(
            f"{pattern} is no pattern; expected one such as data/*.jsonl or **/*.jsonl"
        ) from None
    return sorted(name for name in names if matches(name) and _is_shown(name, pattern))


def _of_card(names: Sequence[str], configuration: Configuration) -> Splits:
    splits: Splits = {}
    for split, patterns in configuration.patterns.items():
        found = [[each] if each in names else _matched(names, each) for each in patterns]
        files = dict.fromkeys(name for each in found for name in each if kind_of(name))
        splits[split] = _some(list(files), f"its README.md names {_listed(patterns)}, where no data is")
    return splits


def _default_of(card: Card, root: str) -> str:
    default = [name for name, each in card.items() if name == "default" or each.is_default]
    if len(card) == 1:
        default = list(card)
    if len(default) != 1:
        raise ValueError(
            f"it has several configurations; name one: {_listed([f'{root}/{each}' for each in card])}"
        )
    return default[0]


def _one_split(names: Sequence[str], splits: Splits, root: str) -> Choice:
    if not splits:
        there = f"{_listed(sorted(names))}{_converted(root)}"
        raise ValueError(f"no .json, .jsonl, .parquet or .arrow file is there, but: {there}")
    shown = {split: f"{root}/{_pattern_of(names, files)}" for split, files in splits.items()}
    if "train" not in splits:
        raise ValueError(
            f"none of its splits ({', '.join(splits)}) is train; name one: {_listed(list(shown.values()))}"
        )
    by_kind: Splits = {}
    for name in splits["train"]:
        by_kind.setdefault(kind_of(name) or "", []).append(name)
    read = [files for kind, files in by_kind.items() if kind_of_data(kind)]
    if len(read) < len(by_kind) or len(read) > 1:
        ways = _listed([f"{root}/{_pattern_of(names, files)}" for files in read])
        expected = f"expected .json, .jsonl, .parquet or .arrow{_converted(root)}"
        way = f"name what is meant: {ways}" if read else expected
        raise ValueError(f"its split train has files of the kinds {', '.join(by_kind)}; {way}")
    return Choice(splits["train"], {each: shown[each] for each in splits if each != "train"})


def _converted(root: str) -> str:
    """The way to the copy in Parquet that the hub itself makes of most data sets; "" for a given revision."""
    return (
        "" if "@" in root else f"; the hub has most data as Parquet, too: {root}@refs/convert/parquet/default"
    )


def _pattern_of(names: Sequence[str], files: Sequence[str]) -> str:
    """A short way to name these files and no others."""
    folder = files[0].rpartition("/")[0]
    inside = f"{folder}/" if folder else ""
    shards = re.sub(r"-\d{5}-of-\d{5}.*", "-*", files[0])
    for pattern in (shards, f"{inside}*{kind_of(files[0]) or ''}", f"{inside}**"):
        if len(files) > 1 and _matched(names, pattern) == sorted(files):
            return pattern
    return f"{files[0]} and {len(files) - 1} more" if len(files) > 1 else files[0]


def _some(files: list[str], otherwise: str) -> list[str]:
    if not files:
        raise ValueError(otherwise)
    return files


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return (", ".join(names[:8]) or "none") + more
