"""One-shot replies from a trained model, to see what it learned; serving belongs to other tools."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from fastsft import _C
from fastsft.model.weights import load_weights
from fastsft.runtime.regular_files import file_inside, read_text
from fastsft.tokenizer.tokenizer import Tokenizer


def first_prompt(message: str, chat_template: str = "vicuna_v1.1") -> str:
    """The text of a named template around a first question, up to where the answer begins to be learned."""
    template = _C.find_chat_template(chat_template)
    before = template.before_assistant[: len(template.before_assistant) - template.learned_lead]
    system = template.system and f"{template.before_system}{template.system}{template.after_system}"
    user = f"{template.before_user}{system}" if template.system_in_user else f"{system}{template.before_user}"
    return f"{user}{message}{template.after_user}{before}"


class Scorer(Protocol):
    """The part of an engine that `generate` needs."""

    def logits(self, input_ids: Any, lengths: Any) -> torch.Tensor:
        """input_ids int64 [T] of examples laid end to end, and their lengths -> float32 [T, V]."""


def generate(
    engine: Scorer,
    prompt: Sequence[int],
    *,
    max_new_tokens: int = 64,
    stop: Collection[int] = (),
    temperature: float = 0.0,
    seed: int = 0,
) -> list[int]:
    """Continues `prompt` (token ids) token by token; returns the new ids, without the stop token.

    temperature 0 takes the most likely token, otherwise tokens are drawn from softmax(logits / temperature).
    The whole text is read again for every token: meant for short replies of small models.
    Raises ValueError for an empty prompt or a negative temperature.
    """
    if not prompt or temperature < 0:
        raise ValueError(f"expected a prompt and temperature >= 0, got {len(prompt)} ids and {temperature}")
    generator = torch.Generator().manual_seed(seed)
    ids = list(prompt)
    while len(ids) < len(prompt) + max_new_tokens:
        last = engine.logits(np.array(ids), np.array([len(ids)]))[-1]
        token = choose(last, temperature, generator)
        if token in stop:
            break
        ids.append(token)
    return ids[len(prompt) :]


def choose(logits: torch.Tensor, temperature: float, generator: torch.Generator) -> int:
    """One token id for float32 logits [V]; ties go to the lowest id."""
    if temperature == 0:
        return int(logits.argmax())
    probabilities = torch.softmax(logits / temperature, dim=-1)
    return int(torch.multinomial(probabilities, 1, generator=generator))


class ChatModel:
    """A Hugging Face model directory that answers questions in the vicuna_v1.1 format, on the CPU."""

    def __init__(self, directory: str | Path, max_positions: int = 512) -> None:
        self.tokenizer = Tokenizer.from_pretrained(str(directory))
        path = file_inside(directory, "config.json")
        if path is None:
            raise ValueError(f"{directory}: expected a model directory, found no config.json")
        config = read_text(path)
        self.engine = _C.Engine(config, max_positions=max_positions)
        self.max_positions = max_positions
        load_weights(self.engine, str(directory))

    def reply(
        self, message: str, *, max_new_tokens: int = 64, temperature: float = 0.0, seed: int = 0
    ) -> str:
        """The answer to one message. Raises ValueError when it does not fit into `max_positions`."""
        prompt = self.tokenizer.encode(first_prompt(message), add_special_tokens=True)
        if len(prompt) + max_new_tokens > self.max_positions:
            raise ValueError(f"{len(prompt)} + {max_new_tokens} tokens, at most {self.max_positions}")
        end = self.tokenizer.eos_token_id
        ids = generate(
            self.engine,
            prompt,
            max_new_tokens=max_new_tokens,
            stop=() if end is None else (end,),
            temperature=temperature,
            seed=seed,
        )
        return str(self.tokenizer.decode(ids)).strip()
