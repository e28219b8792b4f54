"""Contents of a checkpoint except tensors, taken at the moment of the save and written later."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastsft.checkpoint.run_identity import STATE_NAME, describe_run
from fastsft.model.config import json_text
from fastsft.model.model_save import ModelForm, small_texts, tokenizer_to_save, write_texts, write_tokenizer
from fastsft.runtime.random_state import random_state_name, read_random_states

if TYPE_CHECKING:
    from fastsft import _C
    from fastsft.checkpoint.saved_run import SavedRun
    from fastsft.model.hooks import AdapterToSave
    from fastsft.model.model_save import SavedTokenizer


def source_checkpoint(model: object, output_dir: str | Path) -> str:
    """The name of the checkpoint in `output_dir` that holds the model's source directory; "" for others."""
    source = getattr(model, "source_directory", None)
    if source is None:
        return ""
    inside, output = Path(source).resolve(), Path(output_dir).resolve()
    if output not in inside.parents:
        return ""
    return inside.relative_to(output).parts[0]


@dataclass(frozen=True)
class CheckpointContent:
    """The small files of a checkpoint, and what its manifest needs to know."""

    step: int
    world_size: int
    layout: str
    best: str  # name of the checkpoint that rotation must keep, or ""
    source: str  # the same of one that the run began with the model of
    form: ModelForm
    with_state: bool
    texts: dict[str, Callable[[], str]]
    random_states: dict[str, Any] | None
    tokenizer: SavedTokenizer | None
    adapter: AdapterToSave | None  # a SavedAdapter, written in place of the model; None: the model is written

    @classmethod
    def of(cls, trainer: SavedRun) -> CheckpointContent:
        """The state of `trainer` now; a few milliseconds. The texts are made when they are written.

        Adapters are gathered: collective where the model has them.
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
        """The files that one rank writes for all: configuration, tokenizer, states. Their digests."""
        digests = write_texts({name: text() for name, text in self.texts.items()}, directory)
        if self.adapter is not None:
            digests += self.adapter.write(directory)
        return digests + write_tokenizer(self.tokenizer, directory)

    def write_random_state(
        self, directory: str, rank: int, states: dict[str, Any] | None = None
    ) -> list[_C.FileDigest]:
        """The random states of `rank`, its own when none are given. Their digest."""
        states = self.random_states if states is None else states
        if states is None:
            return []
        return write_texts({random_state_name(rank): json.dumps(states) + "\n"}, directory)


def _random_states(trainer: SavedRun) -> dict[str, Any]:
    """The states as they are, and those from which rows are read again that are not trained on yet."""
    states, position = read_random_states(), trainer.reading_position()
    if position is not None:
        ahead = None if position.ahead is None else position.ahead.to_json()
        states["reading"] = {"epoch": position.epoch.to_json(), "ahead": ahead}
    return states
