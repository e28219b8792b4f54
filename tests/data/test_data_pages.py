"""What is shown of the data before weights are loaded: report, masked samples, --check_data, stop token."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fastsft import data
from fastsft.arguments import DataArguments
from fastsft.data.chat.labelling import LabelSettings, parse_role_map
from fastsft.inspection import data_report as data_pages
from fastsft.model.config import generation_config_to_save
from fastsft.tokenizer import Tokenizer
from golden_text import GOLDEN, MODES, human_gpt

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokenizer_in(folder: Path, chat_template: str | None = None) -> Tokenizer:
    shutil.copytree(GOLDEN / "tokenizers" / MODES[0], folder, dirs_exist_ok=True)
    if chat_template is not None:
        (folder / "chat_template.jinja").write_text(chat_template)
    return Tokenizer.from_pretrained(folder, model_max_length=128)


def module(tmp_path: Path, tokenizer: Tokenizer, records: list[Any], **options: Any) -> tuple[Any, Any]:
    path = tmp_path / "data.json"
    path.write_text(json.dumps(records))
    arguments = DataArguments(data_path=str(path), **options)
    return arguments, data.make_supervised_data_module(tokenizer, arguments)


def test_report_beside_the_model(tmp_path: Path) -> None:
    records = [{"id": "a", "conversations": human_gpt("Hi", "Ho", "He")}, {"id": "b", "conversations": []}]
    _, made = module(
        tmp_path,
        tokenizer_in(tmp_path / "t"),
        records,
        mask_policy="spans",
        template="vicuna",
        max_dropped=0.5,
    )
    report = json.loads(data_pages.write_data_report(tmp_path, made).read_text())
    assert set(report) == {"train"}
    train = report["train"]
    assert (train["mask_policy"], train["template"], train["stop_token"]) == ("spans", "vicuna_v1.1", "</s>")
    assert (train["records"], train["kept"], train["excluded"], train["salvaged"]) == (2, 1, 1, 1)
    assert train["reasons"]["ends_with_user"] == {
        **{"count": 1, "salvaged": 1, "first": ["a"]},
        "reason": "message 2: ends with the user",
    }
    assert train["reasons"]["empty_conversation"] == {
        **{"count": 1, "excluded": 1, "first": ["b"]},
        "reason": "empty conversation",
    }


def test_what_teaches_nothing_says_why(tmp_path: Path) -> None:
    tokenizer = tokenizer_in(tmp_path / "t")
    called = {"conversations": [*human_gpt("Hi"), {"from": "tool", "value": "x"}, *human_gpt("a", "b")]}
    with pytest.raises(
        ValueError, match="learned\n  record 0: message 1: this chat template has no messages"
    ):
        module(tmp_path, tokenizer, [called], mask_policy="spans", template="vicuna")
    with pytest.raises(ValueError, match="FastChat has no tools, --mask_policy spans --template model reads"):
        module(tmp_path, tokenizer, [called], mask_policy="fastchat")


def test_what_is_lost_says_why(tmp_path: Path) -> None:
    """The commonest reason, of records that have no label; and where to look."""
    refusal = "{% if m.role == 'system' %}{{ raise_exception('no systems') }}{% endif %}<|im_start|>{{ m.role"
    tokenizer = tokenizer_in(tmp_path / "t", CHATML.replace("<|im_start|>{{ m.role", refusal))
    turn = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]
    refused = {"messages": [{"role": "system", "content": "Be brief."}, *turn]}
    unended = {"messages": [*turn, turn[0]]}
    records = [{"messages": turn}, *[unended] * 3, refused, refused, {"messages": []}]
    reason = r"3 of 7 .* fewer\n  record 4: .*no systems.*\n  fastsft inspect shows such records\n  7 conv"
    with pytest.raises(ValueError, match=reason):
        module(tmp_path, tokenizer, records, mask_policy="spans", max_dropped=0.4)


def test_what_is_no_json_tells_what_is_read(tmp_path: Path) -> None:
    tokenizer, path = tokenizer_in(tmp_path / "t"), tmp_path / "data.txt"
    path.write_text("instruction,output\nHi,Ho\n")
    with pytest.raises(
        ValueError, match=r"; JSON, JSON lines, Parquet, Arrow and CSV \(by its name\) are read"
    ):
        data.make_supervised_data_module(tokenizer, DataArguments(data_path=str(path)))
    path.write_text('{"conversations": [}')
    with pytest.raises(ValueError, match="not JSON at byte 19") as raised:
        data.make_supervised_data_module(tokenizer, DataArguments(data_path=str(path)))
    assert "Parquet" not in str(raised.value)


def test_preference_data_is_named(tmp_path: Path) -> None:
    tokenizer, pair = tokenizer_in(tmp_path / "t"), {"prompt": "a", "chosen": "b", "rejected": "c"}
    for policy in ("fastchat", "spans"):
        with pytest.raises(ValueError, match="preference data, which supervised training cannot use as it"):
            module(tmp_path, tokenizer, [pair], mask_policy=policy, template="vicuna")


def test_calls_of_tools_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where the turns that have them are why nothing is learned."""
    tokenizer = tokenizer_in(tmp_path / "t", CHATML)
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}
    asked, told = {"role": "user", "content": "?"}, {"role": "tool", "content": "sunny"}
    called = {"messages": [asked, call, told, {"role": "assistant", "content": "Sunny."}]}
    plain = {"messages": [{**asked, "tool_calls": None}, {"role": "assistant", "content": "Ho"}]}
    left_out = "a turn with a reply that is a call without a text is left out"
    with pytest.raises(ValueError, match=f"(?s)nothing in this file is learned.*{left_out}"):
        module(tmp_path, tokenizer, [called], mask_policy="spans")
    module(tmp_path, tokenizer, [called, plain], mask_policy="spans", max_dropped=0.5)
    assert left_out in capsys.readouterr().out
    module(tmp_path, tokenizer, [plain], mask_policy="spans")
    assert left_out not in capsys.readouterr().out


