"""The default flags on every family: trained, examined, inspected, opened with what it learned."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import torch

import fastsft
from family_models import FAMILIES, TEMPLATES, write_family
from fastsft.callbacks.state import TrainOutput
from fastsft.cli import main as cli
from fastsft.model.generation import ChatModel
from fastsft.tokenizer.files import BASE_NAME
from fastsft.train import train
from golden_text import human_gpt
from warm_ranks import WarmRanks

ROW_EACH = {"qwen3"}  # each reply is in a row of its own
SYSTEM = "Answer 'briefly'.\n"
TEXTS = ("Hello {0}?", "Hi there.", "And\n you? é", "I am {0}, fine.")
# Policy and template that auto chooses; "own": the model's text is saved as it is.
CHOSEN = {
    "qwen2": ("spans", "qwen", "own"),
    "qwen3": ("spans", "model", "own"),
    "phi3": ("spans", "model", "own"),
    "llama3": ("spans", "llama-3", "own"),
    "llama3_base": ("spans", "llama-3", "made"),
    "mistral": ("fastchat", "vicuna_v1.1", "replaced"),
    "llama2_chat": ("fastchat", "vicuna_v1.1", "replaced"),
    "llama2": ("fastchat", "vicuna_v1.1", "made"),
}


@dataclass(frozen=True)
class FamilyRun:
    family: str
    model: Path
    data: Path
    output: Path
    said: str

    @property
    def flags(self) -> dict[str, Any]:
        return {
            "model_name_or_path": str(self.model), "data_path": str(self.data),
            "output_dir": str(self.output), "max_steps": 1, "per_device_train_batch_size": 4,
            "model_max_length": 256, "use_cpu": True, "report_to": "none", "data_cache": "none",
        }  # fmt: skip


@pytest.fixture(scope="module", params=list(FAMILIES))
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> FamilyRun:
    """One training with default labels, shared by the tests of a family."""
    folder = tmp_path_factory.mktemp(request.param)
    records = [{"conversations": human_gpt(*(t.format(i) for t in TEXTS))} for i in range(4)]
    if CHOSEN[request.param][0] == "spans":  # FastChat's labels leave systems out
        records[1]["system"] = SYSTEM
    (folder / "data.json").write_text(json.dumps(records))
    model = write_family(folder / "model", request.param)
    made = FamilyRun(request.param, model, folder / "data.json", folder / "out", "")
    said: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("builtins.print", lambda *words, **_: said.append(" ".join(map(str, words))))
        assert isinstance(train(made.flags), TrainOutput)
    return FamilyRun(request.param, model, made.data, made.output, "\n".join(said))


def words_of(run: FamilyRun) -> str:
    """Policy and template, as all pages begin to name them."""
    policy, template, _ = CHOSEN[run.family]
    return f"--mask_policy {policy}, template {template}, stop token "


def joined(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.variants("qwen2", "qwen3", "llama3]")
def test_every_page_names_policy_template_and_why(run: FamilyRun, capsys: pytest.CaptureFixture[str]) -> None:
    report = json.loads((run.output / "data_report.json").read_text())["train"]
    why = report["mask_policy_reason"]
    own_rows = ", each reply in a row of its own" if run.family in ROW_EACH else ""
    words = f"{words_of(run)}{report['stop_token']}{own_rows}"
    assert f"labels {words}; {why}" in joined(run.said)
    flags = [word for name, value in run.flags.items() for word in (f"--{name}", str(value))]
    assert cli.main(["doctor", "--skip", "disk_rate", *flags, "--no_resume", "True"]) == 0
    assert f"template {words}; {why}" in joined(capsys.readouterr().out)
    seen = fastsft.inspect(str(run.model), str(run.data), model_max_length=256)
    assert f"labels {words}, at most 256 tokens; {why}" in joined(str(seen)) and why in unescape(seen.html())
    changed = run.said.split("\narguments", 1)[1].split("\ntrained", 1)[0]
    assert "--mask_policy" not in changed and "--template" not in changed


def rows_of(run: FamilyRun) -> Iterator[list[dict[str, str]]]:
    """What is in each row, as transformers takes it."""
    roles = {"human": "user", "gpt": "assistant"}
    for source in json.loads(run.data.read_text()):
        messages = [{"role": roles[m["from"]], "content": m["value"]} for m in source["conversations"]]
        front = [{"role": "system", "content": source["system"]}] if "system" in source else []
        for end in (2, 4) if run.family in ROW_EACH else (4,):
            yield front + messages[:end]


def test_transformers_renders_the_training_text(run: FamilyRun) -> None:
    from transformers import AutoTokenizer

    slow = not (run.output / "tokenizer.json").exists()
    theirs = AutoTokenizer.from_pretrained(run.output, use_fast=not slow)
    seen = fastsft.inspect(str(run.model), str(run.data), model_max_length=256, n=8)
    for record, messages in zip(seen.records, rows_of(run), strict=True):
        ids = [token.id for token in record.tokens]
        assert theirs.apply_chat_template(messages) == ids
        text = theirs.apply_chat_template(messages, tokenize=False)
        front = theirs.bos_token if ids[0] == theirs.bos_token_id else ""
        assert text == front + b"".join(part.text for part in record.parts()).decode()
        prompt = theirs.apply_chat_template(messages[:-1], add_generation_prompt=True)
        unlearned = [at for at, token in enumerate(record.tokens) if not token.is_learned]
        last = max(at for at in unlearned if at + 1 < len(ids) and record.tokens[at + 1].is_learned)
        assert prompt == ids[: last + 1]


def test_files_of_the_saved_model(run: FamilyRun) -> None:
    saved = fastsft.Tokenizer.from_pretrained(run.output)
    kind, source = CHOSEN[run.family][2], FAMILIES[run.family][2]
    own = None if source is None else (TEMPLATES / f"{source}.jinja").read_text()
    assert (saved.chat_template == own) == (kind == "own")
    assert (run.output / BASE_NAME).exists() == (kind == "replaced") == (BASE_NAME in run.said)
    for folder in (run.output, run.output / "checkpoint-1"):
        if kind != "own":
            config = json.loads((folder / "tokenizer_config.json").read_text())
            assert config["chat_template"] == (folder / "chat_template.jinja").read_text()
    if kind == "replaced":
        assert (run.output / BASE_NAME).read_text() == own
    generation = json.loads((run.output / "generation_config.json").read_text())
    stop = saved.convert_tokens_to_ids(
        json.loads((run.output / "data_report.json").read_text())["train"]["stop_token"]
    )
    assert stop in generation["eos_token_id"] and 2 in generation["eos_token_id"]


def talkative(run: FamilyRun, folder: Path) -> Any:
    """The trained model with larger weights, which says something else to each prompt; saved in `folder`."""
    from transformers import AutoModelForCausalLM

    shutil.copytree(run.output, folder, ignore=shutil.ignore_patterns("checkpoint-*", "model*"))
    model = AutoModelForCausalLM.from_pretrained(run.output).eval()
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:  # norms of 1, with which replies differ by what was said
                weight.normal_(std=1.0)
    model.save_pretrained(folder)
    return model


@pytest.mark.variants("qwen2", "phi3", "llama3]")
def test_chat_says_what_transformers_says(run: FamilyRun, tmp_path: Path) -> None:
    """Twenty greedy conversations of two turns; the second turn reads the reply of the first."""
    from transformers import AutoTokenizer

    slow = not (run.output / "tokenizer.json").exists()
    tokenizer = AutoTokenizer.from_pretrained(run.output, use_fast=not slow)
    model = talkative(run, tmp_path / "model")
    ours, replies = ChatModel(tmp_path / "model"), set()
    for number in range(20):
        messages = []
        for text in (f"Hello {number}, é?", f"And {'you ' * number}?"):
            messages.append({"role": "user", "content": text})
            prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt")
            whole = model.generate(prompt, max_new_tokens=6, do_sample=False, pad_token_id=0)
            expected = tokenizer.decode(whole[0, prompt.shape[1] :], skip_special_tokens=True).strip()
            got = "".join(ours.stream(messages, max_new_tokens=6)).strip()
            assert got == expected, (number, messages)
            messages.append({"role": "assistant", "content": got or "Yes."})
            replies.add(got)
    assert len(replies) > 20


def loss_in_transformers(run: FamilyRun) -> float:
    """Of the base model, over all learned tokens of the data."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(run.model).eval()
    total, count = 0.0, 0
    for record in fastsft.inspect(str(run.model), str(run.data), model_max_length=256, n=8).records:
        ids = torch.tensor([token.id for token in record.tokens])
        learned = torch.tensor([token.is_learned for token in record.tokens])
        with torch.no_grad():
            logits = model(ids[None]).logits[0, :-1]
        losses = torch.nn.functional.cross_entropy(logits, ids[1:], reduction="none")
        total, count = total + losses[learned[1:]].sum().item(), count + int(learned[1:].sum())
    return total / count


