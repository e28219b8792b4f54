"""Find the data files that `--data_path` names: paths, patterns, directories, or data sets on the hub.

A directory contains either a data set that the library datasets has saved, or data files of one format.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fastsft.runtime.near_names import missing_hint, nearest_path
from fastsft.runtime.regular_files import check_name, read_json_object
from fastsft.runtime.ways_out import reading_advice
from fastsft.sources.file_formats import NOT_DATA, data_suffix, tell_rest
from fastsft.sources.hub_files import PREFIX, fetch_hub_files, is_hub_path

_WEIGHT = re.compile(r"(.+):(\d+(?:\.\d*)?|\.\d+)")
_STANDARD_INPUT = "-"


@dataclass(frozen=True)
class DataFile:
    """A data file and its weight.

    weight: how often each record is used; 0.5 uses half of the records, 2 uses each record twice.
    """

    path: str
    weight: float = 1.0

    @property
    def is_stream(self) -> bool:
        """True if the file can be read only once: standard input or a pipe."""
        return self.path == _STANDARD_INPUT or not os.path.isfile(self.path)


def bytes_to_read(files: Iterable[DataFile]) -> int | None:
    """Return how many bytes of JSON the files have, for progress; None if that is known only at their end.

    It is unknown for streams, and for files that are unpacked or converted to JSON while they are read.
    """
    total = 0
    for file in files:
        if file.is_stream or data_suffix(file.path) not in (None, ".json", ".jsonl", ".ndjson"):
            return None
        total += os.path.getsize(file.path)
    return total


def data_files(spec: str, fetch: bool = True) -> list[DataFile]:
    """Return the files that `--data_path` names, for example `a.json,b.jsonl:0.5`, `data/*.jsonl` or `-`.

    Items are separated by commas. An item is a file, a pattern, a directory with data files, `-` for standard
    input, or `hf://datasets/owner/name` for a data set on the hub (hub_files.py). `:0.5` after an item is its
    weight. The files that match a pattern are sorted by name. If `spec` or an item is itself the name of an
    existing file, commas and colons in it have no special meaning.


    fetch: download missing files of the hub. ValueError if there is no such file.
    """
    if os.path.exists(spec) and not os.path.isdir(spec):
        check_name(spec, "a file of data")
        return [DataFile(spec)]
    files = [file for item in spec.split(",") for file in _expand(item.strip(), fetch)]
    for file in files:
        check_name(file.path, "a file of data")
    if sum(file.path == _STANDARD_INPUT for file in files) > 1:
        raise ValueError("standard input (-) is named twice; it can be read once")
    return files


def _expand(item: str, fetch: bool) -> Iterator[DataFile]:
    if not item.strip():
        raise ValueError("expected names of files with a comma between two, got an empty one; leave it out")
    item = item if os.path.exists(item) else os.path.expanduser(item)
    path, weight = item, 1.0
    match = _WEIGHT.fullmatch(item)
    if match and not os.path.exists(item):
        path, weight = match[1], float(match[2])
        if not 0 < weight <= 1000:
            raise ValueError(f"{item}: the weight of a data file must lie above 0 and be at most 1000")
    if is_hub_path(path):
        paths = fetch_hub_files(path, fetch)
    elif path == _STANDARD_INPUT or os.path.exists(path):
        paths = [path]
    else:
        paths = sorted(glob.glob(path, recursive=True))
    if not paths:
        raise ValueError(f"{path} is not a file, and no file's name matches it{_hint_at(path)}")
    for found in paths:
        if os.path.islink(found) and not os.path.exists(found):
            raise ValueError(
                f"{found} is a link to {os.readlink(found)}, which is not there; name another file"
            )
        for path in directory_files(found) if os.path.isdir(found) else [found]:
            yield DataFile(path, weight)


def _hint_at(path: str) -> str:
    """Return a hint for an error message about a missing file: a file of a similar name, or the hub."""
    if "/datasets/" in path and "://" in path:
        name = path.partition("/datasets/")[2].split("/")
        return f"; a data set of the hub is {PREFIX}{'/'.join(name[:2]) if len(name) > 1 else 'owner/name'}"
    if names := [name for name in re.split(r"[;|\s]+", path) if name and os.path.exists(name)][1:]:
        return f"; the names of several files have commas between them, as in FILE,{names[0]}"
    if "$" in path:
        return missing_hint(path)
    if "{" in path or "}" in path:
        return "; braces are the shell's: leave the quotes out, or write a pattern with *"
    if path in ("None", "null", "none"):
        return "; leave the flag out"
    if path.startswith("file://"):
        return f"; write the path alone, {path.removeprefix('file://')}"
    if "://" in path:
        return "; download it, and name the file"
    if ":" in path and os.path.exists(path.rpartition(":")[0]):
        file, _, weight = path.rpartition(":")
        return f"; a weight is a number above 0, as in {file}:0.5, and not {weight}"
    if near := nearest_path(path):
        return f"; the nearest there is {near}"
    if _HUB_NAME.fullmatch(path) and not os.path.isdir(os.path.dirname(path)):
        return f"; a data set of the hub is {PREFIX}{path}"
    return missing_hint(path)


_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_OF_MODELS = frozenset({"config.json", "tokenizer_config.json"})
_SPLIT = re.compile(r"(?:^|[-_.])(train|test|validation|valid|val|dev|eval)(?=[-_.])", re.IGNORECASE)


def directory_files(path: str) -> list[str]:
    """Return the paths of the data files in a directory, in order.

    If the library datasets saved the directory, state.json names the files. Otherwise the data files are all
    files with the suffix of a data format (.parquet, .arrow, .jsonl, .ndjson, .json, .csv, .tsv, also
    compressed), sorted by name. ValueError if there are several splits, several formats, or no files.
    """
    folder = path.rstrip("/") or "/"
    if os.path.exists(os.path.join(folder, "dataset_dict.json")):
        splits = read_json_object(os.path.join(folder, "dataset_dict.json")).get("splits")
        names = [str(name) for name in splits] if isinstance(splits, list) else []
        raise ValueError(
            f"{path} is a DatasetDict with the splits {', '.join(names) or '(none)'}; name one: "
            f"{folder}/{names[0] if names else 'train'}"
        )
    if os.path.exists(os.path.join(folder, "state.json")):
        return _saved_files(folder)
    return _files_of_one_kind(path, folder)


def _saved_files(folder: str) -> list[str]:
    state = read_json_object(os.path.join(folder, "state.json"))
    if state.get("_indices_files") or state.get("_indices_data_files"):
        raise ValueError(
            f"{folder} holds a selection of rows, which only datasets can read; save flatten_indices() of it"
        )
    entries = state.get("_data_files")
    names = [entry.get("filename") if isinstance(entry, dict) else None for entry in entries or []]
    if not names or not all(isinstance(name, str) and os.path.basename(name) == name for name in names):
        raise ValueError(
            f"{folder}/state.json: expected _data_files with file names, got something else; copy the folder "
            "again, or name its files"
        )
    files = [os.path.join(folder, str(name)) for name in names]
    for file in files:
        if not os.path.isfile(file):
            raise ValueError(f"{file} is not a file, but {folder}/state.json names it; copy it, too")
    return files


def _files_of_one_kind(path: str, folder: str) -> list[str]:
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        reason = f"{error.strerror}{reading_advice(error)}"
        raise ValueError(f"{path}: the directory cannot be read: {reason}") from None
    if not _OF_MODELS.isdisjoint(names):
        raise ValueError(f"{path} is the directory of a model, not of data; name its files: {folder}/*.jsonl")
    suffixes = {name: kind for name in names if name not in NOT_DATA and (kind := data_suffix(name))}
    if not suffixes:
        if below := _pattern_below(folder):
            raise ValueError(f"{path} is a directory; name its files: {below}")
        got = "nothing" if not names else f"{', '.join(names[:3])}{', ...' * (len(names) > 3)}"
        raise ValueError(
            f"{path}: expected a directory with data files (.json, .jsonl, .parquet, .arrow, .csv), found "
            f"{got}; name another directory, or a file"
        )
    kinds = sorted(set(suffixes.values()))
    if len(kinds) > 1:
        raise ValueError(
            f"{path} is a directory with files of several kinds ({', '.join(kinds)}); name those that are "
            f"meant: {folder}/*{kinds[0]}"
        )
    of_files = [match[1] if (match := _SPLIT.search(name)) else "" for name in suffixes]
    splits = sorted(set(of_files) - {""})
    if len(splits) > 1 or (splits and "" in of_files and splits != ["train"]):
        raise ValueError(
            f"{path} is a directory with the splits {', '.join(splits)}; name one: "
            f"{folder}/{splits[-1] if 'train' not in splits else 'train'}*{kinds[0]}"
        )
    tell_rest(path, [name for name in names if name not in suffixes and name[0] not in "._"])
    return [os.path.join(folder, name) for name in suffixes]


def _pattern_below(folder: str) -> str | None:
    """Return a pattern for the data files in a subfolder, preferably for the training split.

    None if there are no such files.
    """
    levels = [glob.glob(os.path.join(glob.escape(folder), *["*"] * depth)) for depth in (2, 3)]
    files = [file for level in levels for file in sorted(level) if data_suffix(file)]
    files = [file for file in files if os.path.basename(file) not in NOT_DATA]
    if not files:
        return None
    first = next((file for file in files if "train" in file.removeprefix(folder)), files[0])
    split = _SPLIT.search(os.path.basename(first))
    return os.path.join(os.path.dirname(first), f"{split[1] if split else ''}*{data_suffix(first)}")