def test_calls_of_tools_have_a_reason_of_their_own(tmp_path: Path) -> None:
    """Text next to a call is context: its end mark would teach to stop before the call."""
    tokenizer = tokenizer_in(tmp_path / "t", CHATML)
    asked, call = {"role": "user", "content": "?"}, {"tool_calls": [{"function": {"name": "f"}}]}
    silent = [
        asked,
        {"role": "assistant", "content": None, **call},
        asked,
        {"role": "assistant", "content": "Ho"},
    ]
    spoken = [asked, {"role": "assistant", "content": "Let me look.", **call}, *silent[2:]]
    plain = [asked, {"role": "assistant", "content": "Let me look.", "tool_calls": []}]
    named = [{"from": "human", "value": "?"}, {"from": "gpt", "value": "Let me look.", **call}]
    records = [{"messages": each} for each in (silent, spoken, plain, named + human_gpt("?", "Ho"))]
    _, made = module(tmp_path, tokenizer, records, mask_policy="spans")
    shown = list(data_pages.masked_samples(made["train_dataset"], tokenizer, 3))
    assert "look" not in shown[0] and "⟦Ho" in shown[0]
    assert "Let me look." in shown[1] and "⟦Let" not in shown[1] and "⟦Ho" in shown[1]
    assert "⟦Let me look." in shown[2]
    report = json.loads(data_pages.write_data_report(tmp_path, made).read_text())
    found = report["train"]["reasons"]["tool_call"]
    assert found["count"] == found["salvaged"] == 3
    joined = [asked, {"role": "assistant", "content": "Look."}, spoken[1]]
    options = {"mask_policy": "spans", "on_bad_sample": "repair", "max_dropped": 1.0}
    with pytest.raises(ValueError, match=r"(?s)nothing in this file is learned.*tool_call") as told:
        module(tmp_path, tokenizer, [{"messages": joined}], **options)
    assert "not_trained" not in str(told.value)


def test_max_dropped_stops_above_its_value(tmp_path: Path) -> None:
    tokenizer = tokenizer_in(tmp_path / "t")
    records = [{"conversations": human_gpt("Hi", "Ho")}] * 3 + [{"conversations": []}]
    for policy in ("spans", "fastchat"):
        options = {"mask_policy": policy, "template": "vicuna", "on_bad_sample": "skip"}
        module(tmp_path, tokenizer, records, max_dropped=0.25, **options)
        with pytest.raises(ValueError, match="1 of 4 conversations have no label"):
            module(tmp_path, tokenizer, records, max_dropped=0.24, **options)
        with pytest.raises(ValueError, match="nothing in this file is learned"):
            module(tmp_path, tokenizer, records[3:], max_dropped=1.0, **options)


