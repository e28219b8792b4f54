"""A checkpoint's small files, the commit of all files, and the removal of older checkpoints."""

from __future__ import annotations

import copy
import errno
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastsft import _C
from fastsft.checkpoint.run_identity import STATE_NAME, describe_run
from fastsft.model.config import json_text
from fastsft.model.model_save import ModelForm, small_texts, tokenizer_to_save, write_texts, write_tokenizer
from fastsft.model.output_directory import recover_directory
from fastsft.ranks.exchange import AllOrNone, on_rank0
from fastsft.ranks.output_directory import check_still_held, writes_small_files
from fastsft.runtime.file_calls import warn_unremoved
from fastsft.runtime.messages import tell
from fastsft.runtime.random_state import random_state_name, read_random_states

if TYPE_CHECKING:
    from fastsft.arguments import TrainingArguments
    from fastsft.checkpoint.saved_run import SavedRun
    from fastsft.model.hooks import AdapterToSave
    from fastsft.model.model_save import SavedTokenizer

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_WORDS = ("bytes are free", "`ulimit -f`", "your quota")  # phrases of messages that explain a full disk
_NUMBERED = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.safetensors")


def source_checkpoint(model: object, output_dir: str | Path) -> str:
    """Return the name of the checkpoint in `output_dir` from which the model was loaded; "" if none."""
    source = getattr(model, "source_directory", None)
    if source is None:
        return ""
    inside, output = Path(source).resolve(), Path(output_dir).resolve()
    if output not in inside.parents:
        return ""
    return inside.relative_to(output).parts[0]


@dataclass(frozen=True)
class CheckpointContent:
    """The small files of a checkpoint, and the values that its manifest and rotation need."""

    step: int
    world_size: int
    layout: str
    best: str  # name of the best checkpoint, which rotation keeps; "" if none
    source: str  # name of the checkpoint with which the run began, which rotation keeps; "" if none
    form: ModelForm
    with_state: bool
    texts: dict[str, Callable[[], str]]
    random_states: dict[str, Any] | None
    tokenizer: SavedTokenizer | None
    adapter: AdapterToSave | None  # adapter to save instead of the model; None to save the model

    @classmethod
    def of(cls, trainer: SavedRun) -> CheckpointContent:
        """Return the content for the current state of `trainer`, copied within milliseconds.

        Long texts are made only when they are written. Collective if the model has adapters, because they are
        gathered.
        """
        form, with_state = ModelForm.of(trainer), not trainer.args.save_only_model
        state = copy.copy(trainer.state)
        state.log_history = list(state.log_history)
        run = {**describe_run(trainer), "only_model": not with_state}
        small = small_texts(trainer, form.dtype)
        texts: dict[str, Callable[[], str]] = {name: partial(str, text) for name, text in small.items()}
        texts["trainer_state.json"] = lambda: json_text(state.to_json())
        texts[STATE_NAME] = lambda: json_text(run)
        return cls(
            step=trainer.state.global_step,
            world_size=trainer.engine.world_size,
            layout=hashlib.sha256("".join(trainer.engine.unit_hashes).encode()).hexdigest()[:16],
            best=Path(getattr(trainer.state, "best_model_checkpoint", None) or "").name,
            source=source_checkpoint(trainer.model, trainer.args.output_dir or "."),
            form=form,
            with_state=with_state,
            texts=texts,
            random_states=_random_states(trainer) if with_state else None,
            tokenizer=tokenizer_to_save(trainer),
            adapter=trainer.model.adapter_to_save(),
        )

    def write_run_files(self, directory: str) -> list[_C.FileDigest]:
        """Write the files that rank 0 writes for all ranks (configuration, tokenizer, states).

        Return their digests.
        """
        digests = write_texts({name: text() for name, text in self.texts.items()}, directory)
        if self.adapter is not None:
            digests += self.adapter.write(directory)
        return digests + write_tokenizer(self.tokenizer, directory)

    def write_random_state(
        self, directory: str, rank: int, states: dict[str, Any] | None = None
    ) -> list[_C.FileDigest]:
        """Write `rank`'s random states, and return the files' digests.

        states: None writes the random states in this content.
        """
        states = self.random_states if states is None else states
        if states is None:
            return []
        return write_texts({random_state_name(rank): json.dumps(states) + "\n"}, directory)


def _random_states(trainer: SavedRun) -> dict[str, Any]:
    """Return the current random states, and those with which a resumed run can reread prefetched rows."""
    states, position = read_random_states(), trainer.reading_position()
    if position is not None:
        ahead = None if position.ahead is None else position.ahead.to_json()
        states["reading"] = {"epoch": position.epoch.to_json(), "ahead": ahead}
    return states


