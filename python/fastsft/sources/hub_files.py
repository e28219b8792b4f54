"""Download hub data sets, `hf://datasets/owner/name[@revision][/path]`, to the cache of huggingface_hub.

A cached snapshot does not show whether it is complete. Therefore the folder `fastsft` next to the snapshots
records the file names of each commit (`COMMIT.json`), and the commit of each revision at its last download
(`revisions/REVISION`).
"""

from __future__ import annotations

import functools
import json
import os
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from fastsft.runtime.hub import OF_DISK, hub_reason, is_refusal, is_unreachable, unreached
from fastsft.runtime.launch import launch_or_alone
from fastsft.runtime.messages import warn_once
from fastsft.runtime.output_files import replace_file
from fastsft.runtime.regular_files import read_regular
from fastsft.runtime.terminal import one_line
from fastsft.runtime.threads import TimedQueue
from fastsft.sources.file_formats import tell_rest
from fastsft.sources.hub_splits import CARD_FILES, Card, Choice, choose_files, incomplete_sets, read_card

PREFIX = "hf://datasets/"

_FORM = f"{PREFIX}owner/name, with @revision and /file, /folder or /pattern where needed"
_PATH = re.compile(r"hf://datasets/([^/@]+/[^/@]+)(?:@(refs/(?:convert|pr)/[^/]+|[^/]+))?(?:/(.*))?")
_MOST_CARD_BYTES = 1 << 20


def is_hub_path(path: str) -> bool:
    """True if `path` begins with hf://."""
    return path.startswith("hf://")


def fetch_hub_files(path: str, fetch: bool = True) -> list[str]:
    """Return the cached paths of the data files that `path` names by the rules of hub_splits.py.

    fetch: ask the hub, and download missing files. If `fetch` is False, or if the hub does not answer, a
    complete copy in the cache is used. The hub is asked only once per process, so that a branch stays at the
    same commit. ValueError, with a message of one line, if files are missing.
    """
    match = _PATH.fullmatch(path)
    revision = unquote(match[2] or "") if match else ""
    if match is None or {".", ".."} & {*revision.split("/")}:
        raise ValueError(one_line(f"{path}: expected {_FORM}"))
    try:
        return list(_files(match[1], revision, (match[3] or "").strip("/"), fetch))
    except ValueError as error:
        raise ValueError(one_line(f"{path}: {error}")) from error.__cause__


@functools.cache
def _files(name: str, revision: str, path: str, fetch: bool) -> tuple[str, ...]:
    from huggingface_hub import errors, utils

    repository = HubRepository(name, revision)
    listing = None
    try:
        utils.validate_repo_id(name)
        listing = repository.ask() if fetch else None
    except Exception as error:  # huggingface_hub raises errors of requests or httpx, depending on its release
        if not is_unreachable(error):
            if isinstance(error, errors.HfHubHTTPError | errors.HFValidationError):
                raise ValueError(_reason(error, repository)) from error
            raise
    return _from_cache(repository, path, fetch) if listing is None else _downloaded(repository, listing, path)


def _downloaded(repository: HubRepository, listing: Listing, path: str) -> tuple[str, ...]:
    def card() -> Card:
        repository.download(listing, [name for name in CARD_FILES if name in listing.names])
        return _card(repository, listing)

    choice = choose_files(listing.names, path, repository.root, card)
    repository.download(listing, choice.files)
    repository.keep(listing)
    _tell(repository, choice)
    return _paths(repository, listing, choice)


def _from_cache(repository: HubRepository, path: str, asked: bool) -> tuple[str, ...]:
    """Return the paths of the data files in the newest snapshot that has all of them.

    asked: True if the hub was asked and did not answer; a warning then names the snapshot.
    """
    faults, copies = [], repository.copies()
    for listing in copies:
        try:
            card = functools.partial(_card, repository, listing)
            choice = choose_files(listing.names, path, repository.root, card)
            paths = _paths(repository, listing, choice)
            part = [] if listing.is_whole or choice.is_typed else incomplete_sets(choice.files)
            if part:
                raise ValueError(f"it has {part[0]}")
        except ValueError as error:
            faults.append(f"{error} (the copy of commit {listing.commit} in the cache)")
            continue
        if asked:
            _tell_copy(repository, listing, choice, [other for other in copies if other != listing])
            _tell(repository, choice)
        return paths
    why = "the hub was not reached" if asked else "nothing is downloaded here"
    if faults:
        raise ValueError(f"{why}, and {faults[0]}")
    if asked:
        raise ValueError(unreached())
    raise ValueError(
        f"not on this machine, and {why}; the run downloads it, or hf download {repository.name} "
        "--repo-type dataset"
    )