@pytest.mark.variants("qwen2")
def test_the_command_of_the_readme_on_two_ranks(run: FamilyRun, warm: WarmRanks, tmp_path: Path) -> None:
    recipe = {
        "num_train_epochs": 1, "learning_rate": 2e-5, "weight_decay": "0.",
        "warmup_ratio": 0.03, "lr_scheduler_type": "cosine", "bf16": True, "fsdp": "full_shard auto_wrap",
        "logging_steps": 1, "save_strategy": "steps", "save_steps": 500, "save_total_limit": 3,
    }  # fmt: skip
    flags = {name: value for name, value in run.flags.items() if name not in ("output_dir", "max_steps")}
    flags["per_device_train_batch_size"] = 4 if run.family in ROW_EACH else 2  # one step
    said = warm.train({**flags, **recipe}, tmp_path / "out", ranks=2)
    assert words_of(run) in joined(said) and f"talk        fastsft chat {tmp_path / 'out'}" in said
    (entry, _) = json.loads((tmp_path / "out" / "trainer_state.json").read_text())["log_history"]
    assert entry["loss"] == pytest.approx(loss_in_transformers(run), rel=2e-3)
    assert cli.main(["verify", str(tmp_path / "out")]) == 0


@pytest.mark.variants("qwen2")
@pytest.mark.parametrize(
    "run",
    [
        "qwen2",
        "llama2",
        *(pytest.param(name, marks=pytest.mark.chaos) for name in ("qwen3", "phi3", "llama3", "mistral")),
    ],
    indirect=True,
)
def test_launch_trains_the_same_model(run: FamilyRun, tmp_path: Path) -> None:
    """In a process of its own, from Python."""
    result = fastsft.launch({**run.flags, "output_dir": str(tmp_path / "out")}, plot=False)
    assert result.path == tmp_path / "out" and result.global_step == 1
    again, first = (folder / "model.safetensors" for folder in (result.path, run.output))
    assert again.read_bytes() == first.read_bytes()


def test_what_was_begun_by_auto_goes_on_by_name(run: FamilyRun) -> None:
    """The record of the run has the labels, not how they were chosen: nothing is trained again."""
    policy, template, kind = CHOSEN[run.family]
    named = {} if kind == "own" else {"template": template}
    again = train({**run.flags, "mask_policy": policy, **named})
    assert again is not None and again.global_step == 1


def test_a_template_of_an_earlier_model_is_not_read_for_the_next(run: FamilyRun) -> None:
    """The last test of a family: it trains into the same directory."""
    flags = {**run.flags, "save_chat_template": "base", "no_resume": True}
    train(flags)
    base = fastsft.Tokenizer.from_pretrained(run.flags["model_name_or_path"]).chat_template
    assert fastsft.Tokenizer.from_pretrained(run.output).chat_template == base
    assert not (run.output / BASE_NAME).exists()