def explain(error: Exception, path: str, needed: int) -> Exception:
    """Return an error that names the bytes needed if `error` reports a full disk; else return `error`.

    A quota or a limit of the file size counts as a full disk.
    """
    full = isinstance(error, OSError) and error.errno in _FULL
    if not full and not (isinstance(error, RuntimeError) and any(word in str(error) for word in _WORDS)):
        return error
    is_disk = isinstance(error, OSError) and error.errno == errno.ENOSPC
    is_told = any(word in str(error) for word in _WORDS)
    free = f", {_C.available_bytes(path)} bytes are free there" if is_disk and not is_told else ""
    return _C.FileError(f"{error}{free} (in all the save needs {needed} bytes)")


def check_complete(content: CheckpointContent, names: Collection[str]) -> None:
    """Raise RuntimeError if the file names lack weights, requested optimizer state, or a numbered part.

    This is the last check before older checkpoints are removed.
    """
    weights = "adapter_model" if content.adapter is not None else "model"
    missing = [] if _has(weights, names) else [f"{weights}.safetensors"]
    if content.with_state and not _has("optimizer-rank", names):
        missing.append("optimizer-rank-*.safetensors")
    parts = Counter((part[1], int(part[3])) for part in map(_NUMBERED.fullmatch, names) if part)
    missing += [f"{of - n} of {of} files {stem}-*" for (stem, of), n in parts.items() if n != of]
    if missing:
        raise RuntimeError(
            f"the checkpoint lacks {', '.join(missing)}, which no rank has written; it is not "
            "kept, and the older ones stay"
        )


def _has(stem: str, names: Collection[str]) -> bool:
    return any(re.fullmatch(rf"{stem}(-\d{{5}}-of-\d{{5}})?\.safetensors", name) for name in names)


def commit_checkpoint(
    directory: _C.AtomicDirectory | None,
    target: Path,
    content: CheckpointContent,
    files: list[_C.FileDigest],
    limit: int,
) -> None:
    """Rename `directory` to `target`, then remove older checkpoints above `limit` (0 keeps all)."""
    assert directory is not None  # the committing rank has made the directory
    check_complete(content, [file.name for file in files])
    manifest = _C.Manifest(content.step, content.world_size, content.layout, files)
    check_still_held(target.parent)
    directory.commit(target.name, manifest)
    if directory.kept:
        tell(f"what fastsft did not write in {target} is now in {directory.kept}")
    rotate(target.parent, limit, [content.best, target.name, content.source])


def recover(folder: Path) -> None:
    """Finish or remove interrupted saves in `folder`; make the folder if it is missing."""
    check_still_held(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name in recover_directory(folder):
        tell(f"removed {folder / name}, left by an interrupted save")


def rotate_what_is_left(args: TrainingArguments, output_dir: Path, kept: list[str]) -> None:
    """Remove checkpoints above --save_total_limit that an interrupted run did not remove. Collective.

    kept: names of checkpoints that stay.
    """
    agreement = AllOrNone(f"removing checkpoints of {output_dir} above --save_total_limit")
    agreement.attempt_if(
        writes_small_files(args), lambda: rotate(output_dir, args.save_total_limit or 0, kept)
    )
    agreement.settle(None)


def rotate(output_dir: Path, limit: int, kept: list[str]) -> None:
    """Remove the oldest checkpoints of `output_dir` above `limit` (0 keeps all), except the names in `kept`.

    A checkpoint that cannot be removed stays, with a message, even if it exceeds the limit.
    """
    unremoved: list[str] = []
    for name, aside in _C.rotate_checkpoints(str(output_dir), limit, kept, unremoved).items():
        if aside:
            tell(f"{output_dir / name} is removed; what fastsft did not write there is now in {aside}")
    warn_unremoved(unremoved)


def keep_only(directory: str | Path, source: str = "") -> None:
    """Remove, on rank 0, all other fastsft checkpoints next to `directory`. Collective.

    As for save_total_limit, a checkpoint is a directory called checkpoint-<step> whose manifest and file
    sizes verify. Damaged checkpoints and directories of other programs stay, whereas transformers would
    remove every directory with such a name. source: name of another checkpoint that stays.
    """
    path = Path(directory)
    on_rank0(f"removing the checkpoints next to {path}", lambda: _remove_others(path, source))


def _remove_others(kept: Path, source: str) -> None:
    for name in _C.list_checkpoints(str(kept.parent)):
        other = kept.parent / name
        if name not in (kept.name, source) and not _C.verify_directory(str(other), checksums=False):
            _remove_other(other)


def _remove_other(other: Path) -> None:
    try:
        aside = _C.delete_directory(str(other))
    except _C.FileError as error:
        warn_unremoved([str(error)])
        return
    if aside:
        tell(f"{other} is removed; what fastsft did not write there is now in {aside}")
