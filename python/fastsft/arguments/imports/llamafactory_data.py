"""Finds the files of LLaMA-Factory's data sets by `dataset_info.json`; compares their columns and tags."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fastsft.arguments.imports import shared
from fastsft.arguments.imports.draft import Draft, is_off, number
from fastsft.runtime.regular_files import read_json, read_text

_INFO = "dataset_info.json"
_COLUMNS = {"prompt": "instruction", "query": "input", "response": "output", "messages": "conversations"}
_TAGS = {
    "role_tag": "from", "content_tag": "value", "user_tag": "human", "assistant_tag": "gpt",
    "observation_tag": "observation", "function_tag": "function_call", "system_tag": "system",
}  # fmt: skip
# Pairs of a prompt and a reply that fastsft reads, and the names that the column of more input may have.
_PAIRS = {
    ("instruction", "output"): ("input",), ("question", "answer"): ("context",),
    ("instruction", "response"): ("context", "input"), ("query", "response"): ("context",),
    ("prompt", "response"): ("context",), ("prompt", "completion"): (),
}  # fmt: skip
# names of roles that fastsft knows in every data set
ROLES = {
    "user": ("human", "user", "prompter"),
    "assistant": ("gpt", "assistant", "chatgpt", "bing", "bard", "model", "bot"),
    "system": ("system", "developer"),
    "tool": ("tool", "function", "observation", "ipython", "tool_response", "function_response"),
}
_NOT_READ = ("images", "videos", "audios", "chosen", "rejected", "kto_tag")


def data_sets(draft: Draft) -> None:
    """Read `dataset`, `eval_dataset` and what belongs to them."""
    folder = str(draft.get("dataset_dir", "data"))
    info, place = _info(draft, folder)
    for key, field in (("dataset", "data_path"), ("eval_dataset", "eval_data_path")):
        names = _names(draft.get(key))
        if key in draft.left and names:
            _read(draft, key, field, names, info, place)
    if "dataset_dir" in draft.left:
        draft.idle("dataset_dir", f"the files are named: {place}" if info else f"there is no {_INFO} in it")
    _evaluation(draft)
    strategy = draft.get("mix_strategy", "concat")
    for name in ("mix_strategy", "interleave_probs"):
        if name in draft.left and strategy == "concat":
            draft.idle(name, "data sets follow each other and are shuffled")
        elif name in draft.left:
            draft.lose(name, "data sets follow each other and are shuffled; a share is written as file:0.5")


def described_files(draft: Draft) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the files or names of all data sets, and the names under which `dataset_info.json` has them."""
    info, place = _info(draft, str(draft.get("dataset_dir", "data")))
    names = [name for key in ("dataset", "eval_dataset") for name in _names(draft.get(key))]
    for name in names if info else []:
        file = (info or {}).get(name, {}).get("file_name")
        described = {"dataset": name, "dataset_dir": str(place.resolve())}
        yield str(place / file) if file else name, described


def _names(value: object) -> list[str]:
    items = value if isinstance(value, list) else str(value).split(",") if value else []
    return [str(item).strip() for item in items]


def _info(draft: Draft, folder: str) -> tuple[dict[str, Any] | None, Path]:
    """Return the content of `dataset_info.json` and its directory; None if there is no such file."""
    for candidate in (f"{folder}/{_INFO}", _INFO):
        if (found := draft.found(candidate)) is not None:
            content = read_json(found, of_user=True)
            if not isinstance(content, dict):
                raise ValueError(
                    f"{found}: expected an object with data sets by name, got {type(content).__name__}; "
                    "write "
                    '{"NAME": {"file_name": "FILE"}}'
                )
            return content, Path(found).parent
    return None, Path(folder)


def _read(
    draft: Draft, key: str, field: str, names: list[str], info: Mapping[str, Any] | None, place: Path
) -> None:
    if draft.get("dataset_dir") == "ONLINE":
        shared.data_path(draft, key, [path for name in names for path in shared.hub_data(name)], field=field)
        return
    if info is None:
        draft.lose(
            key,
            f"no {_INFO} in {place}, which has the files of {', '.join(names)}; looked here and next to the "
            f"file: add {field}",
        )
        return
    paths: list[str] = []
    roles: dict[str, str] = {}
    problems: list[str] = []
    for name in names:
        try:
            entry = info[name]
        except KeyError:
            raise ValueError(f"{key}: {place / _INFO} has no data set {name}") from None
        found, problem = _paths(entry, place, draft)
        paths += found
        problems += [f"{name}: {text}" for text in [*problem, *_columns(entry, roles)]]
    values: dict[str, object] = {field: paths[0] if len(paths) == 1 else paths} if paths else {}
    _check_most_records(draft, paths)
    if roles:
        values["role_map"] = ",".join(f"{name}={role}" for name, role in roles.items())
    if problems:
        draft.lose(key, "; ".join(problems), values)
    else:
        draft.carry(key, values)


