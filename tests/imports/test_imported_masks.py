"""Imported files learn what LLaMA-Factory and axolotl learn of the same records, by their own readers.

The expected kinds of difference are those that the import names: keys that it does not carry, templates with
another text, and the end marks of docs/comparing_labels.md.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from family_models import write_family
from fastsft import _C
from fastsft.cli import inspect, inspect_against
from fastsft.inspection.against.comparison import Comparison
from framework_pythons import python_of
from published_templates import write_model

HERE = Path(__file__).parent


def messages(*texts: str, names: tuple[str, str] = ("user", "assistant")) -> list[dict[str, str]]:
    return [{"role": names[i % 2], "content": text} for i, text in enumerate(texts)]


def sharegpt(*texts: str, names: tuple[str, str] = ("human", "gpt")) -> list[dict[str, str]]:
    return [{"from": names[i % 2], "value": text} for i, text in enumerate(texts)]


SYSTEM = {"role": "system", "content": "Be brief."}
TOOL = {"name": "weather", "description": "The weather.", "parameters": {"type": "object", "properties": {}}}
CHATS = [
    {"messages": messages("Hi", "Ho.")},
    {"messages": [SYSTEM, *messages("Ping?", "Pong.", "Tick?", "Tock.")]},
    {"messages": messages("One?", "Two, three.", "Four?", "Five.", "Six?", "Seven.")},
]
PROMPTS = [
    {"instruction": "Add one and two.", "input": "", "output": "Three."},
    {"instruction": "Translate.", "input": "Hund", "output": "Dog."},
]
FILES: dict[str, list[dict[str, Any]]] = {
    "data/chats.jsonl": CHATS, "chats.jsonl": CHATS, "corpus.jsonl": CHATS,
    "data/facts.json": PROMPTS,
    "data/tools.json": [
        {"conversations": sharegpt("Hi", "Ho.")},
        {
            "conversations": [
                *sharegpt("Rain?"),
                {"from": "function_call", "value": '{"name": "weather", "arguments": {}}'},
                {"from": "observation", "value": "sunny"},
                {"from": "gpt", "value": "It shines."},
            ],
            "tools": json.dumps([TOOL]),
        },
    ],
    "data/cards.json": [
        {"question": "And two?", "answer": "Two.", "history": [["One?", "One."]]},
        {"question": "Dog?", "answer": "Hund.", "history": []},
    ],
    "data/calls.json": [{"conversations": sharegpt("Hi", "Ho.", "He?", "Ha.", names=("caller", "agent"))}],
    "shares.jsonl": [
        {"conversations": sharegpt("Hi", "Ho.")},
        {"conversations": [{"from": "system", "value": "Be brief."}, *sharegpt("A?", "B.", "C?", "D.")]},
    ],
    "targets.jsonl": [
        {"instruction": "Add.", "output": "Three.", "context": "Add.", "target": "Three."},
    ],
    "agents.jsonl": [{"chat": sharegpt("Hi", "Ho.", "He?", "Ha.", names=("customer", "agent"))}],
    "bodies.jsonl": [{"body": "It rains.", "text": "It rains."}],
}  # fmt: skip
# trainer and file -> stand-in, data, kinds of difference
LLAMA_2, LLAMA_3 = "llama-2", "llama-3"
CASES: dict[tuple[str, str], tuple[str, str, set[str]]] = {
    ("llamafactory", "lora"): (LLAMA_3, "data/facts.json,data/chats.jsonl", set()),
    # The import names the spaces on both sides of a reply.
    ("llamafactory", "qlora"): (LLAMA_2, "data/facts.json", {"white space"}),
    # Its data set's tags name no system message: LLaMA-Factory drops the record that has one.
    ("llamafactory", "full_zero3"): ("qwen2.5", "data/chats.jsonl", {"end mark", "dropped record"}),
    ("llamafactory", "packed_bf16"): ("qwen3", "data/chats.jsonl", {"end mark"}),
    ("llamafactory", "ray_tools"): ("qwen2.5", "data/tools.json", {"end mark"}),
    ("llamafactory", "mlflow"): (LLAMA_3, "data/chats.jsonl", set()),
    ("llamafactory", "half"): ("qwen2.5", "data/cards.json", {"end mark"}),
    ("llamafactory", "evaluated"): ("qwen3", "data/chats.jsonl", {"end mark"}),
    ("llamafactory", "more_methods"): (LLAMA_3, "data/chats.jsonl", set()),
    ("llamafactory", "tagged"): ("gemma-2", "data/calls.json", {"end mark"}),
    ("axolotl", "modules"): ("qwen2.5", "chats.jsonl", set()),
    ("axolotl", "short"): (LLAMA_3, "corpus.jsonl", set()),
    # A completion: the import says to rename the field, so the data has it under both names.
    ("axolotl", "half"): (LLAMA_2, "bodies.jsonl", set()),
    ("axolotl", "chat_template"): (LLAMA_3, "chats.jsonl", set()),
    ("axolotl", "holdout"): ("qwen3.5", "chats.jsonl", {"thoughts"}),
    ("axolotl", "qlora"): (LLAMA_3, "data/facts.json", {"default system text", "other", "lead of a reply"}),
    # utils/schemas/validation.py refuses the type sharegpt: test_old_sharegpt.py compares its labels.
    ("axolotl", "sharegpt_8bit"): (LLAMA_2, "shares.jsonl", {"dropped record"}),
    ("axolotl", "full_zero2"): (LLAMA_3, "shares.jsonl", {"dropped record"}),
    ("axolotl", "own_prompt"): (LLAMA_3, "targets.jsonl", {"white space", "other"}),
    ("axolotl", "dora_roles"): ("qwen2.5", "agents.jsonl", {"prompt learned", "end mark"}),
}
# What the sources of axolotl 0.19 say of these files: kind, text, learned here, there (None: no text).
TEXTS: dict[str, set[tuple[str, str, bool | None, bool | None]]] = {
    # chat_template.py renders a conversation once, Qwen3.5's template writes the empty block of thoughts in
    # the last reply alone. Every prompt for a reply ends with it, so here each reply has it in its context.
    "holdout": {("thoughts", "<think>\n\n</think>\n\n", False, None)},
    # AlpacaPrompter has another text for records with an input. The reply, tokenized for itself, alone is
    # learned; the import names the line break after ### Response:.
    "qlora": {
        ("default system text", ", paired with an input that provides further context", None, False),
        ("other", "\n\n### Input:", None, False),
        ("lead of a reply", "\n", True, False),
    },
    # user_defined.py: without an input the prompt is `no_input_format`, "{instruction} ", not `format`.
    # The import, which does not carry it, writes Llama 3's.
    "own_prompt": {
        ("other", "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n", False, None),
        ("other", "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n", False, None),
        ("white space", " ", None, False),
    },
    # chat_template.py: roles_to_train has users, whose texts are learned; the end of the last turn alone is,
    # for train_on_eot is that of train_on_eos, last.
    "dora_roles": {
        ("prompt learned", "Hi", False, True),
        ("prompt learned", "He?", False, True),
        ("end mark", "<|im_end|>", True, False),
    },
}


def comparison(trainer: str, name: str, folder: Path, python: str) -> Comparison:
    """Compare the labels of a file, read in `folder`."""
    model, data, _ = CASES[trainer, name]
    write = write_family if model == LLAMA_2 else write_model
    write(folder / "model", "llama2_chat" if model == LLAMA_2 else model)
    # LLaMA-Factory asks for the kind of the model; weights are not read.
    (folder / "model" / "config.json").write_text('{"model_type": "llama", "vocab_size": 1000}')
    for path, rows in FILES.items():
        (folder / path).parent.mkdir(exist_ok=True)
        text = json.dumps(rows) if path.endswith(".json") else "".join(json.dumps(row) + "\n" for row in rows)
        (folder / path).write_text(text)
    words = [
        "--against_config",
        f"{name}.yaml",
        "--model",
        "model",
        "--data",
        data,
        "--against_python",
        python,
    ]
    args = inspect.parse(words)
    setup = inspect.setup_from(args, args.data)
    choice = _C.SurveyChoice(count=9, whole=True)
    seen = inspect_against.compared(args, setup, inspect.label_settings(args), choice)
    assert any(sum(record.ours.learned) for record in seen.records if record.ours is not None)
    return seen


@pytest.mark.thorough
@pytest.mark.parametrize(("trainer", "name"), CASES, ids=["-".join(case) for case in CASES])
def test_masks_of_imported_files(
    trainer: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(HERE / trainer, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    seen = comparison(trainer, name, tmp_path, python_of(trainer))
    assert {str(kind) for kind in seen.counts()} == CASES[trainer, name][2], seen.counts()
    if trainer == "axolotl" and name in TEXTS:
        each = [difference for record in seen.records for difference in record.differences]
        found = {(str(d.kind), d.text, d.is_ours_learned, d.is_theirs_learned) for d in each}
        assert found == TEXTS[name]
