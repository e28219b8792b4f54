"""`fastsft inspect --against_config`: a framework's own file, read there as it is and here as imported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fastsft import _C
from fastsft.cli import inspect, inspect_against
from fastsft.inspection.against import comparison
from fastsft.inspection.against.comparison import Comparison
from fastsft.inspection.against.configuration import read_configuration
from published_models import write_published

# Says what reached it, and leaves out each record with its own text as the reason.
ADAPTER = """
import json

def encode(request, records):
    data = {"data": request.get("data")}
    yield {"versions": {}, "settings": {**request["settings"], **data}}
    for number, record in enumerate(records):
        yield {"index": number, "dropped": json.dumps(record)}
"""
TURNS = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]
INFO = {
    "chats": {"file_name": "chats.jsonl", "formatting": "sharegpt", "columns": {"messages": "messages"}},
    "facts": {"file_name": "facts.json", "columns": {"prompt": "question", "response": "answer"}},
}
LLAMAFACTORY = """
stage: sft
model_name_or_path: model
dataset: chats,facts
dataset_dir: .
template: qwen3
cutoff_len: 99
mask_history: true
lora_target: all
"""
AXOLOTL = """
base_model: model
datasets:
  - path: chats.jsonl
    type: chat_template
    roles_to_train: [assistant]
  - path: facts.json
    type: alpaca
sequence_len: 77
eot_tokens: ["<|im_end|>"]
micro_batch_size: 2
"""
TRL = "model_name_or_path: model\ndataset_name: chats.jsonl\nassistant_only_loss: true\nuse_peft: true\n"
SWIFT = (
    "swift sft --model model --dataset chats.jsonl --loss_scale last_round --template qwen3 --max_length 55"
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("place")
    write_published(folder / "model", "qwen3")
    lines = [json.dumps({"messages": TURNS, "note": number}) + "\n" for number in range(3)]
    (folder / "chats.jsonl").write_text("".join(lines))
    (folder / "facts.json").write_text(json.dumps([{"question": "Hi?", "answer": "Ho."}]))
    (folder / "dataset_info.json").write_text(json.dumps(INFO))
    files = {"llamafactory.yaml": LLAMAFACTORY, "axolotl.yaml": AXOLOTL, "trl.yaml": TRL, "run.sh": SWIFT}
    for name, text in files.items():
        (folder / name).write_text(text)
    (folder / "of_fake.py").write_text(ADAPTER)
    return folder


def compared(place: Path, monkeypatch: pytest.MonkeyPatch, *words: str, choice: Any = None) -> Comparison:
    monkeypatch.chdir(place)
    monkeypatch.setattr(comparison, "adapter_of", lambda name: place / "of_fake.py")
    args = inspect.parse(list(words))
    setup = inspect.setup_from(args, args.data)
    chosen = choice or _C.SurveyChoice(count=9, whole=True)
    return inspect_against.compared(args, setup, inspect.label_settings(args), chosen)


CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llamafactory.yaml": (
        "llamafactory", {"template": "qwen3", "cutoff_len": 99, "mask_history": True},
        {"template": "model", "model_max_length": 99, "learn": "last"},
    ),
    "axolotl.yaml": (
        "axolotl", {"sequence_len": 77, "eot_tokens": ["<|im_end|>"]},
        {"template": "model", "model_max_length": 77, "learn": "all"},
    ),
    "trl.yaml": (
        "trl", {"assistant_only_loss": True}, {"template": "model", "model_max_length": 1024},
    ),
    "run.sh": (
        "swift", {"template": "qwen3", "loss_scale": "last_round", "max_length": 55},
        {"template": "model", "model_max_length": 55, "learn": "after_last_user"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("file", CASES)
def test_their_settings_there_and_the_import_here(
    file: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, settings, ours = CASES[file]
    monkeypatch.chdir(place)
    args = inspect.parse(["--against_config", file, "--data", "chats.jsonl"])
    assert args.against == name and args.model == "model"
    assert {key: getattr(args, key) for key in ours} == ours
    seen = compared(place, monkeypatch, "--against_config", file, "--data", "chats.jsonl")
    assert {key: seen.settings[key] for key in seen.settings if key != "data"} == settings


def test_flags_win_on_both_sides(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    words = ("--against_config", "llamafactory.yaml", "--data", "chats.jsonl", "--learn", "all")
    args = inspect.parse([*words, "--model_max_length", "40"])
    assert (args.learn, args.model_max_length) == ("all", 40)
    seen = compared(place, monkeypatch, *words, "--against_setting", "cutoff_len=7")
    assert seen.settings["cutoff_len"] == 7 and seen.settings["template"] == "qwen3"


def test_a_file_of_ours_is_the_other_side(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    Path("mine.yaml").write_text("learn: marked\nmodel_max_length: 31\n")
    words = ["--against_config", "llamafactory.yaml", "--config", "mine.yaml", "--data", "chats.jsonl"]
    args = inspect.parse([*words, "--model", "model"])
    assert (args.learn, args.model_max_length, args.template) == ("marked", 31, None)


@pytest.mark.parametrize(
    ("file", "descriptions"),
    [
        ("llamafactory.yaml", [{"dataset": "chats"}, {"dataset": "facts"}]),
        ("dataset_info.json", [{"dataset": "chats"}, {"dataset": "facts"}]),
        (
            "axolotl.yaml",
            [
                {"path": "chats.jsonl", "type": "chat_template", "roles_to_train": ["assistant"]},
                {"path": "facts.json", "type": "alpaca"},
            ],
        ),
        ("trl.yaml", [{}, {}]),
    ],
)
def test_records_are_read_there_as_they_stand_in_their_file(
    file: str, descriptions: list[dict[str, Any]], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file with its own description, also of several files, and of records from their middle."""
    more = {"dataset_dir": str(place)} if "dataset" in descriptions[0] else {}
    words = ("--against_config", file, "--model", "model", "--data")
    choice = _C.SurveyChoice(count=9, id="2", whole=True)
    seen = compared(place, monkeypatch, *words, "chats.jsonl", choice=choice)
    data = seen.settings["data"]
    assert data["path"] == str((place / "chats.jsonl").resolve())
    assert (data["numbers"], data["description"]) == ([2], {**descriptions[0], **more})
    assert [json.loads(record.their_reason) for record in seen.records] == [{"messages": TURNS, "note": 2}]
    seen = compared(place, monkeypatch, *words, "facts.json")
    assert seen.settings["data"]["description"] == {**descriptions[1], **more}
    seen = compared(place, monkeypatch, *words, "chats.jsonl,facts.json")
    reasons = [json.loads(record.their_reason) for record in seen.records]
    assert [sorted(reason) for reason in reasons] == [["messages", "note"]] * 3 + [["answer", "question"]]