def _check_most_records(draft: Draft, paths: list[str]) -> None:
    """Note that `max_samples` changes nothing if every data set is known to have no more records."""
    most = draft.get("max_samples")
    if "max_samples" not in draft.left or not isinstance(most, int):
        return
    numbers = [_num_records(Path(path)) for path in paths]
    if numbers and max(numbers) <= most:
        draft.idle("max_samples", f"the data sets have {', '.join(map(str, numbers))} records")


def _num_records(path: Path) -> float:
    """Return the number of records in a small local JSON file; infinity for other files."""
    try:
        if path.suffix == ".jsonl":
            return sum(1 for line in read_text(path).splitlines() if line.strip())
        content = read_json(path) if path.suffix == ".json" else None
    except (ValueError, OSError):
        return math.inf
    return len(content) if isinstance(content, list) else math.inf


def _paths(entry: Mapping[str, Any], place: Path, draft: Draft) -> tuple[list[str], list[str]]:
    """Return a data set's paths, and what fastsft cannot read of it."""
    problems = ["num_samples is not carried: every record is read"] if entry.get("num_samples") else []
    if entry.get("ranking"):
        raise ValueError(
            "dataset: preference data (ranking) is not in: supervised fine-tuning is all there is; name "
            "other data sets"
        )
    if "hf_hub_url" in entry:
        try:
            return shared.hub_data(entry["hf_hub_url"], entry.get("subset"), entry.get("split")), problems
        except ValueError as error:
            return shared.hub_data(entry["hf_hub_url"], entry.get("subset")), [*problems, str(error)]
    if "file_name" in entry:
        split = entry.get("split", "train")
        if split != "train":
            problems.append(f"split {split}: the whole file is read")
        return [str(place / entry["file_name"])], problems
    kinds = ", ".join(key for key in entry if key.endswith("_url") or key == "cloud_file_name")
    return [], [*problems, f"{kinds or 'no file_name'}: give a file, or hf://datasets/owner/name"]


def _columns(entry: Mapping[str, Any], roles: dict[str, str]) -> list[str]:
    """Return what fastsft reads otherwise of the columns and tags; add unknown roles to `roles`."""
    given = entry.get("columns") or {}
    columns = {name: given.get(name) for name in _COLUMNS} if given else dict(_COLUMNS)
    problems = [f"the column {given[name]} ({name}) is not read" for name in _NOT_READ if given.get(name)]
    for name in ("system", "tools", "history"):
        if given.get(name) not in (None, name):
            problems.append(f"rename the column {given[name]} to {name}")
    if entry.get("formatting", "alpaca") == "alpaca":
        return [*problems, *_pair(columns)]
    tags = _TAGS | {name: tag for name, tag in (entry.get("tags") or {}).items() if tag is not None}
    names = (tags["role_tag"], tags["content_tag"])
    if names not in (("from", "value"), ("role", "content")):
        problems.append(f"messages have {names[0]} and {names[1]}: rename them to role and content")
    return [*problems, *_roles(tags, roles)]


def _pair(columns: Mapping[str, str | None]) -> list[str]:
    pair, more = (columns["prompt"] or "", columns["response"] or ""), columns["query"]
    if pair in _PAIRS and (more is None or more in _PAIRS[pair]):
        return []
    known = ", ".join(f"{ask} and {reply}" for ask, reply in _PAIRS)
    return [f"columns are {pair[0]} and {pair[1]}{f' with {more}' if more else ''}: rename them ({known})"]


def _roles(tags: Mapping[str, str], roles: dict[str, str]) -> list[str]:
    for role in ROLES:
        name = tags["observation_tag" if role == "tool" else f"{role}_tag"]
        if name not in ROLES[role]:
            roles[name] = role
    call = tags["function_tag"]
    if call in ("function_call", "tool_call"):
        return []
    return [f"the role {call} is not read as a call: function_call is"]


def _evaluation(draft: Draft) -> None:
    size = draft.get("val_size")
    if "val_size" not in draft.left:
        return
    if is_off(size) or number("val_size", size) == 0:
        draft.idle("val_size", "nothing is taken out for evaluation")
        return
    given = number("val_size", size)
    share = int(given) if given >= 1 else given
    draft.carry("val_size", {"eval_split": share}, "other records are drawn")
