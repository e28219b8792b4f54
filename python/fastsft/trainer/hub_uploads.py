"""Uploads of a run's models to the Hugging Face hub, by rank 0 with huggingface_hub (--push_to_hub)."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fastsft.ranks.exchange import AllOrNone
from fastsft.ranks.rank0_first import while_first_works
from fastsft.runtime.launch import launch
from fastsft.runtime.messages import tell
from fastsft.runtime.new_files import NewFile, fresh_file
from fastsft.runtime.timeouts import deadline

if TYPE_CHECKING:
    from huggingface_hub import CommitInfo, HfApi

    from fastsft.arguments import TrainingArguments
    from fastsft.trainer.setup import Setup

_LINKED = ".upload-"
_MARK = ".fastsft-owner"  # name of the file that marks a directory as fastsft's own temporary directory
# Checkpoints, archived files and hidden files in output_dir are not uploaded. Files of a checkpoint that only
# a resume needs are not uploaded, either.
_NOT_THE_MODEL = ("checkpoint-*", "previous-*", ".*", "*/.*", "run.lock")
_ONLY_TO_RESUME = ("optimizer-*", "random-state-*", "manifest.json", "fastsft_state.json")


class _Pending(NamedTuple):
    """The pending upload of a checkpoint. directory: directory with links to the checkpoint's model files."""

    future: Future[None]
    directory: Path
    message: str


class HubUploads:
    """Uploads of a run's models. Checkpoints are uploaded one after another, while training goes on.

    A waiting upload takes disk space for its weights, even after its checkpoint is deleted. Therefore at most
    one upload waits behind the running upload, unless --hub_always_push is given. If a checkpoint cannot be
    uploaded, a message is printed and the run goes on. The constructor is collective: ValueError on all ranks
    if the repository can be neither found nor created.
    """

    def __init__(self, setup: Setup, write_card: Callable[[Path], None]) -> None:
        """write_card: function that writes a model card into a directory."""
        self._setup, self._write_card = setup, write_card
        self.repo_id = ""
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="fastsft-upload")
        self._pending: list[_Pending] = []
        agreement = AllOrNone("--push_to_hub")
        agreement.attempt_on_rank0(self._open)
        agreement.settle(None)

    def _open(self) -> None:
        args = self._args
        for left in Path(args.output_dir or ".").glob(f"{_LINKED}*"):  # remains of a killed run
            if (left / _MARK).is_file() and not left.is_symlink():
                shutil.rmtree(left, ignore_errors=True)
        name = args.hub_model_id or Path(args.output_dir or ".").absolute().name
        try:
            made = self._api().create_repo(name, private=args.hub_private_repo, exist_ok=True)
            if args.hub_revision:
                self._api().create_branch(made.repo_id, branch=args.hub_revision, exist_ok=True)
        except Exception as error:  # huggingface_hub has many error classes: network, server, name
            raise ValueError(
                f"--push_to_hub: the repository {name} cannot be made or written: {_first_line(error)}; log "
                "in with `hf auth login`, or give --hub_token and --hub_model_id"
            ) from error
        self.repo_id = made.repo_id

    @property
    def _args(self) -> TrainingArguments:
        return self._setup.args

    def checkpoint(self, directory: Path) -> None:
        """Upload the model of a checkpoint during training, on rank 0, with --hub_strategy every_save."""
        if launch().rank != 0 or self._args.hub_strategy != "every_save":
            return
        step = directory.name.rpartition("-")[2]
        message = f"Training in progress, step {step}"
        self._make_way(step)
        try:
            linked = _linked(directory, Path(self._args.output_dir or "."))
        except OSError as error:  # such as a full disk; the run goes on, since the checkpoint is saved
            tell(f"--push_to_hub: {message}: not uploaded: {error}")
            return
        future = self._worker.submit(self._upload_linked, linked, message)
        self._pending.append(_Pending(future, linked, message))

    def _make_way(self, step: str) -> None:
        """Cancel an upload that waits behind the running upload, to free disk space for that of `step`."""
        self._pending = [upload for upload in self._pending if not upload.future.done()]
        if self._args.hub_always_push or len(self._pending) < 2 or not self._pending[-1].future.cancel():
            return
        given_up = self._pending.pop()
        shutil.rmtree(given_up.directory, ignore_errors=True)
        tell(
            f"--push_to_hub: {given_up.message}: not uploaded, as step {step} was saved while the "
            "upload before was under way (--hub_always_push True uploads every save)"
        )

    def _upload_linked(self, directory: Path, message: str) -> None:
        try:
            self._upload(directory, message)
        except Exception as error:  # the run goes on if the server cannot be reached
            tell(f"--push_to_hub: {message}: not uploaded: {_first_line(error)}")
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def model(self, directory: str, message: str) -> CommitInfo | None:
        """Upload the model directory on rank 0, after all pending checkpoint uploads. Collective.

        The other ranks wait for rank 0 without a time limit. Return huggingface_hub's CommitInfo on rank 0,
        None on other ranks. RuntimeError if the upload fails; the model stays on the disk.
        """
        agreement = AllOrNone(f"uploading {directory}")
        with deadline(self._setup.args, "save"):
            done = agreement.attempt(lambda: while_first_works(lambda: self._upload_last(directory, message)))
            agreement.settle(None)
        return done

    def _upload_last(self, directory: str, message: str) -> CommitInfo:
        self.wait()
        self._write_card(Path(directory))
        try:
            return self._upload(Path(directory), message)
        except Exception as error:
            raise RuntimeError(
                f"--push_to_hub: {directory} is saved, but not uploaded: {_first_line(error)}; "
                f"`hf upload {self.repo_id} {directory}` tries again"
            ) from error

    def wait(self) -> None:
        """Wait until no checkpoint is being uploaded."""
        for pending in self._pending:
            pending.future.result()
        self._pending.clear()

    def _upload(self, directory: Path, message: str) -> CommitInfo:
        return self._api().upload_folder(
            repo_id=self.repo_id, folder_path=str(directory), commit_message=message,
            revision=self._args.hub_revision, ignore_patterns=list(_NOT_THE_MODEL),
        )  # fmt: skip

    def _api(self) -> HfApi:
        from huggingface_hub import HfApi

        return HfApi(token=self._args.hub_token)


def _linked(checkpoint: Path, within: Path) -> Path:
    """Link the model files of `checkpoint` into a new directory in `within`, and return that directory.

    Thanks to the links, the checkpoint may be deleted before the upload ends. OSError if the files can be
    neither linked nor copied; the new directory is then removed.
    """
    folder = Path(tempfile.mkdtemp(dir=within, prefix=_LINKED))
    try:
        NewFile(folder / _MARK).close()
        for path in sorted(checkpoint.iterdir()):
            if path.is_file() and not any(path.match(pattern) for pattern in _ONLY_TO_RESUME):
                _link(path, folder / path.name)
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def _link(path: Path, name: Path) -> None:
    try:
        os.link(path, name)
    except OSError:  # the file system has no hard links
        with path.open("rb") as source, fresh_file(name.parent, name.name) as copy:
            shutil.copyfileobj(source, copy)


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
