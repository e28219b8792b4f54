"""The demo from start to end, with fewer steps than a person would wait for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from fastsft.cli import demo
from fastsft.model.generation import ChatModel, first_prompt

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
    assert "python -m fastsft.train --model_name_or_path" in output
    assert "loss" in output
    for question in demo.QUESTIONS:
        assert question in output
    assert output.count("before:") == output.count("after:") == len(demo.QUESTIONS)


def test_it_learned(finished: tuple[Path, str]) -> None:
    folder, _ = finished
    history = json.loads((folder / "trained" / "trainer_state.json").read_text())["log_history"]
    losses = [entry["loss"] for entry in history if "loss" in entry]
    assert losses[-1] < losses[0] - 1  # what is learned is 2.7 times as likely


def test_transformers_gives_the_same_reply(finished: tuple[Path, str]) -> None:
    folder, _ = finished
    directory = folder / "trained"
    model = AutoModelForCausalLM.from_pretrained(directory)
    tokenizer = AutoTokenizer.from_pretrained(directory, use_fast=False)
    question = demo.QUESTIONS[0]
    prompt = tokenizer(first_prompt(question), return_tensors="pt").input_ids
    with torch.no_grad():
        ids = model.generate(prompt, max_new_tokens=12, do_sample=False)[0, prompt.shape[1] :]
    expected = tokenizer.decode(ids, skip_special_tokens=True).strip()
    assert ChatModel(directory).reply(question, max_new_tokens=12) == expected
    assert expected


def test_the_prompt_is_the_template_of_training(finished: tuple[Path, str]) -> None:
    from fastchat.model.model_adapter import get_conversation_template

    conversation = get_conversation_template("vicuna")
    conversation.append_message(conversation.roles[0], "Hello")
    conversation.append_message(conversation.roles[1], None)
    assert first_prompt("Hello") == conversation.get_prompt()
