"""Generates a trained model's replies, to see the effect of training; not a server for many users.

ChatModel opens a directory. Continuation reads a prompt and draws tokens. Its Reader is the engine's decoder
or a transformers model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypedDict, Unpack

import numpy as np
import numpy.typing as npt
import torch

from fastsft import _C
from fastsft.data.chat.prompts import Prompts
from fastsft.model.config import read_generation_config
from fastsft.model.engine_choice import open_model
from fastsft.model.family import DEFAULT_ATTENTION, as_computed, is_vision_text, tell_ignored_cap
from fastsft.model.generic.empty_model import FAULTS, first_line
from fastsft.model.not_a_model import no_config, no_weights
from fastsft.model.stored_weights import StoredWeights
from fastsft.model.weights import has_safetensors
from fastsft.runtime.messages import warn_once
from fastsft.runtime.regular_files import file_inside, read_json_object, read_text
from fastsft.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Change = Callable[[str, torch.Tensor], torch.Tensor]
_INCOMPLETE = "\ufffd"  # tokenizer.decode's result for an incomplete character
_DEFAULT_POSITIONS = 2048
_LEAST_TEMPERATURE = 1e-6  # at temperatures below this, the most likely token is taken


@dataclass(frozen=True)
class Sampling:
    """The rule that chooses the next token.

    temperature: 0 takes the most likely token. Otherwise, tokens are drawn from softmax(logits /
    temperature).
    top_p: draw only from the fewest most likely tokens whose probabilities add up to this number. ValueError
    for a negative temperature, or for a top_p outside (0, 1].
    """

    temperature: float = 0.0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise ValueError(f"temperature: expected at least 0, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p: expected above 0 and at most 1, got {self.top_p}")

    def choose(self, logits: torch.Tensor, generator: torch.Generator) -> int:
        """Choose a token id by float32 logits [vocab_size]. At temperature 0, ties go to the lowest id."""
        if not bool(logits.isfinite().all()):
            raise ValueError(
                "the model's logits are not finite: training diverged, or weights are damaged; take an "
                "earlier checkpoint, or see what fastsft verify DIR says of the weights"
            )
        if self.temperature < _LEAST_TEMPERATURE:
            return int(logits.argmax())
        probabilities = torch.softmax(logits / self.temperature, dim=-1)
        if self.top_p < 1:
            ordered, ids = probabilities.sort(descending=True, stable=True)
            before = ordered.cumsum(0) - ordered
            probabilities[ids[before >= self.top_p]] = 0
        return int(torch.multinomial(probabilities, 1, generator=generator))


class Reader(Protocol):
    """Interface for models that read tokens: _C.TextDecoder and LibraryReader."""

    def read(self, ids: npt.NDArray[np.int64]) -> torch.Tensor:
        """Read the next tokens, int64 [n]. Return the logits after the last token, float32 [vocab_size]."""

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens."""


