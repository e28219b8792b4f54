"""Check a chat template's labels on sample records (docs/spec/fastchat_labels.md, section 4.4)."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from fastsft import _C

if TYPE_CHECKING:
    from fastsft.data.chat.model_template import ModelTemplate

SYSTEM = "Answer in few words."
TURNS = (("What is the capital of France?", "It is Paris."), ("And of Peru?", "I think Lima, on the coast."))


def probe_record(system: bool = False, turns: int = len(TURNS)) -> dict[str, Any]:
    """Return a sample record with the first `turns` of TURNS, and with a system text if `system` is True.

    Its train mark is for --learn marked.
    """
    messages = [
        {"from": role, "value": text}
        for turn in TURNS[:turns]
        for role, text in zip(("human", "gpt"), turn, strict=True)
    ]
    return {
        "id": "probe", "conversations": messages, "train": True, **({"system": SYSTEM} if system else {})
    }  # fmt: skip


def check_template(
    labeller: _C.Labeller,
    native: _C.Tokenizer,
    stop_token: str,
    *,
    has_lead: bool = False,
    ending: str | None = None,
) -> None:
    """Raise ValueError, which shows a sample record token by token, if the labels are wrong.

    native: the labeller's tokenizer. stop_token: the token that must end each reply. has_lead: True if the
    template may write learned text before a reply's content, such as a block of thoughts. ending: the text
    after a reply's content, by default the stop token.

    Conditions for each learned reply: (a) its last learned id is the stop token, (b) its first token is
    learned, (c) its learned ids decode to the reply and `ending`. Conditions for the record: (d) no other
    token is learned, (e) if the tokenizer adds a BOS, the record begins with exactly one BOS.
    """
    name = labeller.options.chat_template
    if native.find_token(stop_token) < 0:
        raise ValueError(
            f"the template {name} ends replies with {stop_token}, and this tokenizer has no such token; name "
            "another one with --template, or --template model for the model's own"
        )
    whole = range(len(TURNS), len(TURNS) + 1)
    options = labeller.options
    is_each, is_last = options.train_turns == "each", options.learn in ("last", "after_last_user")
    for turns in range(1, len(TURNS) + 1) if is_each else whole:
        seen = _C.explain_record(json.dumps(probe_record(turns=turns)), labeller)
        replies = [reply for _, reply in TURNS[:turns]]
        learned = replies[-1:] if is_each or is_last else replies
        faults = _faults(seen, native, stop_token, learned, has_lead, ending or stop_token)
        if faults:
            raise ValueError(
                f"the template {name} fails its self-test with this tokenizer (--mask_policy "
                f"{labeller.options.mask_policy}): "
                f"{'; '.join(faults)}\n{show_tokens(seen, native)}"
            )


def check_thoughts(templates: Sequence[ModelTemplate], learn_thoughts: str) -> None:
    """Raise ValueError if a template writes thoughts without <think> and </think>, which mark their ends."""
    thinking = json.dumps({"reasoning_content": "zq thoughts"})
    reply = ("assistant", TURNS[0][1], True, thinking)
    for template in templates:
        if "reasoning_content" not in template.fields:
            continue
        pieces = template([(None, [("user", TURNS[0][0], False, ""), reply], "", "")])[0][0]
        text = "".join(piece for piece, _, _ in pieces)
        if "zq thoughts" in text and not re.search("<think>\\s*zq thoughts\\s*</think>", text):
            raise ValueError(
                f"--learn_thoughts {learn_thoughts}: the chat template writes thoughts without <think> and "
                f"</think> around them ({text!r}), so that they cannot be left out; use --learn_thoughts all"
            )


def check_prompt(model: ModelTemplate) -> None:
    """Raise ValueError if the template writes text before a reply's content that its prompts lack.

    Such text would be learned as a part of replies.
    """
    if model.marks_replies:
        return
    reply = TURNS[0][1]
    dialogue = (None, [("user", TURNS[0][0], False, ""), ("assistant", reply, True, "")], "", "")
    whole, prompt = (
        "".join(text for text, _, _ in write([dialogue])[0][0]) for write in (model, model.prompts)
    )
    lead = whole.removeprefix(prompt).partition(reply)[0]
    if lead.strip():
        raise ValueError(
            f"the chat template ignores add_generation_prompt and writes {lead!r} before a reply, which "
            "would be learned with it; put {% if add_generation_prompt %}{{ "
            f"{lead!r} }}}}{{% endif %}} at the end of the model's template, or name one with --template"
        )


def warn_of_stop(stop_id: int, eos_ids: Collection[int], stop_token: str) -> str | None:
    """Return a warning if generation with the model's settings would not stop at `stop_id`; else None."""
    if stop_id in eos_ids:
        return None
    return (
        f"the stop token {stop_token} (id {stop_id}) is not among eos_token_id {sorted(eos_ids)} of "
        "generation_config.json: generation would not end with it"
    )


