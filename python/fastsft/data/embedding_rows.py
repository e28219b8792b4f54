"""Tokens that a model has no row of its embedding for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from fastsft.data.chat.labelling import LabelSettings
from fastsft.data.interfaces import WITHOUT_ROW
from fastsft.runtime.messages import warn_once
from fastsft.runtime.terminal_text import one_line


class TemplateTokens(Protocol):
    """A tokenizer that has a chat template."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def chat_template(self) -> str | None: ...
    def encode(self, text: str, /) -> list[int]: ...
    def decode(self, ids: Iterable[int], /) -> str: ...


def check_embedding(tokenizer: TemplateTokens, settings: LabelSettings, rows: int) -> None:
    """ValueError, before data is labelled, where the model's own chat template has a token without a row.

    settings: as `settle_policy` left them. A line where only other tokens have none, which no row of the data
    may have.
    """
    if tokenizer.vocab_size <= rows:
        return
    uses_own = settings.mask_policy == "spans" and settings.template in (None, "model")
    template = (tokenizer.chat_template or "") if uses_own else ""
    beyond = [each for each in tokenizer.encode(template) if each >= rows]
    if beyond:
        raise ValueError(
            f"the chat template has {one_line(tokenizer.decode(beyond[:1]))} (token id {beyond[0]}): "
            f"expected ids below {rows}, the rows of the model's embedding; {WITHOUT_ROW}"
        )
    warn_once(
        f"the tokenizer has {tokenizer.vocab_size:,} tokens, the model's embedding {rows:,} rows: a "
        f"conversation with a token beyond them ends the run; {WITHOUT_ROW}"
    )
