"""Files of a data set of the hub: `hf://datasets/owner/name[@revision][/path]`, in the hub's own cache."""

from __future__ import annotations

import functools
import glob
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from fastsft.runtime.hub import hub_reason, is_unreachable
from fastsft.runtime.messages import warn_once
from fastsft.runtime.place import launch_or_alone
from fastsft.runtime.regular_files import read_regular
from fastsft.sources.hub_splits import Choice, choose_files, missing_shards

_FORM = "hf://datasets/owner/name, with @revision and /file, /folder or /pattern where needed"
_PATH = re.compile(r"hf://datasets/([^/@]+/[^/@]+)(?:@(refs/(?:convert|pr)/[^/]+|[^/]+))?(?:/(.*))?")
_CARD = "README.md"
_METADATA = re.compile(r"\s*---[\r\n]+(.*?)[\r\n]+---\s", re.DOTALL)
_TRIES = 3  # a branch may move between the list of its files and the download


def is_of_hub(path: str) -> bool:
    """It begins with hf://."""
    return path.startswith("hf://")


def files_of_hub(path: str, fetch: bool = True) -> list[str]:
    """The data files of the hub that `path` means, as paths in the cache; hub_splits.py has the rules.

    What is not there is downloaded if `fetch`. Where the hub gives no answer, and without `fetch`, the cached
    copy is taken. The hub is asked once a process: a branch stays at one commit. ValueError for what is not
    there.
    """
    match = _PATH.fullmatch(path)
    if match is None:
        raise ValueError(f"{path}: expected {_FORM}")
    try:
        return list(_files(match[1], unquote(match[2] or ""), (match[3] or "").strip("/"), fetch))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error.__cause__


@dataclass(frozen=True)
class _Repository:
    """A data set at one revision (empty: main)."""

    name: str
    revision: str

    @property
    def root(self) -> str:
        revision = self.revision if self.revision.startswith("refs/") else self.revision.replace("/", "%2F")
        return f"hf://datasets/{self.name}" + (f"@{revision}" if revision else "")

    def listed(self) -> tuple[str, list[str]]:
        """The commit and the names of its files, as the hub has them."""
        import huggingface_hub

        info = huggingface_hub.HfApi().dataset_info(self.name, revision=self.revision or None)
        return info.sha or "", [each.rfilename for each in info.siblings or []]

    def download(self, names: list[str]) -> Path:
        """The directory in the cache that has them now."""
        import huggingface_hub

        if launch_or_alone().local_rank:  # one rank of a machine shows the bars
            huggingface_hub.utils.disable_progress_bars()
        patterns = [glob.escape(name) for name in names]
        return Path(huggingface_hub.snapshot_download(**self._named(), allow_patterns=patterns))

    def cached(self) -> Path:
        """The directory in the cache."""
        import huggingface_hub

        return Path(huggingface_hub.snapshot_download(**self._named(), local_files_only=True))

    def _named(self) -> dict[str, Any]:
        return {"repo_id": self.name, "repo_type": "dataset", "revision": self.revision or None}


@functools.cache
def _files(name: str, revision: str, path: str, fetch: bool) -> tuple[str, ...]:
    from huggingface_hub import errors

    repository = _Repository(name, revision)
    try:
        if fetch and (files := _downloaded(repository, path)) is not None:
            return files
        return _cached(repository, path, fetch)
    except (errors.HfHubHTTPError, errors.LocalEntryNotFoundError, errors.HFValidationError) as error:
        raise ValueError(_reason(error, repository, fetch)) from error


def _downloaded(repository: _Repository, path: str) -> tuple[str, ...] | None:
    """None where the hub gives no answer."""
    for _ in range(_TRIES):
        try:
            commit, names = repository.listed()
            card = _card(repository.download([_CARD])) if _CARD in names else {}
            choice = choose_files(names, path, card, repository.root)
            directory = repository.download([*choice.files, _CARD])
        except ValueError:
            raise
        except Exception as error:  # of the network: the library has several for one cause
            if is_unreachable(error):
                return None
            raise
        files = tuple(str(directory / name) for name in choice.files)
        if directory.name == commit and all(map(os.path.isfile, files)):
            _tell(repository, choice)
            return files
    raise ValueError(f"{len(choice.files)} files of commit {commit} were not downloaded whole; try again")


def _cached(repository: _Repository, path: str, fetch: bool) -> tuple[str, ...]:
    directory = repository.cached()
    names = sorted(each.relative_to(directory).as_posix() for each in directory.rglob("*") if each.is_file())
    asked = "the hub was not reached" if fetch else "the hub is not asked here"
    copy = f"the copy of commit {directory.name} in the cache"
    try:
        choice = choose_files(names, path, _card(directory), repository.root)
    except ValueError as error:
        raise ValueError(f"{error} ({copy}; {asked})") from None
    if missing := missing_shards(choice.files):
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ValueError(f"{copy} lacks {missing[0]}{more}, and {asked}")
    if fetch:
        count = f"{len(choice.files)} file{'' if len(choice.files) == 1 else 's'}"
        shown = ", ".join(choice.files[:5]) + (" ..." if len(choice.files) > 5 else "")
        warn_once(f"{repository.root}: {asked}; read from {copy}: {count}, {shown}")
    _tell(repository, choice)
    return tuple(str(directory / name) for name in choice.files)


def _card(directory: Path) -> Mapping[str, Any]:
    """The metadata of README.md: YAML between two lines of `---` at its start."""
    import yaml  # type: ignore[import-untyped]

    path = directory / _CARD
    text = (
        read_regular(path, what="the card of a data set").decode("utf-8-sig", "replace")
        if path.is_file()
        else ""
    )
    match = _METADATA.match(text)
    try:
        found = yaml.safe_load(match[1]) if match else None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        first = next(iter(str(error).splitlines()), type(error).__name__)
        raise ValueError(f"the metadata of its {_CARD} cannot be read: {first}") from None
    return found if isinstance(found, dict) else {}


def _tell(repository: _Repository, choice: Choice) -> None:
    """A line that names the splits that are not read."""
    if choice.others:
        others = ", ".join(f"{split} ({pattern})" for split, pattern in choice.others)
        warn_once(f"{repository.root}: the split {choice.split} is read; not read: {others}")
    elif choice.split not in ("", "train"):
        warn_once(f"{repository.root}: its only split is read: {choice.split}")


def _reason(error: Exception, repository: _Repository, fetch: bool) -> str:
    from huggingface_hub import errors

    if not fetch and isinstance(error, errors.LocalEntryNotFoundError):
        return (
            "not on this machine, and nothing is downloaded here; the run downloads it, or "
            f"hf download {repository.name} --repo-type dataset"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return f"the data set has no revision {repository.revision}"
    return hub_reason(error, "data set")
