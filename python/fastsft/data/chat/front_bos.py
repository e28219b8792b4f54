"""BOS in front of a Jinja template that writes none, where the tokenizer puts one in front of a text.

Training has the tokenizer's BOS then, as an id in front of the text. Servers and `apply_chat_template` add
none to what a template writes, so the saved template writes it.
"""

from __future__ import annotations

# The comment tells it from a template's own BOS, which is text; its line break is trimmed as after a block.
_FRONT = "{{ bos_token }}{# in front, where the tokenizer put it in training #}\n"


def with_bos(source: str) -> str:
    """The template with BOS in front of what it writes."""
    return _FRONT + source.removeprefix(_FRONT)


def without_bos(source: str, adds_bos: bool) -> str:
    """The text that `with_bos` got, if the tokenizer adds the BOS itself: the ids are those of training."""
    return source.removeprefix(_FRONT) if adds_bos else source