def test_data_and_model_are_those_of_the_file(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = compared(place, monkeypatch, "--against_config", "llamafactory.yaml")
    assert len(seen.records) == 4


def test_a_file_without_a_description(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has that of the only data set; of several, none is taken."""
    monkeypatch.chdir(place)
    Path("other.jsonl").write_text(json.dumps({"messages": TURNS}) + "\n")
    with pytest.raises(ValueError, match=r"other.jsonl is the file of none of the data sets \(.*chats.jsonl"):
        compared(place, monkeypatch, "--against_config", "axolotl.yaml", "--data", "other.jsonl")
    Path("one.yaml").write_text(LLAMAFACTORY.replace("chats,facts", "chats"))
    seen = compared(place, monkeypatch, "--against_config", "one.yaml", "--data", "other.jsonl")
    assert seen.settings["data"]["description"]["dataset"] == "chats"


@pytest.mark.parametrize(
    ("words", "text", "expected"),
    [
        (
            [],
            "torchrun fastchat/train/train_mem.py --data_path a.json",
            "a file of FastChat; labels are compared",
        ),
        ([], "learning_rate: 1e-4", "no training command"),
        (["--against", "hf"], SWIFT, "--against hf has no configuration file"),
        (["--against", "fastsft"], SWIFT, "--against fastsft has no configuration file"),
    ],
)
def test_files_that_are_refused(
    words: list[str], text: str, expected: str, place: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("theirs.sh").write_text(text)
    with pytest.raises(SystemExit) as ended:
        inspect.parse(["--against_config", "theirs.sh", "--data", "a.json", "--model", "m", *words])
    assert ended.value.code == 2 and expected in capsys.readouterr().err


def test_a_dataset_info_without_files(tmp_path: Path) -> None:
    (tmp_path / "dataset_info.json").write_text(json.dumps({"a": {"hf_hub_url": "owner/a"}}))
    with pytest.raises(ValueError, match="expected data sets by name, each with file_name"):
        read_configuration(tmp_path / "dataset_info.json")
