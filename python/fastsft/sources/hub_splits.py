"""Choose the training files of a hub data set by the rules of the library datasets.

These rules are tried in order, and the first that finds files applies (datasets/data_files.py,
MetadataConfigs): configurations in the data set's card (README.md); file names of the form
`data/SPLIT-00000-of-00001.*`; directories named after a split; files named after a split. If no rule finds
files, all files belong to the split `train`. As in datasets, all files that are not hidden count, even if
they are not data files.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastsft.sources.file_formats import NOT_DATA, data_suffix

Splits = dict[str, list[str]]  # sorted file names by split

_SHARDED = re.compile(r"data/([^/]*)-\d{5}-of-\d{5}[^/]*\.[^/]*")
_KEYWORDS = {"train": "train|training", "validation": "validation|valid|dev|val",
             "test": "test|testing|eval|evaluation"}  # fmt: skip
_EDGE = "[-._ 0-9]"
_DIRECTORY = {split: re.compile(f"(.*{_EDGE})?({words})({_EDGE}.*)?") for split, words in _KEYWORDS.items()}
_FILE = {split: re.compile(f"(.*{_EDGE})?({words}){_EDGE}.*") for split, words in _KEYWORDS.items()}
_IGNORED = frozenset({"README.md", "config.json", "dummy_data.zip", *NOT_DATA})
# The suffixes by which the library datasets recognises data files.
_SUFFIXES = frozenset((
    "arrow", "conll", "conllu", "csv", "eval", "geoparquet", "gpq", "h5", "hdf5", "json", "jsonl", "lance",
    "ndjson", "parquet", "tar", "tsfile", "tsv", "xml", "zip",
))  # fmt: skip
_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})")


@dataclass(frozen=True)
class Configuration:
    """A configuration in the card of a data set.

    folder: the folder with its files; "" for the whole repository. patterns: file name patterns by split; may
    be empty. is_default: True if this configuration is used when the user names none.
    """

    folder: str
    patterns: Mapping[str, Sequence[str]]
    is_default: bool
    ignored: Sequence[str] = ()  # names of unsupported fields, which would change how files are read


Card = Mapping[str, Configuration]


@dataclass(frozen=True)
class Choice:
    """The files to read.

    other_splits: a path or pattern for each split that is not read. rest: files of the chosen split that are
    not data files. is_typed: True if the user has named a file or a pattern.
    """

    files: list[str]
    other_splits: Mapping[str, str]
    rest: Sequence[str] = ()
    is_typed: bool = False


def choose_files(names: Sequence[str], path: str, root: str, card: Callable[[], Card]) -> Choice:
    """Return the files that `path` names in the repository `root` (`hf://datasets/owner/name`).

    names: all files of the repository. path: a file, a pattern, a configuration, a folder, or "" for the
    default. card: returns the configurations. ValueError if no file or more than one choice fits `path`.
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
    """Return the suffix by which datasets recognises a data file, such as .csv.gz; None for other files."""
    parts = name.rpartition("/")[2].split(".")
    first = next((i for i, part in enumerate(parts) if i and part in _SUFFIXES), None)
    return data_suffix(name) or (None if first is None else "." + ".".join(parts[first:]))


def default_splits(names: Iterable[str], folder: str = "") -> Splits:
    """Return the splits of a repository or folder without configurations, by this module's rules."""
    base = f"{folder}/" if folder else ""
    inside = {name[len(base) :]: name for name in sorted(names) if name.startswith(base)}
    inside = {inner: name for inner, name in inside.items() if _is_shown(inner, "")}
    splits: Splits = {}
    for inner, name in inside.items():
        if match := _SHARDED.fullmatch(inner):
            splits.setdefault(match[1], []).append(name)
    if splits:
        return splits
    for rule in (_in_directory, _in_file):
        for split in _KEYWORDS:
            if files := [name for inner, name in inside.items() if rule(split, inner)]:
                splits[split] = files
        if splits:
            return splits
    return {"train": list(inside.values())} if inside else {}


def incomplete_sets(files: Iterable[str]) -> list[str]:
    """Describe each incomplete set of numbered files (`-00000-of-00003`)."""
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
    """True if the pattern may match the file.

    Files such as README.md and hidden files match only if the pattern names such files itself.
    """
    if name.rpartition("/")[2] in _IGNORED - {pattern.rpartition("/")[2]}:
        return False
    parts, requested = name.split("/"), pattern.split("/")
    hidden = [sum(part.startswith(".") for part in names) for names in (parts, requested)]
    special = [sum(part.startswith("__") for part in names[:-1]) for names in (parts, requested)]
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
        matches = [[pattern] if pattern in names else _matched(names, pattern) for pattern in patterns]
        files = dict.fromkeys(name for pattern in matches for name in pattern)
        splits[split] = _some(list(files), f"its README.md names {_listed(patterns)}, where no file is")
    return splits


def _default_of(card: Card, root: str) -> str:
    default = [name for name, configuration in card.items() if name == "default" or configuration.is_default]
    if len(card) == 1:
        default = list(card)
    if len(default) != 1:
        raise ValueError(
            f"it has several configurations; name one: {_listed([f'{root}/{name}' for name in card])}"
        )
    return default[0]