class Continuation:
    """Continues prompts token by token.

    If a prompt begins like the previous text, the common prefix is not read again.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._read: list[int] = []

    def tokens(
        self,
        prompt: Sequence[int],
        *,
        max_new_tokens: int = 64,
        stop: Collection[int] = (),
        sampling: Sampling | None = None,
        seed: int = 0,
    ) -> Iterator[int]:
        """Yield the ids that follow `prompt`, until an id in `stop` comes, or max_new_tokens ids were
        yielded.

        ValueError for an empty prompt.
        """
        if not prompt:
            raise ValueError("expected a prompt of at least one token, got none")
        sampling, generator = sampling or Sampling(), torch.Generator().manual_seed(seed)
        unread = list(prompt)[self._keep_prefix(prompt) :]
        for _ in range(max_new_tokens):
            logits = self._reader.read(np.array(unread, dtype=np.int64))
            self._read += unread
            token = sampling.choose(logits.cpu(), generator)
            if token in stop:
                return
            yield token
            unread = [token]

    def _keep_prefix(self, prompt: Sequence[int]) -> int:
        """Make the reader forget all tokens after the prefix that they share with `prompt`.

        Return the prefix length.

        `prompt`'s last token is always read again, because its logits are needed.
        """
        pairs = zip(prompt[:-1], self._read, strict=False)
        shared = next((i for i, (new, old) in enumerate(pairs) if new != old), None)
        shared = min(len(prompt) - 1, len(self._read)) if shared is None else shared
        self._reader.truncate(shared)
        self._read = self._read[:shared]
        return shared


class StreamOptions(TypedDict, total=False):
    """Keyword arguments for `ChatModel.stream`."""

    max_new_tokens: int
    temperature: float
    top_p: float
    seed: int


class ChatModel:
    """A model directory or checkpoint that answers questions, in the engine that a run would choose.

    max_positions: maximal tokens in prompt and reply together, by default from config.json. The native engine
    stops at the RoPE switch length, too (longrope: the original positions).
    template: a chat template's name; by default the model's own template, else vicuna_v1.1.
    dtype: float32 or bfloat16; "auto" is float32 on a CPU and bfloat16 on a GPU.
    tokenizer: tokenizer directory, by default the model's.
    change: called with each tensor's name and value; returns the value to use.
    trust_remote_code: True to run the directory's model class.

    ValueError if the files do not fit together.
    """

    def __init__(
        self,
        directory: str | Path,
        max_positions: int | None = None,
        *,
        template: str | None = None,
        device: str = "cpu",
        dtype: str = "auto",
        tokenizer: str | Path | None = None,
        change: Change | None = None,
        trust_remote_code: bool = False,
    ) -> None:
        path = file_inside(directory, "config.json")
        if path is None:
            raise no_config(directory)
        if not has_safetensors(Path(directory)):
            raise no_weights(directory, "weights in safetensors")
        self.tokenizer = Tokenizer.from_pretrained(str(tokenizer or directory))
        self.prompts = Prompts(self.tokenizer, template)
        if dtype == "auto":
            dtype = "float32" if device == "cpu" else "bfloat16"
        opened = open_model(str(directory), trust_remote_code=trust_remote_code)
        self.engine_kind = opened.engine_kind
        reader: Reader
        limit: int | None
        if self.engine_kind == "native":
            reader, limit = _native_reader(directory, path, dtype, device, change), opened.switch_length()
            max_positions = min(max_positions, limit) if max_positions and limit else max_positions
        else:
            reader = LibraryReader(
                directory, dtype=dtype, device=device, change=change, trust_remote_code=trust_remote_code,
                is_vision_text=is_vision_text(opened.config),
            )  # fmt: skip
            limit = reader.max_positions
        self.max_positions = max_positions or limit or _positions(directory)
        self._continuation = Continuation(reader)
        self._stop = stop_ids(directory, self.tokenizer, self.prompts)

    def reply(self, message: str, **options: Unpack[StreamOptions]) -> str:
        """Answer a message. `options` as for `stream`."""
        return "".join(self.stream([{"role": "user", "content": message}], **options)).strip()

    def stream(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        max_new_tokens: int = 64,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int = 0,
    ) -> Iterator[str]:
        """Yield the reply to a conversation, in text pieces.

        messages: dictionaries with "role" and "content"; the last message is the user's. The reply ends at
        the latest when prompt and reply have `max_positions` tokens. ValueError if the prompt alone has that
        many.
        """
        prompt = self.prompts.ids(messages)
        room = self.max_positions - len(prompt)
        if room < 1:
            raise ValueError(
                f"{len(prompt)} tokens of prompt leave no room for a reply, at most "
                f"{self.max_positions} in all; ask with a shorter text"
            )
        tokens = self._continuation.tokens(
            prompt,
            max_new_tokens=min(max_new_tokens, room),
            stop=self._stop,
            sampling=Sampling(temperature, top_p),
            seed=seed,
        )
        ids: list[int] = []
        printed = ""
        for token in tokens:
            ids.append(token)
            text = self.tokenizer.decode(ids).lstrip()
            if text.startswith(printed) and not text.endswith(_INCOMPLETE):
                yield text[len(printed) :]
                printed = text
        text = self.tokenizer.decode(ids).lstrip()
        if len(text) > len(printed):
            yield text[len(printed) :]


def _native_reader(
    directory: str | Path, config: Path, dtype: str, device: str, change: Change | None
) -> Reader:
    text = read_text(config)
    if '"gemma2"' in text:
        tell_ignored_cap(json.loads(text), DEFAULT_ATTENTION, trains=False)
        text = json.dumps(as_computed(json.loads(text), DEFAULT_ATTENTION))
    decoder = _C.TextDecoder(text, dtype=dtype, device=device)
    for note in _fill(decoder, directory, change):
        warn_once(note)
    return decoder


def _fill(decoder: _C.TextDecoder, directory: str | Path, change: Change | None) -> list[str]:
    """Load the weights in `directory` into the decoder. Return notices.

    change: called with each tensor's name and value, so that only one tensor is in memory.
    """
    if change is None:
        return list(decoder.load(str(directory)))
    loader, weights = decoder.loader(), StoredWeights(directory)
    if weights.problems:
        raise ValueError(weights.problems[0])
    for name, entry in weights.tensors.items():
        loader.set(name, change(name, weights.read(name)).contiguous(), str(entry.file))
    loader.finish(str(directory))
    return []


def _positions(directory: str | Path) -> int:
    path = file_inside(directory, "config.json")
    config = {} if path is None else read_json_object(path)
    positions = config.get("max_position_embeddings")
    if not isinstance(positions, int) or positions < 1:
        return _DEFAULT_POSITIONS
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    is_linear = scaling.get("rope_type", scaling.get("type")) == "linear"
    return int(positions * scaling.get("factor", 1)) if is_linear else positions


def stop_ids(directory: str | Path, tokenizer: Tokenizer, prompts: Prompts) -> frozenset[int]:
    """Return the ids that end a reply, from generation_config.json, the tokenizer and the template."""
    eos = (read_generation_config(directory) or {}).get("eos_token_id")
    ids = [*(eos if isinstance(eos, list) else [eos]), tokenizer.eos_token_id, prompts.stop_id]
    return frozenset(token for token in ids if token is not None)


class LibraryReader:
    """A Reader that runs a transformers model. ValueError if transformers cannot open the directory."""

    def __init__(
        self,
        directory: str | Path,
        *,
        dtype: str,
        device: str,
        change: Change | None = None,
        trust_remote_code: bool = False,
        is_vision_text: bool = False,
    ) -> None:
        from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

        kind = AutoModelForImageTextToText if is_vision_text else AutoModelForCausalLM
        try:
            model: PreTrainedModel = kind.from_pretrained(
                str(directory),
                dtype=getattr(torch, "float32" if change else dtype),
                local_files_only=True,
                use_safetensors=True,
                trust_remote_code=trust_remote_code,
            )
        except (OSError, *FAULTS) as error:
            raise ValueError(f"{directory}: transformers does not open it: {first_line(error)}") from error
        if change:
            for name, parameter in model.named_parameters():
                parameter.data = change(name, parameter.data)
        model.eval()
        self._model: PreTrainedModel = model.to(  # .to()'s type stub lacks `self`
            device=device, dtype=getattr(torch, dtype)
        )
        self._ids: list[int] = []
        self._cache: object = None
        self._num_cached = 0

    @property
    def max_positions(self) -> int | None:
        """Maximal positions from the configuration; None if it has no such number."""
        positions = getattr(self._model.config.get_text_config(), "max_position_embeddings", None)
        return positions if isinstance(positions, int) and positions > 0 else None

    def read(self, ids: npt.NDArray[np.int64]) -> torch.Tensor:
        self._ids += [int(token) for token in ids]
        device = self._model.device
        new = torch.tensor([self._ids[self._num_cached :]], device=device)
        mask = torch.ones(1, len(self._ids), dtype=torch.long, device=device)
        with torch.inference_mode():
            out = self._model(input_ids=new, attention_mask=mask, past_key_values=self._cache, use_cache=True)
        self._cache = getattr(out, "past_key_values", None)
        self._num_cached = 0 if self._cache is None else len(self._ids)
        logits: torch.Tensor = out.logits[0, -1].float()
        return logits

    def truncate(self, length: int) -> None:
        # Some caches cannot be shortened, so the remaining tokens are computed again.
        if length != len(self._ids):
            self._ids, self._cache, self._num_cached = self._ids[:length], None, 0
