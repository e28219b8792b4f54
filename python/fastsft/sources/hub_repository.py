"""A data set's repository on the hub, and its copies in the cache of huggingface_hub.

Next to the copies, in `fastsft/REVISION.json`, is kept which files a revision has: without an answer of the
hub a copy alone cannot tell whether it is whole.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from fastsft.runtime.hub import hub_reason, is_refusal
from fastsft.runtime.output_files import replace_file
from fastsft.runtime.place import launch_or_alone
from fastsft.runtime.regular_files import read_json_object, read_regular
from fastsft.runtime.terminal_text import one_line

_WORKERS = 8


@dataclass(frozen=True)
class Listing:
    """The files of a commit; `is_whole` is False for those that a copy happens to have."""

    commit: str
    names: tuple[str, ...]
    is_whole: bool = True


@dataclass(frozen=True)
class HubRepository:
    """`name`: owner/name. `revision`: a branch, tag or commit; "" is main."""

    name: str
    revision: str

    @property
    def root(self) -> str:
        """Its name as --data_path takes it."""
        revision = self.revision if self.revision.startswith("refs/") else self.revision.replace("/", "%2F")
        return f"hf://datasets/{self.name}" + (f"@{revision}" if revision else "")

    def ask(self) -> Listing:
        """The hub's own list. Raises what huggingface_hub raises; ValueError for names that are no paths."""
        import huggingface_hub

        hub = huggingface_hub.HfApi()
        commit = hub.dataset_info(self.name, revision=self.revision or None).sha or ""
        names = hub.list_repo_files(self.name, revision=commit, repo_type="dataset")
        for name in names:
            if not all(part not in ("", ".", "..") for part in name.split("/")) or "\0" in name:
                raise ValueError(f"the hub lists a file with the name {name!r}, which is no path in it")
        return Listing(commit, tuple(sorted(names)))

    def download(self, listing: Listing, names: Sequence[str]) -> None:
        """Into the cache, what is not there; one process of a machine at a time.

        ValueError where it is cut off or refused; what was downloaded stays.
        """
        with self._alone():
            missing = [name for name in names if self.path(listing, name) is None]
            try:
                self._fetch(listing, missing)
            except Exception as error:  # of the network, the disk, the hub's storage: many classes
                if is_refusal(error):
                    raise ValueError(hub_reason(error, "data set")) from error
                first = next(iter(str(error).splitlines()), "") or type(error).__name__
                raise ValueError(
                    f"the download was cut off: {one_line(first)}; run it again, which goes on from there"
                ) from error

    def keep(self, listing: Listing) -> None:
        """As the list of this revision, once the files of a run are there."""
        content = json.dumps({"commit": listing.commit, "names": listing.names})
        with suppress(OSError):
            replace_file(self._record, content)

    def path(self, listing: Listing, name: str) -> str | None:
        """A file in the cache; None where it is not."""
        import huggingface_hub

        found = huggingface_hub.try_to_load_from_cache(
            self.name, name, revision=listing.commit, repo_type="dataset"
        )
        return found if isinstance(found, str) and os.path.isfile(found) else None

    def copies(self) -> list[Listing]:
        """Of this revision in the cache, the newest first: one that was listed, and one of other programs."""
        found = [
            (self._record, self._kept()),
            (self._directory / "refs" / (self.revision or "main"), self._others()),
        ]
        there = [(path, listing) for path, listing in found if listing is not None]
        there.sort(key=lambda each: each[0].stat().st_mtime if each[0].exists() else 0.0, reverse=True)
        return [listing for _, listing in there]

    def _fetch(self, listing: Listing, names: Sequence[str]) -> None:
        import huggingface_hub
        from tqdm.contrib.concurrent import thread_map  # type: ignore[import-untyped]

        if launch_or_alone().local_rank:  # one rank of a machine shows bars
            huggingface_hub.utils.disable_progress_bars()

        def fetch(name: str) -> None:
            huggingface_hub.hf_hub_download(self.name, name, revision=listing.commit, repo_type="dataset")

        if len(names) > 1:
            thread_map(
                fetch, names, max_workers=_WORKERS, desc=f"Fetching {len(names)} files",
                tqdm_class=huggingface_hub.utils.tqdm,
            )  # fmt: skip
        else:
            for name in names:
                fetch(name)

    @property
    def _directory(self) -> Path:
        from huggingface_hub import constants

        return Path(constants.HF_HUB_CACHE) / f"datasets--{self.name.replace('/', '--')}"

    @property
    def _record(self) -> Path:
        return self._directory / "fastsft" / f"{quote(self.revision or 'main', safe='')}.json"

    @contextmanager
    def _alone(self) -> Iterator[None]:
        from huggingface_hub.utils import WeakFileLock

        with ExitStack() as stack:
            with suppress(OSError):  # a cache that cannot be written, with all that is asked for
                self._record.parent.mkdir(parents=True, exist_ok=True)
                stack.enter_context(WeakFileLock(self._record.parent / "lock"))
            yield

    def _kept(self) -> Listing | None:
        if not self._record.is_file():
            return None
        try:
            found = read_json_object(self._record)
        except ValueError:
            return None
        commit, names = found.get("commit"), found.get("names")
        if (
            not isinstance(commit, str)
            or not isinstance(names, list)
            or not all(isinstance(n, str) for n in names)
        ):
            return None
        return Listing(commit, tuple(names))

    def _others(self) -> Listing | None:
        """The copy of hf download, or another program, by the layout that huggingface_hub documents."""
        commit = self.revision or "main"
        with suppress(OSError, ValueError):
            commit = read_regular(self._directory / "refs" / commit, 1024).decode().strip()
        directory = self._directory / "snapshots" / commit
        files = (each for each in directory.rglob("*") if each.is_file())
        names = sorted(each.relative_to(directory).as_posix() for each in files)
        return Listing(commit, tuple(names), is_whole=False) if names else None
