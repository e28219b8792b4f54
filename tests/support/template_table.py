"""Labels of conversations by published templates, token by token against the reference.

python tests/support/template_table.py FILE writes the table of all pairs (tests/golden/chat_templates).
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from family_models import TEMPLATES
from fastsft import _C
from fastsft.data.chat.labelling import LabelSettings, make_labeller
from fastsft.tokenizer import Tokenizer
from fastsft.tokenizer.transformers_tokenizer import find_native_tokenizer
from published_templates import PUBLISHED, write_model
from template_conversations import CONVERSATIONS, Message
from template_reference import Reference, Reply

TABLE = TEMPLATES / "labels.tsv"
LENGTH = 1 << 14
Row = tuple[Sequence[int], Sequence[int]]  # of a reply: all ids before it, and its own


class Pair(NamedTuple):
    """What became of a conversation with a template. outcome: equal, leaves (equal, and the prompt begins
    thoughts that the reply has not), refused (a reply or all, as in the reference), lost (calls), differs."""

    outcome: str
    detail: str = ""


class Judge:
    """A published template: our labels and the reference."""

    def __init__(self, folder: Path, name: str, **settings: Any) -> None:
        model = write_model(folder, name)
        tokenizer = Tokenizer.from_pretrained(model, model_max_length=LENGTH)
        self.native = find_native_tokenizer(tokenizer)
        assert self.native is not None
        chosen = LabelSettings(mask_policy="spans", template="model", **settings)
        self.labeller = make_labeller(self.native, LENGTH, 0, chosen, tokenizer=tokenizer, self_test=True)
        self.reference = Reference(model, PUBLISHED[name])

    def label(self, records: list[Any]) -> _C.LabelledData:
        """As a file of the records."""
        return _C.label_text(json.dumps(records), self.labeller)

    def rows(self, messages: list[Message], tools: Any) -> tuple[list[Row], Any]:
        """A row for each learned reply, and the report."""
        seen = self.label([{"id": "r", "messages": messages, **({"tools": tools} if tools else {})}])
        found: list[Row] = []
        for i in range(len(seen.dataset)):
            ids = seen.dataset.ids(i).tolist()
            found += [(ids[:begin], ids[begin:end]) for begin, end in seen.dataset.learned(i)]
        return found, seen.report

    def judge(self, messages: list[Message], tools: Any) -> Pair:
        found, report = self.rows(messages, tools)
        expected = self.reference.replies(messages, tools)
        reasons = "; ".join(
            f"{name}: {entry.reason}" for name, entry in report.entries.items() if name != "split"
        )
        if not found and not expected:
            is_told = "tool_call" in report.entries or "writes no calls" in reasons
            is_true = is_told and self.reference.loses_calls(messages, tools)
            return Pair("lost" if is_true else "differs", reasons)
        left_out = [reply.refused or "its call is lost" for reply in expected if reply.refused or reply.lost]
        taken = [reply for reply in expected if not reply.refused and not reply.lost]
        rows = [(reply.context, reply.learned) for reply in taken]
        if left_out:
            is_true = "template_refuses" in report.entries and found in ([], rows)
            return Pair("refused" if is_true else "differs", f"{reasons} / {left_out[0]}")
        if found != rows:
            return Pair("differs", self._difference(found, taken, reasons))
        return Pair("leaves" if any(reply.leaves for reply in taken) else "equal", reasons)

    def _difference(self, found: list[Row], expected: list[Reply], reasons: str) -> str:
        assert self.native is not None
        ours = [(self.native.decode(list(a))[-60:], self.native.decode(list(b))) for a, b in found]
        theirs = [
            (self.native.decode(list(reply.context))[-60:], self.native.decode(list(reply.learned)))
            for reply in expected
        ]
        return f"{reasons}\n  ours   {ours}\n  theirs {theirs}"


def judge_template(folder: Path, name: str, kinds: Sequence[str]) -> dict[str, Pair]:
    judge = Judge(folder, name)
    return {kind: judge.judge(*CONVERSATIONS[kind]) for kind in kinds}


def read_table() -> dict[str, dict[str, str]]:
    """The recorded outcome of each template with each conversation."""
    kinds, *lines = (line.split("\t") for line in TABLE.read_text("utf-8").splitlines())
    return {name: dict(zip(kinds[1:], outcomes, strict=True)) for name, *outcomes in lines}


def main(path: str) -> None:
    with tempfile.TemporaryDirectory() as folder, open(path, "w") as file:
        print("template", *CONVERSATIONS, sep="\t", file=file)
        for name in PUBLISHED:
            pairs = judge_template(Path(folder) / name, name, list(CONVERSATIONS))
            for kind, pair in pairs.items():
                if pair.outcome == "differs":
                    print(f"{name}, {kind}: {pair.detail}", file=sys.stderr)
            print(name, *(pair.outcome for pair in pairs.values()), sep="\t", file=file, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
