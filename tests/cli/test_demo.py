"""The demo's parts: its data teaches, its tokenizer and model are what transformers calls a Llama."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from fastsft import _C
from fastsft.cli import demo
from fastsft.cli.demo_model import small_config, write_random_model


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    data = folder / "conversations.json"
    data.write_text(demo.packaged_conversations())
    demo.make_model(folder / "untrained", data, seed=0)
    return folder


def test_no_packaged_conversation_is_lost(made: Path) -> None:
    from fastchat.train.train import preprocess

    tokenizer = AutoTokenizer.from_pretrained(made / "untrained", use_fast=False)
    tokenizer.pad_token = tokenizer.unk_token
    records = json.loads((made / "conversations.json").read_text())
    assert len(records) >= 300
    examples = preprocess([record["conversations"] for record in records], tokenizer)
    assert examples["labels"].ne(-100).any(1).all()
    assert examples["attention_mask"].sum(1).max() < demo.MAX_LENGTH, "a conversation is cut off"
    assert {len(record["conversations"]) for record in records} == {2, 4}


def test_one_question_was_learned_and_one_is_new(made: Path) -> None:
    records = json.loads((made / "conversations.json").read_text())
    asked = {
        turn["value"] for record in records for turn in record["conversations"] if turn["from"] == "human"
    }
    assert [question in asked for question in demo.QUESTIONS] == [True, False]


@pytest.mark.parametrize("text", ["Hello there", "two  spaces", "Ünïcödé 漢字 \n\t", "1234", ""])
def test_tokenizer_loses_nothing(made: Path, text: str) -> None:
    import sentencepiece

    model = sentencepiece.SentencePieceProcessor(model_file=str(made / "untrained" / "tokenizer.model"))
    assert model.decode(model.encode(text)) == text
    assert (model.unk_id(), model.bos_id(), model.eos_id()) == (0, 1, 2)
    assert len(model) == demo.VOCAB_SIZE


def test_system_prompt_is_short_in_tokens(made: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(made / "untrained", use_fast=False)
    assert (
        len(tokenizer("A chat between a curious user and an artificial intelligence assistant.").input_ids)
        < 15
    )


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", _C.model_families())
def test_a_random_model_opens_in_transformers(tmp_path: Path, family: str, tied: bool) -> None:
    config = small_config(
        model_type=family,
        vocab_size=300,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        intermediate_size=48,
        tie_word_embeddings=tied,
    )
    count = write_random_model(tmp_path, config, seed=3)
    model, report = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert count == sum(parameter.numel() for parameter in model.parameters())
    deviation = model.model.layers[0].self_attn.o_proj.weight.std().item()
    assert deviation == pytest.approx(0.02, rel=0.1)
    assert torch.equal(model.model.norm.weight, torch.ones(32))


def test_a_random_model_depends_on_the_seed_only(tmp_path: Path) -> None:
    config = small_config(vocab_size=300, hidden_size=32, num_layers=1, num_heads=4, intermediate_size=48)
    files = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_random_model(tmp_path / name, config, seed)
        files.append((tmp_path / name / "model.safetensors").read_bytes())
    assert files[0] == files[1] != files[2]


def test_foreign_folders_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.txt").write_text("do not touch")
    assert demo.main(["--output_dir", str(tmp_path)]) == 2
    assert "was not made by fastsft demo" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_own_folder_is_made_new(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    demo.prepare(folder)
    (folder / "trained").mkdir()
    (folder / "trained" / "old").write_text("")
    (folder / "notes").write_text("kept")
    demo.prepare(folder)
    assert sorted(path.name for path in folder.iterdir()) == [demo.MARK, "notes"]


def test_training_command_is_what_a_user_types(tmp_path: Path) -> None:
    command = demo.training_command(tmp_path, tmp_path / "data.json", steps=7, seed=1)
    assert command[1:3] == ["-m", "fastsft.train"]
    assert command[command.index("--max_steps") + 1] == "7"
    assert command[command.index("--output_dir") + 1] == str(tmp_path / "trained")


def test_the_command_is_shown_in_lines_that_can_be_copied() -> None:
    command = ["python", *demo.training_command(Path("a b"), Path("data.json"), steps=7, seed=1)[1:]]
    shown = demo.shown_command(command, 60)
    assert 40 < max(map(len, shown.splitlines())) <= 60
    assert shlex.split(shown.replace("\\\n", " ")) == command