def _one_split(names: Sequence[str], splits: Splits, root: str) -> Choice:
    """Return the choice of the split `train`.

    ValueError if there is no such split, or if its data files have several formats.
    """
    by_kind: Splits = {}
    for name in splits.get("train", []):
        by_kind.setdefault(kind_of(name) or "", []).append(name)
    rest = by_kind.pop("", [])
    if len(by_kind) != 1 or not data_suffix(next(iter(by_kind))):
        raise ValueError(_no_choice(names, splits, root, list(by_kind)))
    others = {split: _pattern_of(names, files, root) for split, files in splits.items() if split != "train"}
    return Choice(next(iter(by_kind.values())), others, rest)


def _no_choice(names: Sequence[str], splits: Splits, root: str, kinds: Sequence[str]) -> str:
    """Return an error message with the reason why no files were chosen, and with paths to name instead."""
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
            if kind := data_suffix(name):
                readable.setdefault((split, kind), []).append(name)
    if not readable:
        for name in filter(data_suffix, names):
            readable.setdefault(("", data_suffix(name) or ""), []).append(name)
    ways = [_pattern_of(names, files, root) for files in readable.values()]
    if ways:
        return f"{reason}; name what is meant: {_listed(ways)}"
    converted = f"{root}@refs/convert/parquet/default"
    more = "" if "@" in root else f"; the hub has most data as Parquet, too: {converted}"
    return f"{reason}; expected .json, .jsonl, .parquet, .arrow or .csv{more}"


def _pattern_of(names: Sequence[str], files: Sequence[str], root: str) -> str:
    """Return a short pattern that matches exactly `files`; without such a pattern, name the first file."""
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


CARD_FILES = ("README.md", ".huggingface.yaml")  # fields in the second file override those in the first

# Together these two patterns match the same text as huggingface_hub's pattern, but in linear time.
_BEGIN = re.compile(r"\s*---[\r\n]")
_END = re.compile(r"[\r\n]---(?:\r\n|\n|\Z)")
# Fields of a configuration that would select a part of a JSON, Parquet or CSV file, or change how the file is
# parsed.
_CHOOSE_RECORDS = (
    "field", "filters", "columns", "sep", "delimiter", "header", "names", "column_names", "usecols",
    "skiprows", "nrows", "skipfooter", "skipinitialspace", "quotechar", "quoting", "escapechar", "comment",
    "encoding", "dialect",
)  # fmt: skip


def read_card(texts: Mapping[str, str]) -> dict[str, Configuration]:
    """Return the configurations by name. ValueError if the card cannot be read.

    texts: the contents of CARD_FILES, by file name.
    """
    metadata: dict[str, Any] = {}
    for name in CARD_FILES:
        text = texts.get(name, "")
        metadata |= _metadata(_front_matter(text) if name.endswith(".md") else text, name)
    listed = metadata.get("configs") or []
    if not isinstance(listed, list) or not all(
        isinstance(entry, dict) and isinstance(entry.get("config_name"), str) for entry in listed
    ):
        raise ValueError("the configs of its README.md: expected a list of entries with a config_name")
    return {entry["config_name"]: _configuration(entry) for entry in listed}


def _front_matter(text: str) -> str:
    """Return the metadata of a README.md: the text between a first line `---` and the next such line.

    Return "" if there is no metadata.
    """
    begin = _BEGIN.match(text)
    end = _END.search(text, begin.end()) if begin else None
    return text[begin.end() : end.start()] if begin and end else ""


def _metadata(text: str, name: str) -> dict[str, Any]:
    import yaml  # type: ignore[import-untyped]

    try:
        content = yaml.safe_load(text)
    except Exception as error:  # YAML raises Python's errors, too, if a tag has an invalid value
        line = getattr(getattr(error, "problem_mark", None), "line", None)
        where = "" if line is None else f", line {line + 1} of it"
        reason = getattr(error, "problem", None) or type(error).__name__
        raise ValueError(f"the metadata of its {name} cannot be read{where}: {reason}") from None
    if content is not None and not isinstance(content, dict):
        raise ValueError(f"the metadata of its {name} cannot be read: expected names with values")
    return content or {}


def _configuration(entry: Mapping[str, Any]) -> Configuration:
    folder = _relative(str(entry.get("data_dir") or ""))
    given = entry.get("data_files")
    patterns = {} if given is None else _patterns(given, entry["config_name"])
    placed = {
        split: [_relative(posixpath.join(folder, path)) for path in of] for split, of in patterns.items()
    }
    ignored = [field for field in _CHOOSE_RECORDS if entry.get(field) is not None]
    return Configuration(folder, placed, bool(entry.get("default")), ignored)


def _relative(path: str) -> str:
    normal = posixpath.normpath(path)
    return "" if normal == "." else normal


def _patterns(given: Any, configuration: str) -> dict[str, list[str]]:
    """Return the file name patterns by split.

    given: the card's field `data_files`: a text, a list of texts, or a list of entries with split and path.
    """
    entries = [("train", given)]
    if isinstance(given, list) and all(
        isinstance(entry, dict) and {*entry} == {"split", "path"} for entry in given
    ):
        entries = [(entry["split"], entry["path"]) for entry in given]
    listed = [(split, [path] if isinstance(path, str) else path) for split, path in entries]
    if (
        not listed
        or not all(isinstance(split, str) and isinstance(paths, list) and paths for split, paths in listed)
        or not all(isinstance(path, str) for _, paths in listed for path in paths)
        or len({split for split, _ in listed}) < len(listed)
    ):
        raise ValueError(
            f"data_files of the configuration {configuration} in its README.md: expected patterns, or "
            "entries with split and path, each split once"
        )
    return dict(listed)
