"""Sample replies during training (`--sample_prompts`): greedy text of the engine that trains.

Each token is a forward pass over prompt and reply, by all ranks together. So sharded weights, adapters and
4-bit base models need no copy of the model, and no random state of the training is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from fastsft import _C
from fastsft.data.chat.labelling import labels_of, parse_role_map
from fastsft.data.chat.prompts import Prompts
from fastsft.data.chat.template_choice import MODEL
from fastsft.data.token_rows import TokenRows
from fastsft.model.generation import Sampling, stop_ids
from fastsft.planning.devices import size_text
from fastsft.ranks import process_group as launcher
from fastsft.ranks.exchange import on_rank0
from fastsft.runtime.launch import launch
from fastsft.runtime.messages import warn_once
from fastsft.runtime.timeouts import deadline, note_progress
from fastsft.tokenizer.tokenizer import Tokenizer
from fastsft.tokenizer.transformers_tokenizer import require_native_tokenizer
from fastsft.trainer.sample_files import read_prompts

if TYPE_CHECKING:
    from fastsft.arguments import TrainingArguments
    from fastsft.reporting.progress import Progress
    from fastsft.trainer.setup import Setup

_MOST_LOGIT_BYTES = 1 << 30  # of a prompt and its reply, whose logits are computed in every pass


class SamplePrompt(NamedTuple):
    """A prompt: its text for people, its token ids, and the reply in the data, or ""."""

    text: str
    ids: list[int]
    expected: str = ""


def is_count(sample_prompts: str) -> bool:
    """True if --sample_prompts is a number of evaluation conversations, not a file."""
    return sample_prompts.isdigit()


def check_sample_prompts(args: TrainingArguments, data_args: object) -> None:
    """Raise ValueError on rank 0 if --sample_prompts names a file without prompts, before data is read.

    data_args: has --role_map and --data_format, unless a script has replaced its class.
    """
    if launch().rank == 0 and args.sample_prompts is not None and not is_count(args.sample_prompts):
        roles = parse_role_map(getattr(data_args, "role_map", None))
        read_prompts(args.sample_prompts, roles, getattr(data_args, "data_format", "auto"))


def sample_tokenizer(setup: Setup) -> Tokenizer | None:
    """Return the tokenizer for sample replies, with the Trainer's vocabulary and chat template.

    None without --sample_prompts. ValueError if fastsft has no native equal of a script's own tokenizer.
    """
    args, given = setup.args, setup.tokenizer
    if args.sample_prompts is None or setup.train_dataset is None:
        return None
    if isinstance(given, Tokenizer):
        return given
    flag, directory = f"--sample_prompts {args.sample_prompts}", setup.model.source_directory
    if given is None:
        try:
            return Tokenizer.from_pretrained(directory)
        except (ValueError, OSError) as error:
            raise ValueError(
                f"{flag}: expected processing_class of Trainer, or a tokenizer beside the model, got: {error}"
            ) from None
    template = getattr(given, "chat_template", None)
    if template is not None and not isinstance(template, str):
        raise ValueError(
            f"{flag}: expected a chat template as text, got {type(template).__name__} at "
            f"{type(given).__name__}; set its chat_template to the one to train with"
        )
    native = require_native_tokenizer(given, flag)
    where = Path(getattr(given, "name_or_path", ""))
    return Tokenizer(native, where if where.is_dir() else directory, chat_template=template)


class Samples:
    """The prompts of `--sample_prompts`, and the replies of the model that is trained.

    Made before training, so that a prompt without a reply is an error there. Collective.
    """

    def __init__(self, setup: Setup, tokenizer: Tokenizer, rows: object, progress: Progress) -> None:
        """rows: the rows of the evaluation data, of which --sample_prompts N takes the first N."""
        self._setup, self._tokenizer, self._progress = setup, tokenizer, progress
        directory = str(setup.model.source_directory)
        labelling = getattr(setup.train_dataset, "labelling", None) or {}
        name = labelling["template"] if labels_of(setup.train_dataset) else None
        self._labels = getattr(setup.train_dataset, "labelled_rows", None)
        prompts = Prompts(self._tokenizer, name, getattr(self._labels, "settings", None))
        self._stop = stop_ids(directory, self._tokenizer, prompts)
        self._prompts = self._choose(rows, prompts)

    def replies(self, after_token: Callable[[], None]) -> list[dict[str, str]]:
        """Return prompt and reply of each prompt, and the reply in the data if known. Collective.

        after_token: called after each token, by all ranks together; answers signals, as after each batch of
        an evaluation.
        """
        args, count = self._setup.args, len(self._prompts)
        texts: dict[int, str] = {}
        with deadline(args, "evaluation"), self._progress.phase("sampling", f"{count} replies") as show:
            for begin in range(0, count, args.world_size):
                number = begin + args.process_index
                prompt = self._prompts[number] if number < count else None
                reply = self._reply(prompt, args.seed + number, after_token)
                if prompt is not None:
                    texts[number] = self._tokenizer.decode(reply).strip()
                show(min(begin + args.world_size, count), count)
        gathered = {number: text for part in launcher.gather_objects(texts) for number, text in part.items()}
        return [
            {"prompt": prompt.text, "reply": gathered[number]}
            | ({"expected": prompt.expected} if prompt.expected else {})
            for number, prompt in enumerate(self._prompts)
        ]

    def _reply(self, prompt: SamplePrompt | None, seed: int, after_token: Callable[[], None]) -> list[int]:
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
            after_token()
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
        found = self._of_rows(rows, int(given)) if is_count(given) else self._of_file(given, prompts)
        for number, prompt in enumerate(found, 1):
            if max(prompt.ids) >= self._setup.engine.vocab_size:
                raise ValueError(
                    f"--sample_prompts {given}: prompt {number} has the token id {max(prompt.ids)}, and the "
                    f"model a vocabulary of {self._setup.engine.vocab_size}: give Trainer the tokenizer of "
                    "the model, or resize its embeddings"
                )
            if len(prompt.ids) >= self._most_tokens():
                raise ValueError(
                    f"--sample_prompts {given}: prompt {number} has {len(prompt.ids):,} tokens, which leaves "
                    f"no room for a reply: prompt and reply have at most {self._most_tokens():,} together "
                    f"(--model_max_length, and {size_text(_MOST_LOGIT_BYTES)} of logits); shorten it"
                )
        return found

    def _of_file(self, path: str, prompts: Prompts) -> list[SamplePrompt]:
        """Return a file's prompts, with the tokens that the training data's labels give them."""
        settings, data_format = getattr(self._labels, "settings", None), "auto"
        if self._labels is not None:
            data_format = self._labels.data_format
        roles = settings.role_map if settings else {}
        found = []
        questions = on_rank0(f"reading {path}", lambda: read_prompts(path, roles, data_format))
        for number, question in enumerate(questions, 1):
            try:
                if question.has_tools and prompts.name != MODEL:
                    raise ValueError(
                        f"expected no tools, which template {prompts.name} does not write, got a record with "
                        f"tools or calls; leave them out, or train with --template {MODEL}"
                    )
                ids = prompts.ids_of_record(question.record, question.data_format)
            except ValueError as error:
                raise ValueError(f"--sample_prompts {path}: prompt {number}: {error}") from None
            found.append(SamplePrompt(question.text, ids))
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
