"""Says what each kind of difference means for the model."""

from __future__ import annotations

from fastsft.inspection.against.differences import Difference, Kind

# Kind: of tokens that they learn alone, that we learn alone, and that are context.
_WHY = {
    Kind.END_MARK: (
        "it follows the end of the turn: the model has stopped, and nothing generates it",
        "the model must generate it to end its turn",
        "the ends of the turn are written differently",
    ),
    Kind.THOUGHTS: (
        "the prompt for a reply has it already: the model reads it",
        "the model generates it after the prompt for a reply",
        "thoughts of an earlier reply, which one of the two leaves out of the context",
    ),
    Kind.TOOL_TEXT: (
        "calls or tools are written differently",
        "calls or tools are written differently",
        "calls or tools are written differently: a server renders the model's chat template",
    ),
    Kind.DEFAULT_SYSTEM: (
        "a system text that the record has not",
        "a system text that the record has not",
        "a system text that the record has not: a server renders that of the model's chat template",
    ),
    Kind.WHITE_SPACE: (
        "white space that one of the two does not write",
        "white space that one of the two does not write",
        "white space that one of the two does not write",
    ),
    Kind.PROMPT_LEARNED: ("the model reads it in the prompt and never generates it", "", ""),
    Kind.LEAD: ("", "the model generates it after the prompt for a reply", ""),
    Kind.REPLY: (
        "a reply from which nothing is learned here: a mark of the record or a flag says so",
        "a reply from which nothing is learned there",
        "",
    ),
    Kind.TOKENS: ("the same text", "the same text", "the same text"),
    Kind.TARGET: ("its target there is another token", "", ""),
    Kind.CUT: ("beyond the other's limit", "beyond the other's limit", "beyond the other's limit"),
    Kind.OTHER: ("", "", ""),
}
_MORE_THOUGHTS = "thoughts that the model's chat template does not write here"


def why(difference: Difference) -> str:
    """Return what the difference means; "" if its kind does not say."""
    theirs, ours, context = _WHY[difference.kind]
    if difference.kind == Kind.TARGET:
        return f"{theirs}: {difference.target!r}"
    if difference.kind == Kind.THOUGHTS and difference.is_ours_learned is None:
        return _MORE_THOUGHTS
    if difference.is_theirs_learned and not difference.is_ours_learned:
        return theirs
    if difference.is_ours_learned and not difference.is_theirs_learned:
        return ours
    return context


def label_words(is_learned: bool | None) -> str:
    return "no such text" if is_learned is None else "learned" if is_learned else "context"
