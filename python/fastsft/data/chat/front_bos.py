"""BOS in front of a Jinja template that writes none, where the tokenizer puts one in front of a text.

Training has the tokenizer's BOS then, as an id in front of the text. Servers and `apply_chat_template` add
none to what a template writes, so the saved template writes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastsft import _C

# The comment tells it from a template's own BOS, which is text; its line break is trimmed as after a block.
_COMMENT = "{# in front, where the tokenizer put it in training #}\n"
_FRONT = "{{ bos_token }}" + _COMMENT
_SPACED_FRONT = "{{ bos_token ~ ' ' }}" + _COMMENT


def with_bos(source: str, gap: str = "") -> str:
    """The template with BOS in front of what it writes, and after it the blank of `gap_after_bos`."""
    return (_SPACED_FRONT if gap else _FRONT) + _bare(source)


def without_bos(source: str, adds_bos: bool) -> str:
    """The text that `with_bos` got, if the tokenizer adds the BOS itself: the ids are those of training."""
    return _bare(source) if adds_bos else source


def gap_after_bos(native: _C.Tokenizer, text: str) -> str:
    """The blank that must follow a BOS that is text for the ids of a text after the tokenizer's own BOS.

    A Llama tokenizer that is not legacy puts a space in front of a text, and none after a BOS in the text.
    """
    if native.named.bos < 0:
        return ""
    bos, ids = native.token_text(native.named.bos), [native.named.bos, *native.encode(text)]
    is_same = native.encode(bos + text) == ids
    return " " if not is_same and native.encode(f"{bos} {text}") == ids else ""


def _bare(source: str) -> str:
    return source.removeprefix(_FRONT).removeprefix(_SPACED_FRONT)
