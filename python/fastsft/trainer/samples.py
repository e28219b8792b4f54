"""Sample replies during training (`--sample_prompts`): greedy text of the engine that trains.

Each token is a forward pass over prompt and reply, by all ranks together. So sharded weights, adapters and
4-bit base models need no copy of the model, and no random state of the training is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from fastsft import _C
from fastsft.data.chat.labelling import labels_of
from fastsft.data.chat.prompts import Prompts
from fastsft.data.token_rows import TokenRows
from fastsft.model.generation import Sampling, stop_ids
from fastsft.planning.devices import size_text
from fastsft.ranks import process_group as launcher
from fastsft.ranks.exchange import on_rank0
from fastsft.runtime.launch import launch
from fastsft.runtime.messages import warn_once
from fastsft.runtime.timeouts import deadline, note_progress
from fastsft.sources.data_files import data_files
from fastsft.sources.readers import read_records
from fastsft.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from fastsft.arguments import TrainingArguments
    from fastsft.reporting.progress import Progress
    from fastsft.trainer.setup import Setup

_MOST_LOGIT_BYTES = 1 << 30  # of a prompt and its reply, whose logits are computed in every pass
_ROLES = {"human": "user", "gpt": "assistant"}
_Messages = list[dict[str, str]]


class SamplePrompt(NamedTuple):
    """A prompt: its text for people, its token ids, and the reply in the data, or ""."""

    text: str
    ids: list[int]
    expected: str = ""


def is_count(sample_prompts: str) -> bool:
    """True if --sample_prompts is a number of evaluation conversations, not a file."""
    return sample_prompts.isdigit()


def check_sample_prompts(args: TrainingArguments) -> None:
    """Raise ValueError on rank 0 if --sample_prompts names a file without prompts, before data is read."""
    if launch().rank == 0 and args.sample_prompts is not None and not is_count(args.sample_prompts):
        read_prompts(args.sample_prompts)


def read_prompts(path: str) -> list[_Messages]:
    """Return the messages of each prompt in a file.

    A .txt file has a prompt in each line. Other files have records as --data_path has them, whose messages
    after the last question are left out. ValueError if a file is missing, or has a record without question.
    """
    try:
        if path.endswith(".txt"):
            lines = Path(path).expanduser().read_text(encoding="utf-8").splitlines()
            prompts = [[{"role": "user", "content": line.strip()}] for line in lines if line.strip()]
        else:
            prompts = [_question(record) for record in read_records(data_files(path))]
    except (OSError, ValueError) as error:
        raise ValueError(
            f"--sample_prompts {path}: expected a number, or a file with a prompt a line (.txt) or records "
            f"as in --data_path, got: {error}"
        ) from None
    if not prompts:
        raise ValueError(f"--sample_prompts {path}: expected prompts, got an empty file")
    return prompts


def _question(record: Any) -> _Messages:
    turns = [(_ROLES.get(turn["from"], turn["from"]), turn["value"]) for turn in record["conversations"]]
    last = max((place for place, (role, _) in enumerate(turns) if role == "user"), default=-1)
    if last < 0:
        raise ValueError(f"a record without a message of the user: {str(record)[:80]}")
    return [{"role": role, "content": text} for role, text in turns[: last + 1]]


class Samples:
    """The prompts of `--sample_prompts`, and the replies of the model that is trained.

    Made before training, so that a prompt without a reply is an error there. Collective.
    """

    def __init__(self, setup: Setup, rows: object, progress: Progress) -> None:
        """rows: the rows of the evaluation data, of which --sample_prompts N takes the first N."""
        self._setup, self._progress = setup, progress
        given = setup.tokenizer
        directory = str(setup.model.source_directory)
        self._tokenizer = given if isinstance(given, Tokenizer) else Tokenizer.from_pretrained(directory)
        labelling = getattr(setup.train_dataset, "labelling", None) or {}
        name = labelling["template"] if labels_of(setup.train_dataset) else None
        prompts = Prompts(self._tokenizer, name)
        self._stop = stop_ids(directory, self._tokenizer, prompts)
        self._prompts = self._choose(rows, prompts)

    def replies(self) -> list[dict[str, str]]:
        """Return prompt and reply of each prompt, and the reply in the data if known. Collective."""
        args, count = self._setup.args, len(self._prompts)
        texts: dict[int, str] = {}
        with deadline(args, "evaluation"), self._progress.phase("sampling", f"{count} replies") as show:
            for begin in range(0, count, args.world_size):
                number = begin + args.process_index
                prompt = self._prompts[number] if number < count else None
                reply = self._reply(prompt, args.seed + number)
                if prompt is not None:
                    texts[number] = self._tokenizer.decode(reply).strip()
                show(min(begin + args.world_size, count), count)
        gathered = {number: text for part in launcher.gather_objects(texts) for number, text in part.items()}
        return [
            {"prompt": prompt.text, "reply": gathered[number]}
            | ({"expected": prompt.expected} if prompt.expected else {})
            for number, prompt in enumerate(self._prompts)
        ]

    def _reply(self, prompt: SamplePrompt | None, seed: int) -> list[int]:
        """Return the ids that follow `prompt`; [] without one, while other ranks have theirs. Collective."""
        args, generator = self._setup.args, torch.Generator().manual_seed(seed)
        sampling = Sampling(args.sample_temperature)
        prompt_ids = [0] if prompt is None else prompt.ids
        ids, left = list(prompt_ids), 0
        if prompt is not None:
            left = min(args.sample_max_new_tokens, self._most_tokens() - len(ids))
        while any(launcher.gather_objects(left > 0)):
            logits = self._next_logits(ids)
            token = sampling.choose(logits, generator) if left and logits.isfinite().all() else None
            left = 0 if token is None or token in self._stop else left - 1
            if token is not None and token not in self._stop:
                ids.append(token)
        return ids[len(prompt_ids) :]

    def _next_logits(self, ids: list[int]) -> torch.Tensor:
        """Return the logits after `ids`, float32 [vocab_size] on the CPU. Collective."""
        row = _C.TokenDataset()
        row.append(np.asarray(ids, dtype=np.int32), [])
        logits: torch.Tensor = self._setup.engine.row_logits(row, np.zeros(1, dtype=np.int64))
        note_progress()
        return logits[-1].float().cpu()

    def _most_tokens(self) -> int:
        """Return the most tokens of a prompt with its reply."""
        return min(
            self._setup.args.model_max_length, _MOST_LOGIT_BYTES // (4 * self._setup.engine.vocab_size)
        )

    def _choose(self, rows: object, prompts: Prompts) -> list[SamplePrompt]:
        given = str(self._setup.args.sample_prompts)
        if is_count(given):
            found = self._of_rows(rows, int(given))
        else:
            read = on_rank0(f"reading {given}", lambda: read_prompts(given))
            found = [SamplePrompt(messages[-1]["content"], prompts.ids(messages)) for messages in read]
        for number, prompt in enumerate(found, 1):
            if len(prompt.ids) >= self._most_tokens():
                raise ValueError(
                    f"--sample_prompts {given}: prompt {number} has {len(prompt.ids):,} tokens, which leaves "
                    f"no room for a reply: prompt and reply have at most {self._most_tokens():,} together "
                    f"(--model_max_length, and {size_text(_MOST_LOGIT_BYTES)} of logits); shorten it"
                )
        return found

    def _of_rows(self, rows: object, count: int) -> list[SamplePrompt]:
        """Return the beginnings of the first `count` evaluation rows up to the first learned token."""
        sets = list(rows.values()) if isinstance(rows, dict) else [rows]
        native = sets[0].native if sets and isinstance(sets[0], TokenRows) else None
        found = [] if native is None else list(self._beginnings(native, count))
        if not found:
            raise ValueError(
                f"--sample_prompts {count} takes the first conversations of the evaluation data, of which "
                "none that fastsft has labelled leaves room for a reply; name a file of prompts"
            )
        if len(found) < count:
            warn_once(
                f"--sample_prompts {count}: {len(found)} evaluation conversations have room for a reply"
            )
        return found

    def _beginnings(self, native: _C.TokenDataset, count: int) -> Iterator[SamplePrompt]:
        for row in range(len(native)):
            spans = native.learned(row)
            if count and spans and 0 < spans[0][0] < self._most_tokens():
                ids, (begin, end) = native.ids(row).tolist(), spans[0]
                expected = self._tokenizer.decode(ids[begin:end], skip_special_tokens=True)
                yield SamplePrompt(self._tokenizer.decode(ids[:begin]).strip(), ids[:begin], expected.strip())
                count -= 1
