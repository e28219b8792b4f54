"""The card of a data set of the hub: the configurations in its README.md, by the rules of `datasets`."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

CARD_FILES = ("README.md", ".huggingface.yaml")  # of the second, what it says counts more

_BEGIN = re.compile(r"\s*---[\r\n]")  # these two are huggingface_hub's pattern in linear time
_END = re.compile(r"[\r\n]---(?:\r\n|\n|\Z)")
# They change what is read of a file: of JSON, of Parquet, of CSV.
_CHOOSE_RECORDS = (
    "field", "filters", "columns", "sep", "delimiter", "header", "names", "column_names", "usecols",
    "skiprows", "nrows", "skipfooter", "skipinitialspace", "quotechar", "quoting", "escapechar", "comment",
    "encoding", "dialect",
)  # fmt: skip


@dataclass(frozen=True)
class Configuration:
    """`folder`: where its files are, "" for everywhere. `patterns`: by split, empty where there are none."""

    folder: str
    patterns: Mapping[str, Sequence[str]]
    is_default: bool
    ignored: Sequence[str] = ()  # fields that change how files are read, which fastsft cannot


def read_card(texts: Mapping[str, str]) -> dict[str, Configuration]:
    """The configurations in the texts of CARD_FILES, by name. ValueError for what `datasets` refuses, too."""
    found: dict[str, Any] = {}
    for name in CARD_FILES:
        text = texts.get(name, "")
        found |= _metadata(_front_matter(text) if name.endswith(".md") else text, name)
    listed = found.get("configs") or []
    if not isinstance(listed, list) or not all(
        isinstance(each, dict) and isinstance(each.get("config_name"), str) for each in listed
    ):
        raise ValueError("the configs of its README.md: expected a list of entries with a config_name")
    return {each["config_name"]: _configuration(each) for each in listed}


def _front_matter(text: str) -> str:
    """The lines between the first one, `---`, and the next such line; "" where there is no second."""
    begin = _BEGIN.match(text)
    end = _END.search(text, begin.end()) if begin else None
    return text[begin.end() : end.start()] if begin and end else ""


def _metadata(text: str, name: str) -> dict[str, Any]:
    import yaml  # type: ignore[import-untyped]

    try:
        found = yaml.safe_load(text)
    except Exception as error:  # of YAML, and of Python for tags with other values than they take
        line = getattr(getattr(error, "problem_mark", None), "line", None)
        where = "" if line is None else f", line {line + 1} of it"
        reason = getattr(error, "problem", None) or type(error).__name__
        raise ValueError(f"the metadata of its {name} cannot be read{where}: {reason}") from None
    if found is not None and not isinstance(found, dict):
        raise ValueError(f"the metadata of its {name} cannot be read: expected names with values")
    return found or {}


def _configuration(entry: Mapping[str, Any]) -> Configuration:
    folder = _relative(str(entry.get("data_dir") or ""))
    given = entry.get("data_files")
    patterns = {} if given is None else _patterns(given, entry["config_name"])
    placed = {
        split: [_relative(posixpath.join(folder, each)) for each in of] for split, of in patterns.items()
    }
    ignored = [field for field in _CHOOSE_RECORDS if entry.get(field) is not None]
    return Configuration(folder, placed, bool(entry.get("default")), ignored)


def _relative(path: str) -> str:
    normal = posixpath.normpath(path)
    return "" if normal == "." else normal


def _patterns(given: Any, configuration: str) -> dict[str, list[str]]:
    """`data_files` as a text, a list of texts, or of entries with split and path."""
    entries = [("train", given)]
    if isinstance(given, list) and all(
        isinstance(each, dict) and {*each} == {"split", "path"} for each in given
    ):
        entries = [(each["split"], each["path"]) for each in given]
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
