"""Our labels next to those of other frameworks: five published templates, 30 conversations.

python tests/support/framework_table.py trl=PYTHON llamafactory=PYTHON ... writes the table of
docs/comparing_labels.md; PYTHON has the framework. Rows of frameworks that are not named stay.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fastsft import _C
from fastsft.data.chat.labelling import LabelSettings
from fastsft.inspection.against.comparison import Against, Comparison, compare
from fastsft.inspection.against.frameworks import FRAMEWORKS
from fastsft.inspection.inspect import prepare
from published_templates import write_model
from template_conversations import CONVERSATIONS
from template_table import read_table

PAGE = Path(__file__).parents[2] / "docs/comparing_labels.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
LENGTH = 4096
# Template: the settings with which users of each framework name it.
TEMPLATES: dict[str, dict[str, dict[str, str]]] = {
    "qwen2.5": {
        "llamafactory": {"template": "qwen"},
        "swift": {"model_type": "qwen2", "template_type": "qwen2_5"},
    },
    "qwen3": {
        "llamafactory": {"template": "qwen3"},
        "swift": {"model_type": "qwen3", "template_type": "qwen3"},
    },
    "llama-3.1": {
        "llamafactory": {"template": "llama3"},
        "swift": {"model_type": "llama", "template_type": "llama3_2"},
    },
    "gemma-3": {
        "llamafactory": {"template": "gemma2"},
        "swift": {"model_type": "gemma3_text", "template_type": "gemma3_text"},
    },
    "mistral-small-3.2": {
        "llamafactory": {"template": "mistral_small"},
        "swift": {"model_type": "mistral_2501", "template_type": "mistral_2501"},
    },
}
# The 30 of them with which every format that the frameworks read can do something: one result a call.
LEFT_OUT = ("call_parallel", "call_last", "think_call_last", "call_without_tools", "call_no_arguments")
NAMES = [name for name in CONVERSATIONS if name not in LEFT_OUT]


def records() -> list[dict[str, Any]]:
    chosen = ((name, CONVERSATIONS[name]) for name in NAMES)
    return [
        {"id": name, "messages": messages, **({"tools": tools} if tools else {})}
        for name, (messages, tools) in chosen
    ]


def compared(folder: Path, name: str, against: str, python: str) -> Comparison:
    """The conversations by a published template, next to a framework."""
    model = folder / name
    if not model.exists():
        write_model(model, name)
        _end_as_published(model / "chat_template.jinja")
    data = folder / "data.jsonl"
    data.write_text("".join(json.dumps(record) + "\n" for record in records()), "utf-8")
    settings = LabelSettings(mask_policy="spans", template="model")
    setup = prepare(str(model), settings, LENGTH, str(data))
    seen = setup.read(str(data), _C.SurveyChoice(count=len(NAMES), whole=True))[1]
    given = TEMPLATES[name].get(against, {})
    return compare(setup, "data", seen, Against(against, given, python, 300.0))


def _end_as_published(path: Path) -> None:
    """TRL knows templates by their whole text, and Qwen2.5's ends with a line break."""
    text = path.read_text("utf-8")
    path.write_text(text if text.endswith("\n") else text + "\n", "utf-8")


def rows(pythons: dict[str, str], known: dict[str, str]) -> Iterator[str]:
    """The rows of the table. known: those of frameworks that are not run now, by their first two columns."""
    yield "| template | framework | the same | differences: records (tokens learned here, there) |"
    yield "|---|---|---|---|"
    outcomes = read_table()
    with tempfile.TemporaryDirectory() as folder:
        for name in TEMPLATES:
            assert all(outcomes[name][kind] != "differs" for kind in NAMES)
            for against in FRAMEWORKS:
                begin = f"| {name} | {FRAMEWORKS[against].title} |"
                if against in pythons:
                    yield _row(begin, _tried(Path(folder), name, against, pythons[against]))
                elif begin in known:
                    yield known[begin]


def _tried(folder: Path, name: str, against: str, python: str) -> Comparison | str:
    try:
        return compared(folder, name, against, python)
    except ValueError as error:
        return str(error)


def _row(begin: str, found: Comparison | str) -> str:
    if isinstance(found, str):
        return f"{begin} | refused: {found.partition(': ')[2][:160].replace('|', ' ')} |"
    kinds = "; ".join(
        f"{kind}: {count['records']} ({count.get('ours', 0)}, {count.get('theirs', 0)})"
        for kind, count in found.counts().items()
    )
    return f"{begin} {found.num_same} | {kinds} |"


def main(arguments: list[str]) -> None:
    pythons = dict(word.split("=", 1) for word in arguments)
    text = PAGE.read_text("utf-8")
    head, _, rest = text.partition(BEGIN)
    lines = rest.partition(END)[0].splitlines()
    known = {"|".join(line.split("|")[:3]) + "|": line for line in lines if line.startswith("| ")}
    table = "\n".join(rows(pythons, known))
    PAGE.write_text(f"{head}{BEGIN}\n\n{table}\n\n{END}{rest.partition(END)[2]}", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
