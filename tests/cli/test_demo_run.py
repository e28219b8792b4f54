"""The demo from start to end, with fewer steps than a person would wait for."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from fastsft.cli import chat, demo
from fastsft.model.generation import ChatModel

STEPS = 36


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("demo") / "out"
    command = [
        sys.executable,
        "-m",
        "fastsft.cli.main",
        "demo",
        "--steps",
        str(STEPS),
        "--output_dir",
        str(folder),
    ]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return folder, result.stdout + result.stderr


def test_it_shows_command_progress_and_replies(finished: tuple[Path, str]) -> None:
    _, output = finished
    shown = " ".join(output.replace("\\\n", " ").split())  # its lines may break before any flag
    assert "python -m fastsft.train --model_name_or_path" in shown
    assert "loss" in output
    for question in demo.QUESTIONS:
        assert question in output
    assert output.count("before:") == output.count("after:") == len(demo.QUESTIONS)


def test_it_learned(finished: tuple[Path, str]) -> None:
    folder, _ = finished
    history = json.loads((folder / "trained" / "trainer_state.json").read_text())["log_history"]
    losses = [entry["loss"] for entry in history if "loss" in entry]
    assert losses[-1] < losses[0] - 1  # what is learned is 2.7 times as likely


def expected_replies(directory: Path, questions: list[str]) -> list[str]:
    """transformers' greedy replies to FastChat's prompts, in one conversation."""
    from fastchat.model.model_adapter import get_conversation_template

    model = AutoModelForCausalLM.from_pretrained(directory)
    tokenizer = AutoTokenizer.from_pretrained(directory, use_fast=False)
    conversation = get_conversation_template("vicuna")
    replies = []
    for question in questions:
        conversation.append_message(conversation.roles[0], question)
        conversation.append_message(conversation.roles[1], None)
        prompt = tokenizer(conversation.get_prompt(), return_tensors="pt").input_ids
        with torch.no_grad():
            ids = model.generate(prompt, max_new_tokens=12, do_sample=False)[0, prompt.shape[1] :]
        replies.append(tokenizer.decode(ids, skip_special_tokens=True).strip())
        conversation.update_last_message(replies[-1])
    return replies


def test_transformers_gives_the_same_reply(finished: tuple[Path, str]) -> None:
    directory = finished[0] / "trained"
    (expected,) = expected_replies(directory, [demo.QUESTIONS[0]])
    assert ChatModel(directory).reply(demo.QUESTIONS[0], max_new_tokens=12) == expected
    assert expected


def test_a_talk_of_two_turns(
    finished: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = finished[0] / "trained"
    first, second = expected_replies(directory, list(demo.QUESTIONS))
    lines = [*demo.QUESTIONS, "/reset", demo.QUESTIONS[0], "/exit", "never asked"]
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    assert chat.main([str(directory), "--temperature", "0", "--max_new_tokens", "12"]) == 0
    assert capsys.readouterr().out == f"{first}\n{second}\n{first}\n"
    assert chat.main([str(directory), "--message", "x" * 5000]) == 1
    assert "tokens of prompt leave no room for a reply, at most 256" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["."], "expected a Hugging Face model directory, found no config.json"),
        ([".", "--temperature", "-1"], "--temperature: expected 0 or more, got -1.0"),
        ([".", "--top_p", "0"], "--top_p: expected more than 0 and at most 1, got 0.0"),
    ],
)
def test_what_nobody_can_talk_to(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        status = chat.main(words)
    except SystemExit as error:
        status = int(error.code or 0)
    assert status != 0 and message in capsys.readouterr().err