def _paths(repository: HubRepository, listing: Listing, choice: Choice) -> tuple[str, ...]:
    paths = {name: repository.path(listing, name) for name in choice.files}
    missing = [name for name, path in paths.items() if path is None]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ValueError(
            f"{missing[0]}{more} of {len(paths)} files {'is' if len(missing) == 1 else 'are'} missing"
        )
    return tuple(str(path) for path in paths.values())


def _card(repository: HubRepository, listing: Listing) -> Card:
    texts = {}
    for name in CARD_FILES:
        path = repository.path(listing, name) if name in listing.names else None
        if path is not None:
            content = read_regular(path, _MOST_CARD_BYTES, "the card of a data set")
            texts[name] = content.decode("utf-8-sig", "replace")
        elif name in listing.names:
            raise ValueError(f"its {name} is missing")
    try:
        return read_card(texts)
    except ValueError as error:
        raise ValueError(f"{error}; name files instead: {repository.root}/FILE") from None


def _tell(repository: HubRepository, choice: Choice) -> None:
    """Warn about splits and files of the data set that are not read."""
    if choice.other_splits:
        others = ", ".join(f"{split} ({pattern})" for split, pattern in choice.other_splits.items())
        warn_once(f"{repository.root}: the split train is read; not read: {others}")
    tell_rest(repository.root, choice.rest)


def _tell_copy(
    repository: HubRepository, listing: Listing, choice: Choice, others: Sequence[Listing]
) -> None:
    count = f"{len(choice.files)} file{'' if len(choice.files) == 1 else 's'}"
    shown = ", ".join(choice.files[:5]) + (" ..." if len(choice.files) > 5 else "")
    doubt = "" if listing.is_whole else "; whether the data set has more is not known"
    more = "".join(
        f"; another copy is read as hf://datasets/{repository.name}@{other.commit}" for other in others[:1]
    )
    warn_once(
        f"{repository.root}: the hub was not reached; read from the copy of commit {listing.commit} in the "
        f"cache: {count}, {shown}{doubt}{more}"
    )


def _reason(error: Exception, repository: HubRepository) -> str:
    from huggingface_hub import errors

    if isinstance(error, errors.RevisionNotFoundError):
        return f"the data set has no revision {repository.revision}"
    return hub_reason(error, "data set")


_WORKERS = 8
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_MOST_LIST_BYTES = 256 << 20


@dataclass(frozen=True)
class Listing:
    """The file names of a commit. is_whole: False if only the files in the cache are known."""

    commit: str
    names: tuple[str, ...]
    is_whole: bool = True


def is_path(name: str) -> bool:
    """True if `name` is a valid path inside a repository."""
    return "\0" not in name and all(part not in ("", ".", "..") for part in name.split("/"))


