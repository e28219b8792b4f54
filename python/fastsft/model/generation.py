"""Replies of a trained model: a look at what it learned. Serving many users is for other tools."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypedDict, Unpack

import numpy as np
import numpy.typing as npt
import torch

from fastsft import _C
from fastsft.data.chat.prompts import Prompts
from fastsft.model.attention_caps import DEFAULT_ATTENTION, as_computed, tell_left_out
from fastsft.model.choice import open_model
from fastsft.model.config import has_safetensors, read_generation_config
from fastsft.model.family import is_vision_text
from fastsft.model.generic.library_reader import LibraryReader
from fastsft.model.sampling import Sampling
from fastsft.model.stored_weights import StoredWeights
from fastsft.runtime.messages import warn_once
from fastsft.runtime.regular_files import file_inside, read_json_object, read_text
from fastsft.tokenizer.tokenizer import Tokenizer

Change = Callable[[str, torch.Tensor], torch.Tensor]
_INCOMPLETE = "\ufffd"  # an incomplete character decodes to it
_DEFAULT_POSITIONS = 2048


class Reader(Protocol):
    """The part of _C.TextDecoder that generation needs."""

    def read(self, ids: npt.NDArray[np.int64]) -> torch.Tensor:
        """ids int64 [n] after those before -> logits of the next token, float32 [V]."""

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens."""


class Continuation:
    """Continues prompts token by token; what a prompt shares with the text before it is not read again."""

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
        """The ids after `prompt`, one by one, without the one of `stop` that ends them.

        ValueError for an empty prompt.
        """
        if not prompt:
            raise ValueError("expected a prompt of at least one token, got none")
        chosen, generator = sampling or Sampling(), torch.Generator().manual_seed(seed)
        rest = list(prompt)[self._keep(prompt) :]
        for _ in range(max_new_tokens):
            logits = self._reader.read(np.array(rest, dtype=np.int64))
            self._read += rest
            token = chosen.choose(logits.cpu(), generator)
            if token in stop:
                return
            yield token
            rest = [token]

    def _keep(self, prompt: Sequence[int]) -> int:
        """Number of tokens of `prompt` that are read already; its last one is read again."""
        pairs = zip(prompt[:-1], self._read, strict=False)
        shared = next((i for i, (new, old) in enumerate(pairs) if new != old), None)
        shared = min(len(prompt) - 1, len(self._read)) if shared is None else shared
        self._reader.truncate(shared)
        self._read = self._read[:shared]
        return shared


class StreamOptions(TypedDict, total=False):
    """Arguments of `ChatModel.stream`."""

    max_new_tokens: int
    temperature: float
    top_p: float
    seed: int


class ChatModel:
    """A model directory, or a checkpoint, that answers questions: natively, or by transformers' own forward.

    engine_kind: native or generic, as a run would choose.
    max_positions: tokens of prompt and reply together; by default those of config.json, and natively at most
    those up to which its rotary frequencies hold (longrope: the original ones). template: a named chat
    template; by default the model's own, or vicuna_v1.1 for one without. dtype: "float32" or "bfloat16";
    "auto" is float32 on a CPU and bfloat16 on a GPU. tokenizer: its directory, by default the model's.
    change: makes another value of a tensor, by its name. trust_remote_code: a model class of the directory
    is run. ValueError for files that do not fit together.
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
            adapter = file_inside(directory, "adapter_config.json") is not None
            way = "; it has a LoRA adapter, which fastsft.lora.chat.open_chat_model opens" if adapter else ""
            raise ValueError(f"{directory}: expected a model directory, found no config.json{way}")
        if not has_safetensors(Path(directory)):
            raise ValueError(f"{directory}: expected weights in safetensors, found none")
        self.tokenizer = Tokenizer.from_pretrained(str(tokenizer or directory))
        self.prompts = Prompts(self.tokenizer, template)
        width = ("float32" if device == "cpu" else "bfloat16") if dtype == "auto" else dtype
        opened = open_model(str(directory), trust_remote_code=trust_remote_code)
        self.engine_kind = opened.engine_kind
        reader: Reader
        known: int | None
        if self.engine_kind == "native":
            reader, known = _native_reader(directory, path, width, device, change), opened.switch_length()
            max_positions = min(max_positions, known) if max_positions and known else max_positions
        else:
            reader = LibraryReader(
                directory, dtype=width, device=device, change=change, trust_remote_code=trust_remote_code,
                is_whole=is_vision_text(opened.config),
            )  # fmt: skip
            known = reader.max_positions
        self.max_positions = max_positions or known or _positions(directory)
        self._continuation = Continuation(reader)
        self._stop = _stop_ids(directory, self.tokenizer, self.prompts)

    def reply(self, message: str, **options: Unpack[StreamOptions]) -> str:
        """The answer to one message; `options` are those of `stream`."""
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
        """The reply to a conversation ({"role", "content"}; the last one the user's), text by text.

        It ends where `max_positions` do; ValueError when the prompt has as many already.
        """
        prompt = self.prompts.ids(messages)
        room = self.max_positions - len(prompt)
        if room < 1:
            raise ValueError(
                f"{len(prompt)} tokens of prompt leave no room for a reply, at most {self.max_positions}"
            )
        tokens = self._continuation.tokens(
            prompt,
            max_new_tokens=min(max_new_tokens, room),
            stop=self._stop,
            sampling=Sampling(temperature, top_p),
            seed=seed,
        )
        ids: list[int] = []
        said = ""
        for token in tokens:
            ids.append(token)
            text = self.tokenizer.decode(ids).lstrip()
            if text.startswith(said) and not text.endswith(_INCOMPLETE):
                yield text[len(said) :]
                said = text
        text = self.tokenizer.decode(ids).lstrip()
        if len(text) > len(said):
            yield text[len(said) :]


def _native_reader(
    directory: str | Path, config: Path, dtype: str, device: str, change: Change | None
) -> Reader:
    text = read_text(config)
    if '"gemma2"' in text:
        tell_left_out(json.loads(text), DEFAULT_ATTENTION, trains=False)
        text = json.dumps(as_computed(json.loads(text), DEFAULT_ATTENTION))
    decoder = _C.TextDecoder(text, dtype=dtype, device=device)
    for note in _fill(decoder, directory, change):
        warn_once(note)
    return decoder


def _fill(decoder: _C.TextDecoder, directory: str | Path, change: Change | None) -> list[str]:
    """The weights of `directory` into the decoder, one at a time; what a user should know."""
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


def _stop_ids(directory: str | Path, tokenizer: Tokenizer, prompts: Prompts) -> frozenset[int]:
    """The ids after which a reply is over: of generation_config.json, the tokenizer and the template."""
    eos = (read_generation_config(directory) or {}).get("eos_token_id")
    ids = [*(eos if isinstance(eos, list) else [eos]), tokenizer.eos_token_id, prompts.stop_id]
    return frozenset(token for token in ids if token is not None)
