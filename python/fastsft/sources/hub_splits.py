"""The training files of a data set's repository, by the rules of the library `datasets`.

Its order (datasets/data_files.py, MetadataConfigs): the card's configurations; `data/SPLIT-00000-of-00001.*`;
directories named after a split; files named after one; else all files are `train`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastsft.sources.data_directories import NOT_DATA, kind_of_data

Splits = dict[str, list[str]]  # the files of each, in order

_SHARDED = re.compile(r"data/([^/]*)-\d{5}-of-\d{5}[^/]*\.[^/]*")
_KEYWORDS = {"train": "train|training", "validation": "validation|valid|dev|val",
             "test": "test|testing|eval|evaluation"}  # fmt: skip
_EDGE = "[-._ 0-9]"
_DIRECTORY = {split: re.compile(f"(.*{_EDGE})?({words})({_EDGE}.*)?") for split, words in _KEYWORDS.items()}
_FILE = {split: re.compile(f"(.*{_EDGE})?({words}){_EDGE}.*") for split, words in _KEYWORDS.items()}
_IGNORED = frozenset({"README.md", "config.json", *NOT_DATA})
_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})(.*)")


@dataclass(frozen=True)
class Choice:
    """`files` to read, of `split`; `others`: a path or pattern for each other split."""

    files: list[str]
    split: str = ""
    others: tuple[tuple[str, str], ...] = ()


def choose_files(names: Sequence[str], path: str, card: Mapping[str, Any], root: str) -> Choice:
    """The files that `path` of the repository `root` (`hf://datasets/owner/name`) means.

    `names`: all of its files; `card`: the metadata of its README.md. `path` is a file, a pattern, a
    configuration of the card, a folder, or empty. ValueError for what is not there and what leaves a choice.
    """
    if path in names:
        return Choice([path])
    if is_pattern(path):
        return Choice(_some(_matched(names, path), "no file matches it"))
    configurations = _configurations(card)
    if path in configurations or (not path and configurations):
        splits = _of_card(names, configurations, path or _default_of(configurations, root))
    else:
        splits = default_splits(names, path)
        if path and not splits and not any(name.startswith(f"{path}/") for name in names):
            there = sorted({name.split("/")[0] for name in names})
            raise ValueError(f"no file, folder or configuration has this name; there are: {_listed(there)}")
    if not splits:
        raise ValueError(f"no .json, .jsonl, .parquet or .arrow file is there, but: {_listed(sorted(names))}")
    return _one_split(names, splits, root)


def is_pattern(path: str) -> bool:
    """It has a wildcard."""
    return not set("*?[").isdisjoint(path)


def default_splits(names: Iterable[str], folder: str = "") -> Splits:
    """The splits of a repository without configurations, or of one folder of it."""
    base = f"{folder}/" if folder else ""
    data = {name[len(base) :]: name for name in sorted(names) if name.startswith(base)}
    data = {inner: name for inner, name in data.items() if _is_data(inner)}
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


def missing_shards(files: Iterable[str]) -> list[str]:
    """Of files numbered `-00000-of-00003`, those that are not among `files`."""
    missing, given = [], set(files)
    shards = [match for name in given if (match := _SHARD.fullmatch(name))]
    for start, total, end in {(match[1], match[3], match[4]) for match in shards}:
        numbered = (f"{start}-{number:05d}-of-{total}{end}" for number in range(int(total)))
        missing += [name for name in numbered if name not in given]
    return sorted(missing)


def _in_directory(split: str, inner: str) -> bool:
    return any(_DIRECTORY[split].fullmatch(part) for part in inner.split("/")[:-1])


def _in_file(split: str, inner: str) -> bool:
    return _FILE[split].fullmatch(inner.rpartition("/")[2]) is not None


def _is_data(inner: str) -> bool:
    return kind_of_data(inner) is not None and _is_shown(inner, "")


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

    matches = re.compile(glob_translate(pattern)).match
    return sorted(name for name in names if matches(name) and _is_shown(name, pattern))


def _configurations(card: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    listed = card.get("configs") or []
    if not isinstance(listed, list) or not all(
        isinstance(each, dict) and isinstance(each.get("config_name"), str) for each in listed
    ):
        raise ValueError("the configs of its README.md: expected a list of entries with a config_name")
    return {each["config_name"]: each for each in listed}


def _of_card(names: Sequence[str], configurations: Mapping[str, Mapping[str, Any]], chosen: str) -> Splits:
    entry = configurations[chosen]
    folder = str(entry.get("data_dir") or "").strip("/")
    if not entry.get("data_files"):
        return default_splits(names, folder)
    splits: Splits = {}
    for split, patterns in _patterns(entry["data_files"], chosen).items():
        files: dict[str, None] = {}
        for pattern in patterns:
            whole = f"{folder}/{pattern}" if folder else pattern
            found = [whole] if whole in names else _matched(names, whole)
            files.update(dict.fromkeys(_some(found, f"its README.md names {whole}, which is not there")))
        splits[split] = list(files)
    return splits


def _default_of(configurations: Mapping[str, Mapping[str, Any]], root: str) -> str:
    default = [name for name, each in configurations.items() if name == "default" or each.get("default")]
    if len(configurations) == 1:
        default = list(configurations)
    if len(default) != 1:
        ways = _listed([f"{root}/{name}" for name in configurations])
        raise ValueError(f"it has several configurations; name one: {ways}")
    return default[0]


def _patterns(given: Any, configuration: str) -> dict[str, list[str]]:
    """`data_files` as a text, a list of texts, of entries with split and path, or texts by split."""
    entries = given.items() if isinstance(given, dict) else [("train", given)]
    if isinstance(given, list) and all(isinstance(each, dict) for each in given):
        entries = [(each.get("split"), each.get("path")) for each in given]
    found = {split: [each] if isinstance(each, str) else each for split, each in entries}
    if len(found) == len(entries) and all(
        isinstance(split, str) and isinstance(each, list) and all(isinstance(text, str) for text in each)
        for split, each in found.items()
    ):
        return found
    raise ValueError(
        f"data_files of the configuration {configuration} in its README.md: expected patterns, or entries "
        "with split and path, each split once"
    )


def _one_split(names: Sequence[str], splits: Splits, root: str) -> Choice:
    shown = {split: f"{root}/{_pattern_of(names, files)}" for split, files in splits.items()}
    if "train" not in splits and len(splits) > 1:
        ways = _listed([shown[split] for split in splits])
        raise ValueError(f"it has the splits {', '.join(splits)}, and none is train; name one: {ways}")
    split = "train" if "train" in splits else next(iter(splits))
    by_kind: Splits = {}
    for name in splits[split]:
        by_kind.setdefault(kind_of_data(name) or "others", []).append(name)
    if len(by_kind) > 1:
        ways = _listed([f"{root}/{_pattern_of(names, files)}" for files in by_kind.values()])
        raise ValueError(f"it has files of several kinds ({', '.join(by_kind)}); name one: {ways}")
    return Choice(splits[split], split, tuple((each, shown[each]) for each in splits if each != split))


def _pattern_of(names: Sequence[str], files: Sequence[str]) -> str:
    """A short way to name these files and no others."""
    folder = files[0].rpartition("/")[0]
    inside = f"{folder}/" if folder else ""
    shards = re.sub(r"-\d{5}-of-\d{5}.*", "-*", files[0])
    for pattern in (shards, f"{inside}*{kind_of_data(files[0]) or ''}", f"{inside}**"):
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