@dataclass(frozen=True)
class HubRepository:
    """A data set on the hub. name: owner/name. revision: branch, tag or commit; "" for main."""

    name: str
    revision: str

    @property
    def root(self) -> str:
        """The name of the repository as in --data_path."""
        revision = self.revision if self.revision.startswith("refs/") else self.revision.replace("/", "%2F")
        return f"hf://datasets/{self.name}" + (f"@{revision}" if revision else "")

    def ask(self) -> Listing:
        """Ask the hub for the revision's commit and its file names.

        Errors of huggingface_hub are not caught. ValueError for an invalid commit or file name.
        """
        import huggingface_hub

        hub = huggingface_hub.HfApi()
        commit = hub.dataset_info(self.name, revision=self.revision or None).sha or ""
        if not _COMMIT.fullmatch(commit):
            raise ValueError(f"the hub names the commit {commit!r}; expected 40 hexadecimal digits")
        names = hub.list_repo_files(self.name, revision=commit, repo_type="dataset")
        for name in names:
            if not is_path(name):
                raise ValueError(f"the hub lists a file with the name {name!r}, which is no path in it")
        return Listing(commit, tuple(sorted(names)))

    def download(self, listing: Listing, names: Sequence[str]) -> None:
        """Download the files that the cache lacks. Only a single process per machine downloads at a time.

        ValueError if the download is interrupted or refused. Files that are complete stay in the cache.
        """
        with self._alone():
            self._write(self._list_of(listing.commit), json.dumps(listing.names))
            missing = [name for name in names if self.path(listing, name) is None]
            try:
                self._fetch(listing, missing)
            except Exception as error:  # network, disk and hub raise errors of many classes
                raise ValueError(self._fault(error)) from error

    def keep(self, listing: Listing) -> None:
        """Record this revision's commit. Called once all files of a run are in the cache."""
        self._write(self._commit_of_revision, listing.commit)

    def path(self, listing: Listing, name: str) -> str | None:
        """Return the path of a file in the cache; None if the cache does not have the file."""
        import huggingface_hub

        if not is_path(name) or not _COMMIT.fullmatch(listing.commit):
            return None
        cached = huggingface_hub.try_to_load_from_cache(
            self.name, name, revision=listing.commit, repo_type="dataset"
        )
        return cached if isinstance(cached, str) and os.path.isfile(cached) else None

    def copies(self) -> list[Listing]:
        """Return the listings of this revision that the cache has.

        Commits that fastsft has recorded come before snapshots that other programs have downloaded. In both
        groups, the commit that was written last comes first.
        """
        reference = self._directory / "refs" / (self.revision or "main")
        written = [path for path in (self._commit_of_revision, reference) if path.is_file()]
        written.sort(key=lambda path: path.stat().st_mtime, reverse=True)
        commits = [self.revision]
        for path in written:
            with suppress(ValueError):
                commits.append(read_regular(path, 1024).decode("ascii", "replace").strip())
        listings = [self._listed(commit) for commit in dict.fromkeys(commits) if _COMMIT.fullmatch(commit)]
        return sorted(
            (listing for listing in listings if listing.names), key=lambda listing: not listing.is_whole
        )

    def _fetch(self, listing: Listing, names: Sequence[str]) -> None:
        """Download the files `names`, several at a time.

        The first error is raised at once, without waiting for the other downloads.
        """
        import huggingface_hub

        if launch_or_alone().local_rank:  # only one rank per machine shows progress bars
            huggingface_hub.utils.disable_progress_bars()
        waiting, ended = list(reversed(names)), TimedQueue[Exception | None]()

        def work() -> None:
            with suppress(IndexError):
                while True:
                    name = waiting.pop()
                    try:
                        huggingface_hub.hf_hub_download(
                            self.name, name, revision=listing.commit, repo_type="dataset"
                        )
                        ended.put(None)
                    except Exception as error:
                        ended.put(error)

        for _ in range(min(_WORKERS, len(names))):
            threading.Thread(target=work, daemon=True, name="fastsft-download").start()
        with huggingface_hub.utils.tqdm(
            total=len(names), desc=f"Fetching {len(names)} files", disable=True if len(names) < 2 else None
        ) as bar:
            try:
                for _ in names:
                    if (error := ended.get()) is not None:
                        raise error
                    bar.update()
            finally:
                waiting.clear()

    def _fault(self, error: Exception) -> str:
        if is_refusal(error):
            return hub_reason(error, "data set")
        if isinstance(error, OSError) and error.errno in OF_DISK:
            return (
                f"cannot be written to the cache {self._directory.parent}: {error.strerror}; HF_HOME names "
                "another place"
            )
        first = next(iter(str(error).splitlines()), "") or type(error).__name__
        return f"the download was cut off: {one_line(first)}; run it again, which goes on from there"

    @property
    def _directory(self) -> Path:
        from huggingface_hub import constants

        return Path(constants.HF_HUB_CACHE) / f"datasets--{self.name.replace('/', '--')}"

    @property
    def _commit_of_revision(self) -> Path:
        return self._directory / "fastsft" / "revisions" / quote(self.revision or "main", safe="")

    def _list_of(self, commit: str) -> Path:
        return self._directory / "fastsft" / f"{commit}.json"

    @contextmanager
    def _alone(self) -> Iterator[None]:
        from huggingface_hub.utils import WeakFileLock

        with ExitStack() as stack:
            with suppress(OSError):  # a read-only cache may still contain all files
                (self._directory / "fastsft").mkdir(parents=True, exist_ok=True)
                stack.enter_context(WeakFileLock(self._directory / "fastsft" / "lock"))
            yield

    def _write(self, path: Path, content: str) -> None:
        with suppress(OSError):
            if not path.is_file() or path.read_text("utf-8") != content:
                path.parent.mkdir(parents=True, exist_ok=True)
                replace_file(path, content)

    def _listed(self, commit: str) -> Listing:
        """Return the recorded file names of a commit or, without a record, the files in its snapshot."""
        with suppress(ValueError):
            names = json.loads(read_regular(self._list_of(commit), _MOST_LIST_BYTES))
            if isinstance(names, list) and all(isinstance(name, str) and is_path(name) for name in names):
                return Listing(commit, tuple(names))
        directory, there = self._directory / "snapshots" / commit, []
        with suppress(OSError):
            there = [
                path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()
            ]
        return Listing(commit, tuple(sorted(there)), is_whole=False)
