"""Finds the tokens with which a chat template ends replies, in the texts that it writes around them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fastsft.data.chat.rendering.marks import common_length
from fastsft.data.chat.rendering.reply_spans import Ends

if TYPE_CHECKING:
    from fastsft import _C


class Endings(NamedTuple):
    """The texts around replies that `Program.endings` in rendering/program.py returns."""

    last: str
    middle: str
    call: str
    after_call: str
    rest_of_prompt: str


def find_ends(around: Endings, native: _C.Tokenizer, bos: str, eos: str) -> tuple[Ends, str]:
    """Return the tokens that end replies, and the text from a reply's content to its stop token's end.

    native: the native tokenizer. bos, eos: the texts of its BOS and EOS; "" for none. The stop token is the
    first of these that exists: (1) EOS if every reply ends with EOS, (2) the first control token that ends
    every reply, (3) the first special token after the last reply, (4) the special token, other than BOS, with
    which a user message after a reply begins. In case 4, the token with which a tool result begins ends tool
    calls. ValueError if there is no stop token.
    """
    last = _specials(around.last, native)
    if last:
        shared = _specials(around.last[: common_length(around.last, around.middle)], native)
        controls = [token for token in shared if native.is_control(native.find_token(token))]
        stop = eos if eos in shared else (controls or last)[0]
        return Ends(stop, _call_stop(around.call, stop, native)), _up_to(around.last, stop)
    middle, after_call = (_specials(text, native) for text in (around.middle, around.after_call))
    if middle and middle[0] != bos and around.middle.lstrip().startswith(middle[0]):
        begins = bool(after_call) and around.after_call.lstrip().startswith(after_call[0])
        return Ends(middle[0], after_call[0] if begins else "", True), _up_to(around.middle, middle[0])
    raise ValueError(
        f"the chat template ends a reply with {around.last!r}, which holds no special token: a model trained "
        "with it would not stop; use a named template (--template)"
    )


def _call_stop(call: str, stop: str, native: _C.Tokenizer) -> str:
    """Return the token that ends a tool call; "" if there is none.

    This is the stop token if `call` contains it, and otherwise the control token at the end of `call`.
    """
    specials = _specials(call, native)
    last = specials[-1] if specials else ""
    if stop in specials:
        return stop
    is_end = last and call.rstrip().endswith(last) and native.is_control(native.find_token(last))
    return last if is_end else ""


def _specials(text: str, native: _C.Tokenizer) -> list[str]:
    """Return the texts of the special tokens in `text`, in order. Tokens of white space are left out."""
    data = text.encode()
    ids, offsets = native.encode_with_offsets(data)
    pairs = zip(ids, offsets, strict=True)
    tokens = (data[begin:end].decode().strip() for token, (begin, end) in pairs if native.is_special(token))
    return [text for text in tokens if text]


def _up_to(text: str, stop: str) -> str:
    return text[: text.index(stop) + len(stop)]