def test_masked_samples(tmp_path: Path) -> None:
    tokenizer = tokenizer_in(tmp_path / "t")
    _, made = module(tmp_path, tokenizer, [{"conversations": human_gpt("Hi\x1b[31m", "Ho", "He", "Ha")}])
    (sample,) = data_pages.masked_samples(made["train_dataset"], tokenizer, 3)
    assert sample.endswith("USER: Hi\\x1b[31m ASSISTANT:⟦ Ho</s>⟧ USER: He ASSISTANT:⟦ Ha</s>⟧")


def test_the_models_own_template_is_used_without_a_name(tmp_path: Path) -> None:
    tokenizer = tokenizer_in(tmp_path / "t", CHATML)
    records = [{"conversations": human_gpt("Hi", "Ho")}]
    _, made = module(tmp_path, tokenizer, records, mask_policy="spans")
    assert made["train_dataset"].labelling["template"] == "model"
    ids = made["train_dataset"].native.ids(0).tolist()
    assert ids == [1, *tokenizer.encode("<|im_start|>user\nHi</s>\n<|im_start|>assistant\nHo</s>\n")]
    with pytest.raises(ValueError, match="the model has no chat template"):
        module(tmp_path, tokenizer_in(tmp_path / "u"), records, mask_policy="spans")


def test_plain_text_takes_any_template(tmp_path: Path) -> None:
    """Of a model without one, as the error says: it is learned without a template's words."""
    tokenizer, records = tokenizer_in(tmp_path / "t"), [{"text": "A page."}]
    with pytest.raises(ValueError, match="plain text, which none writes, takes any"):
        module(tmp_path, tokenizer, records, mask_policy="spans")
    _, made = module(tmp_path, tokenizer, records, mask_policy="spans", template="vicuna_v1.1")
    assert made["train_dataset"].native.ids(0).tolist() == [1, *tokenizer.encode("A page."), 2]


def test_padding_never_matters_in_spans(tmp_path: Path) -> None:
    tokenizer = tokenizer_in(tmp_path / "t")
    tokenizer.pad_token = None
    records = [{"conversations": human_gpt("say <unk>", "</s> is text")}]
    _, made = module(tmp_path, tokenizer, records, mask_policy="spans", template="vicuna")
    row = made["train_dataset"][0]
    size = len(made["train_dataset"].native.ids(0))
    assert row["attention_mask"].tolist() == [True] * size + [False] * (128 - size)
    assert set(row["labels"][size:].tolist()) == {-100}
    tokenizer.padding_side = "left"
    with pytest.raises(ValueError, match="labels need right padding"):
        module(tmp_path, tokenizer, records, mask_policy="spans", template="vicuna")


def test_stop_token_is_added_to_what_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(data_pages, "warn_once", said.append)
    tokenizer = tokenizer_in(tmp_path / "t")
    model = SimpleNamespace(source_directory=tmp_path, config={"eos_token_id": 7})
    labelling = {"mask_policy": "spans", "template": "vicuna_v1.1", "stop_token": "</s>"}
    data_pages.note_stop_token(model, tokenizer, labelling)
    assert "id 2" in said[0] and "[7]" in said[0]
    saved = generation_config_to_save({"eos_token_id": 7}, {"eos_token_id": 7}, tokenizer)
    assert 2 in saved["eos_token_id"]
    model.config = {"eos_token_id": 2}
    data_pages.note_stop_token(model, tokenizer, labelling)
    assert len(said) == 1


def test_settings() -> None:
    assert parse_role_map("a=user, b = assistant") == {"a": "user", "b": "assistant"}
    with pytest.raises(ValueError, match="expected name=role"):
        parse_role_map("a")
    assert LabelSettings().bad_sample_rule == "error"
    assert LabelSettings(mask_policy="spans").bad_sample_rule == "skip"
    assert LabelSettings.from_arguments(SimpleNamespace(data_path="x")) == LabelSettings()
