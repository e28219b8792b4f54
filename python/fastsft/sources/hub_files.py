"""Download the files of a hub data set, `hf://datasets/owner/name[@revision][/path]`, to the hub's own
cache.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from urllib.parse import unquote

from fastsft.runtime.hub import UNREACHED, hub_reason, is_unreachable
from fastsft.runtime.messages import warn_once
from fastsft.runtime.regular_files import read_regular
from fastsft.runtime.terminal import one_line
from fastsft.sources.file_formats import tell_rest
from fastsft.sources.hub_repository import HubRepository, Listing
from fastsft.sources.hub_splits import CARD_FILES, Card, Choice, choose_files, incomplete_sets, read_card

PREFIX = "hf://datasets/"

_FORM = f"{PREFIX}owner/name, with @revision and /file, /folder or /pattern where needed"
_PATH = re.compile(r"hf://datasets/([^/@]+/[^/@]+)(?:@(refs/(?:convert|pr)/[^/]+|[^/]+))?(?:/(.*))?")
_MOST_CARD_BYTES = 1 << 20


def is_hub_path(path: str) -> bool:
    """True for a path that begins with hf://."""
    return path.startswith("hf://")


def fetch_hub_files(path: str, fetch: bool = True) -> list[str]:
    """Return the paths in the cache of the data files that `path` means (rules: hub_splits.py).

    Missing files are downloaded if `fetch`. If the hub does not answer, or without `fetch`, a complete copy
    in the cache is used. The hub is asked once in a process, so that a branch stays at one commit. ValueError
    of one line for missing files.
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
    except Exception as error:  # requests' or httpx's, depending on the library's release
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
    """Return the paths of the newest complete snapshot. asked: the hub was asked and did not answer; print
    a notice.
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
        raise ValueError(UNREACHED)
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
    """Warn about splits and files that are not read."""
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
