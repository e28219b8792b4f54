"""The special tokens that end the replies of a chat template, from what it writes around them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fastsft.data.chat.pieces import common_length
from fastsft.data.chat.reply_spans import Ends

if TYPE_CHECKING:
    from fastsft import _C


class Endings(NamedTuple):
    """The answer of `template_program.Program.endings`."""

    last: str
    middle: str
    call: str
    after_call: str
    rest_of_prompt: str


def find_ends(found: Endings, native: _C.Tokenizer, bos: str, eos: str) -> tuple[Ends, str]:
    """The tokens that end replies, and what comes after a reply's text up to the end of its stop token.

    native: the native tokenizer. bos, eos: its named tokens, "" for none. EOS is the stop token where every
    reply ends with it, else the first control token that ends every reply, else the first special token after
    the last reply. Where there is none, it is the one with which a user's message begins after a reply, but
    for BOS, and a tool's result after a call.
    ValueError where there is none either.
    """
    last = _specials(found.last, native)
    if last:
        shared = _specials(found.last[: common_length(found.last, found.middle)], native)
        controls = [token for token in shared if native.is_control(native.find_token(token))]
        stop = eos if eos in shared else (controls or last)[0]
        return Ends(stop, _call_stop(found.call, stop, native)), _up_to(found.last, stop)
    middle, after_call = (_specials(text, native) for text in (found.middle, found.after_call))
    if middle and middle[0] != bos and found.middle.lstrip().startswith(middle[0]):
        begins = bool(after_call) and found.after_call.lstrip().startswith(after_call[0])
        return Ends(middle[0], after_call[0] if begins else "", True), _up_to(found.middle, middle[0])
    raise ValueError(
        f"the chat template ends a reply with {found.last!r}, which holds no special token: a model trained "
        "with it would not stop; use a named template (--template)"
    )


def _call_stop(call: str, stop: str, native: _C.Tokenizer) -> str:
    """The end of a call: the stop token, else the control token with which its text ends, else ""."""
    specials = _specials(call, native)
    last = specials[-1] if specials else ""
    if stop in specials:
        return stop
    is_end = last and call.rstrip().endswith(last) and native.is_control(native.find_token(last))
    return last if is_end else ""


def _specials(text: str, native: _C.Tokenizer) -> list[str]:
    """The special tokens in a text, in order; none of white space."""
    data = text.encode()
    ids, offsets = native.encode_with_offsets(data)
    pairs = zip(ids, offsets, strict=True)
    found = (data[begin:end].decode().strip() for token, (begin, end) in pairs if native.is_special(token))
    return [text for text in found if text]


def _up_to(text: str, stop: str) -> str:
    return text[: text.index(stop) + len(stop)]
