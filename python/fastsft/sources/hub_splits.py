"""The training files of a data set's repository, by the rules of the library `datasets`.

Its order (datasets/data_files.py, MetadataConfigs): the card's configurations; `data/SPLIT-00000-of-00001.*`;
directories named after a split; files named after one; else all files are `train`. As there, every file that
is not hidden counts when splits are looked for, data or not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

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
_IGNORED = frozenset({"README.md", "config.json", "dummy_data.zip", *NOT_DATA})
# Parts of a name by which `datasets` takes a file for tables or records.
_SUFFIXES = frozenset((
    "arrow", "conll", "conllu", "csv", "eval", "geoparquet", "gpq", "h5", "hdf5", "json", "jsonl", "lance",
    "ndjson", "parquet", "tar", "tsfile", "tsv", "xml", "zip",
))  # fmt: skip
_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})")


@dataclass(frozen=True)
class Choice:
    """`files` to read; `other_splits`: a path or pattern for each; `rest`: files that are no data.

    `is_typed`: the user named these files, by name or pattern.
    """

    files: list[str]
    other_splits: Mapping[str, str]
    rest: Sequence[str] = ()
    is_typed: bool = False


def choose_files(names: Sequence[str], path: str, root: str, card: Callable[[], Card]) -> Choice:
    """The files that `path` of the repository `root` (`hf://datasets/owner/name`) means.

    `names`: all of its files; `card`: gives its configurations. `path` is a file, a pattern, a configuration,
    a folder, or empty. ValueError for what is not there and what leaves a choice.
    """
    if path in names:
        return Choice([path], {}, is_typed=True)
    if not set("*?[").isdisjoint(path):
        return Choice(_some(_matched(names, path), "no file matches it"), {}, is_typed=True)
    configurations = card()
    if path in configurations or (not path and configurations):
        name = path or _default_of(configurations, root)
        chosen = configurations[name]
        if chosen.ignored:
            raise ValueError(
                f"the configuration {name} in its README.md says how files are read "
                f"({', '.join(chosen.ignored)}), which fastsft does not do; name files to read "
                f"them whole: {root}/FILE"
            )
        splits = _of_card(names, chosen) if chosen.patterns else default_splits(names, chosen.folder)
        return _one_split(names, splits, root)
    inside = [name for name in names if not path or name.startswith(f"{path}/")]
    if path and not inside:
        there = sorted({name.split("/")[0] for name in names})
        raise ValueError(f"no file, folder or configuration has this name; there are: {_listed(there)}")
    return _one_split(inside, default_splits(inside, path), root)


def kind_of(name: str) -> str | None:
    """The end of the name by which `datasets` takes it for data, as .jsonl or .csv.gz; None for others."""
    parts = name.rpartition("/")[2].split(".")
    first = next((i for i, part in enumerate(parts) if i and part in _SUFFIXES), None)
    return kind_of_data(name) or (None if first is None else "." + ".".join(parts[first:]))


def default_splits(names: Iterable[str], folder: str = "") -> Splits:
    """The splits of a repository without configurations, or of one folder of it."""
    base = f"{folder}/" if folder else ""
    inside = {name[len(base) :]: name for name in sorted(names) if name.startswith(base)}
    inside = {inner: name for inner, name in inside.items() if _is_shown(inner, "")}
    found: Splits = {}
    for inner, name in inside.items():
        if match := _SHARDED.fullmatch(inner):
            found.setdefault(match[1], []).append(name)
    if found:
        return found
    for rule in (_in_directory, _in_file):
        for split in _KEYWORDS:
            if files := [name for inner, name in inside.items() if rule(split, inner)]:
                found[split] = files
        if found:
            return found
    return {"train": list(inside.values())} if inside else {}


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
        files = dict.fromkeys(name for each in found for name in each)
        splits[split] = _some(list(files), f"its README.md names {_listed(patterns)}, where no file is")
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
    """The choice of `train`, if it has files of one kind, which is read."""
    by_kind: Splits = {}
    for name in splits.get("train", []):
        by_kind.setdefault(kind_of(name) or "", []).append(name)
    rest = by_kind.pop("", [])
    if len(by_kind) != 1 or not kind_of_data(next(iter(by_kind))):
        raise ValueError(_no_choice(names, splits, root, list(by_kind)))
    others = {split: _pattern_of(names, files, root) for split, files in splits.items() if split != "train"}
    return Choice(next(iter(by_kind.values())), others, rest)


def _no_choice(names: Sequence[str], splits: Splits, root: str, kinds: Sequence[str]) -> str:
    """Why nothing was chosen, and what could be named."""
    if not names:
        return "it has no files"
    if "train" not in splits:
        reason = f"none of its splits ({_listed(list(splits))}) is train"
    elif kinds:
        reason = f"its split train has files of the kinds {', '.join(kinds)}"
    else:
        reason = f"its split train has no data, but: {_listed(splits['train'])}"
    readable: dict[tuple[str, str], list[str]] = {}
    for split, files in (splits or {"": list(names)}).items():
        for name in files:
            if kind := kind_of_data(name):
                readable.setdefault((split, kind), []).append(name)
    if not readable:
        for name in filter(kind_of_data, names):
            readable.setdefault(("", kind_of_data(name) or ""), []).append(name)
    ways = [_pattern_of(names, files, root) for files in readable.values()]
    if ways:
        return f"{reason}; name what is meant: {_listed(ways)}"
    converted = f"{root}@refs/convert/parquet/default"
    more = "" if "@" in root else f"; the hub has most data as Parquet, too: {converted}"
    return f"{reason}; expected .json, .jsonl, .parquet, .arrow or .csv{more}"


def _pattern_of(names: Sequence[str], files: Sequence[str], root: str) -> str:
    """A short way to name these files and no others."""
    folder = files[0].rpartition("/")[0]
    inside = f"{folder}/" if folder else ""
    shards = re.sub(r"-\d{5}-of-\d{5}.*", "-*", files[0])
    for pattern in (shards, f"{inside}*{kind_of(files[0]) or ''}", f"{inside}**"):
        if len(files) > 1 and _matched(names, pattern) == sorted(files):
            return f"{root}/{pattern}"
    return f"{root}/{files[0]}" + (f" and {len(files) - 1} more" if len(files) > 1 else "")


def _some(files: list[str], otherwise: str) -> list[str]:
    if not files:
        raise ValueError(otherwise)
    return files


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return (", ".join(names[:8]) or "none") + more