def show_tokens(seen: _C.Explanation, native: _C.Tokenizer) -> str:
    """Return a line for each token of an explained record: position, id, "*" if learned, and text."""
    if not seen.tokens:
        reasons = [f"{finding.remark}: {finding.reason}" for finding in seen.findings]
        return "\n".join(reasons + [str(fault) for fault in seen.faults]) or "no tokens"
    return "\n".join(
        f"{position:4} {token:7} {'*' if learned else ' '} {native.token_text(token)!r}"
        for position, (token, _, _, learned) in enumerate(seen.tokens)
    )


def _faults(
    seen: _C.Explanation,
    native: _C.Tokenizer,
    stop_token: str,
    replies: list[str],
    has_lead: bool,
    ending: str,
) -> list[str]:
    stop = native.find_token(stop_token)
    if not any(learned for *_, learned in seen.tokens):
        return ["nothing is learned"]
    runs = [list(run) for learned, run in groupby(seen.tokens, key=lambda token: token[3]) if learned]
    text = seen.text_bytes
    faults = [] if len(runs) == len(replies) else [f"{len(runs)} learned parts for {len(replies)} replies"]
    for number, (run, reply) in enumerate(zip(runs, replies, strict=False)):
        faults += [
            f"reply {number}: {fault}"
            for fault in _reply_faults(run, reply, text, native, stop, stop_token, has_lead, ending)
        ]
    return faults + _bos_faults(seen, native)


def _reply_faults(
    run: list[tuple[int, int, int, bool]],
    reply: str,
    text: bytes,
    native: _C.Tokenizer,
    stop: int,
    stop_token: str,
    has_lead: bool,
    ending: str,
) -> list[str]:
    faults = []
    if run[-1][0] != stop:
        faults.append(f"(a) its last learned id is {run[-1][0]}, not {stop}, the stop token {stop_token!r}")
    covered = text[run[0][1] : run[-1][2]].decode(errors="replace")
    lead = covered[: max(covered.find(reply), 0)] if has_lead else ""
    if not covered[len(lead) :].strip().startswith(reply):
        faults.append(f"(b) (d) its learned part begins {covered[:20]!r}, expected {reply[:20]!r}")
    decoded, whole = native.decode([token for token, *_ in run]), lead + reply + ending
    if "".join(decoded.split()) != "".join(whole.split()):
        faults.append(f"(c) its learned ids decode to {decoded!r}, expected {whole!r}")
    return faults


def _bos_faults(seen: _C.Explanation, native: _C.Tokenizer) -> list[str]:
    bos, named = native.named.bos, native.named
    if bos < 0 or bos in (named.eos, named.pad):
        return []
    ids = [token for token, *_ in seen.tokens]
    if native.adds_bos and ids[0] != bos:
        return ["(e) the first id is not BOS"]
    return ["(e) BOS comes twice at the front"] if ids[:2] == [bos, bos] else []
