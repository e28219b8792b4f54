"""Replies of a trained model: a look at what it learned. Serving many users is for other tools."""

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
from fastsft.data.chat.prompt import Prompts
from fastsft.model.config import has_safetensors, read_generation_config
from fastsft.model.engine_choice import open_model
from fastsft.model.family import DEFAULT_ATTENTION, as_computed, is_vision_text, tell_left_out
from fastsft.model.generic.empty_model import FAULTS, first_line
from fastsft.model.stored_weights import StoredWeights
from fastsft.runtime.messages import warn_once
from fastsft.runtime.regular_files import file_inside, read_json_object, read_text
from fastsft.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

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
            way = "; it has a LoRA adapter, which fastsft.lora.merge.open_chat_model opens" if adapter else ""
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


_COLDEST = 1e-6  # below it the most likely token is taken


@dataclass(frozen=True)
class Sampling:
    """temperature: 0 takes the most likely token, else tokens are drawn from softmax(logits / temperature).

    top_p: of the fewest most likely tokens whose probabilities add up to it. ValueError for a negative
    temperature, or a top_p that is not above 0 and at most 1.
    """

    temperature: float = 0.0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise ValueError(f"temperature: expected at least 0, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p: expected above 0 and at most 1, got {self.top_p}")

    def choose(self, logits: torch.Tensor, generator: torch.Generator) -> int:
        """One token id for float32 logits [V]; of equals the lowest id where nothing is drawn."""
        if not bool(logits.isfinite().all()):
            raise ValueError("the model's logits are not finite: training diverged, or weights are damaged")
        if self.temperature < _COLDEST:
            return int(logits.argmax())
        probabilities = torch.softmax(logits / self.temperature, dim=-1)
        if self.top_p < 1:
            ordered, places = probabilities.sort(descending=True, stable=True)
            before = ordered.cumsum(0) - ordered
            probabilities[places[before >= self.top_p]] = 0
        return int(torch.multinomial(probabilities, 1, generator=generator))


class LibraryReader:
    """A Reader of generation.py: the model of a directory, by transformers' own forward.

    dtype: "float32" or "bfloat16". change: makes another value of a parameter, by its name.
    trust_remote_code: code of the directory is run. is_whole: of a vision-text model.
    ValueError for a directory that transformers does not
    open.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        dtype: str,
        device: str,
        change: Callable[[str, torch.Tensor], torch.Tensor] | None = None,
        trust_remote_code: bool = False,
        is_whole: bool = False,
    ) -> None:
        from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

        kind = AutoModelForImageTextToText if is_whole else AutoModelForCausalLM
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
        self._model: PreTrainedModel = model.to(  # a wrapper hides `self`
            device=device, dtype=getattr(torch, dtype)
        )
        self._ids: list[int] = []
        self._cache: object = None
        self._num_cached = 0

    @property
    def max_positions(self) -> int | None:
        """As the configuration says, by any of its names."""
        found = getattr(self._model.config.get_text_config(), "max_position_embeddings", None)
        return found if isinstance(found, int) and found > 0 else None

    def read(self, ids: npt.NDArray[np.int64]) -> torch.Tensor:
        """As Reader's. What is not in the cache is computed again."""
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
        """As Reader's. Not every cache can be cut: what is left is read again."""
        if length != len(self._ids):
            self._ids, self._cache, self._num_cached = self._ids[:length], None, 0
