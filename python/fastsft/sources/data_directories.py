"""Directories of data: what `datasets` saves to disk, and folders of data files of one kind."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable

from fastsft.runtime.messages import warn_once
from fastsft.runtime.regular_files import read_json_object

_KIND = re.compile(r"\.(parquet|arrow|jsonl|ndjson|json|csv|tsv)(\.gz|\.zst)?$")
NOT_DATA = ("dataset_info.json", "dataset_infos.json", "state.json", "dataset_dict.json")
_OF_MODELS = frozenset({"config.json", "tokenizer_config.json"})
_SPLIT = re.compile(r"(?:^|[-_.])(train|test|validation|valid|val|dev|eval)(?=[-_.])", re.IGNORECASE)


def files_of_directory(path: str) -> list[str]:
    """The data files of a directory, in order.

    Of one that `datasets` saved, those its state.json names; else all of one kind (.parquet, .arrow, .jsonl,
    .ndjson, .json, .csv, .tsv, also packed) by name. ValueError for several splits, several kinds, and none.
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


def kind_of_data(name: str) -> str | None:
    """The end of the name by which a file of a directory is data, as `.jsonl.gz`; None for others."""
    return match[0] if (match := _KIND.search(name)) else None


def _saved_files(folder: str) -> list[str]:
    state = read_json_object(os.path.join(folder, "state.json"))
    if state.get("_indices_files") or state.get("_indices_data_files"):
        raise ValueError(
            f"{folder} holds a selection of rows, which only datasets can read; save flatten_indices() of it"
        )
    entries = state.get("_data_files")
    names = [entry.get("filename") if isinstance(entry, dict) else None for entry in entries or []]
    if not names or not all(isinstance(name, str) and os.path.basename(name) == name for name in names):
        raise ValueError(f"{folder}/state.json: expected _data_files with file names, got something else")
    files = [os.path.join(folder, str(name)) for name in names]
    for file in files:
        if not os.path.isfile(file):
            raise ValueError(f"{file} is not a file, but {folder}/state.json names it")
    return files


def _files_of_one_kind(path: str, folder: str) -> list[str]:
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise ValueError(f"{path}: the directory cannot be read: {error.strerror}") from None
    if not _OF_MODELS.isdisjoint(names):
        raise ValueError(f"{path} is the directory of a model, not of data; name its files: {folder}/*.jsonl")
    found = {name: kind for name in names if name not in NOT_DATA and (kind := kind_of_data(name))}
    if not found:
        named = _pattern_below(folder) or f"{folder}/*.jsonl"
        raise ValueError(f"{path} is a directory; name its files: {named}")
    kinds = sorted(set(found.values()))
    if len(kinds) > 1:
        raise ValueError(
            f"{path} is a directory with files of several kinds ({', '.join(kinds)}); name those that are "
            f"meant: {folder}/*{kinds[0]}"
        )
    of_files = [match[1] if (match := _SPLIT.search(name)) else "" for name in found]
    splits = sorted(set(of_files) - {""})
    if len(splits) > 1 or (splits and "" in of_files and splits != ["train"]):
        raise ValueError(
            f"{path} is a directory with the splits {', '.join(splits)}; name one: "
            f"{folder}/{splits[-1] if 'train' not in splits else 'train'}*{kinds[0]}"
        )
    tell_rest(path, [name for name in names if name not in found and name[0] not in "._"])
    return [os.path.join(folder, name) for name in found]


def _pattern_below(folder: str) -> str | None:
    """A pattern for data in a folder below `folder`, as clones of the hub have it: of train, or the first."""
    levels = [glob.glob(os.path.join(glob.escape(folder), *["*"] * depth)) for depth in (2, 3)]
    files = [file for level in levels for file in sorted(level) if kind_of_data(file)]
    files = [file for file in files if os.path.basename(file) not in NOT_DATA]
    if not files:
        return None
    first = next((file for file in files if "train" in file.removeprefix(folder)), files[0])
    split = _SPLIT.search(os.path.basename(first))
    return os.path.join(os.path.dirname(first), f"{split[1] if split else ''}*{kind_of_data(first)}")


def tell_rest(path: str, names: Iterable[str]) -> None:
    """A line that lists what is not read: a file that was meant as data must not be missed in silence."""
    rest = [name for name in names if name not in NOT_DATA and not name.lower().startswith("readme")]
    if rest:
        more = f" and {len(rest) - 5} more" if len(rest) > 5 else ""
        warn_once(f"{path}: not read, as they are no data files: {', '.join(rest[:5])}{more}")
