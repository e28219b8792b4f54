"""`--sample_prompts`: the replies of transformers and of `fastsft chat`; the training does not notice."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from fastsft.arguments import TrainingArguments
from fastsft.model.generation import ChatModel
from fastsft.trainer import Trainer
from published_models import write_published
from saved_runs import same
from tiny_models import weights_of
from warm_ranks import WarmRanks

QUESTIONS = ["Who are you?", "What is up?", "Tell me about the sea."]
NEW = 12


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "prompts.txt"
    path.write_text("\n\n".join(QUESTIONS))
    return path


@pytest.fixture(scope="module")
def evaluated(short: dict[str, Any]) -> dict[str, Any]:
    return {
        **short, "eval_split": 6, "eval_strategy": "steps", "eval_steps": 3, "max_steps": 6,
        "sample_max_new_tokens": NEW,
    }  # fmt: skip


def history(output: Path) -> list[dict[str, Any]]:
    entries = json.loads((output / "trainer_state.json").read_text())["log_history"]
    left_out = ("runtime", "per_second")
    return [{k: v for k, v in entry.items() if not k.endswith(left_out)} for entry in entries]


def samples(output: Path) -> dict[int, list[dict[str, str]]]:
    return {entry["step"]: entry["samples"] for entry in history(output) if "samples" in entry}


def without_samples(output: Path) -> list[dict[str, Any]]:
    return [entry for entry in history(output) if "samples" not in entry]


def reply_of_transformers(directory: Path, chat: ChatModel, ids: list[int]) -> str:
    """Return the text that transformers' greedy `generate` appends to `ids`."""
    model = transformers.AutoModelForCausalLM.from_pretrained(directory).eval()
    out = model.generate(
        torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long), do_sample=False,
        max_new_tokens=NEW, eos_token_id=sorted(chat._stop), pad_token_id=0,
    )  # fmt: skip
    new = [token for token in out[0, len(ids) :].tolist() if token not in chat._stop]
    return chat.tokenizer.decode(new).strip()


@pytest.mark.parametrize("ranks", [1, 2])
def test_replies_are_those_of_transformers_and_of_chat(
    warm: WarmRanks, evaluated: dict[str, Any], prompts: Path, tmp_path: Path, ranks: int
) -> None:
    flags = {
        **evaluated, "sample_prompts": prompts, "per_device_train_batch_size": 4 // ranks,
        **({"fsdp": "full_shard"} if ranks > 1 else {}),
    }  # fmt: skip
    text = warm.train(flags, tmp_path / "out", ranks)
    told = samples(tmp_path / "out")
    assert list(told) == [3, 6] and told[3] != told[6]
    for step, replies in told.items():
        directory = tmp_path / "out" / f"checkpoint-{step}"
        chat = ChatModel(directory, tokenizer=tmp_path / "out", template="vicuna_v1.1")
        for question, sample in zip(QUESTIONS, replies, strict=True):
            assert sample["prompt"] == question and sample["reply"]
            assert sample["reply"] == chat.reply(question, max_new_tokens=NEW)
            ids = chat.prompts.ids([{"role": "user", "content": question}])
            assert sample["reply"] == reply_of_transformers(directory, chat, ids)
    assert "step 3, 3 sample replies:\n  > Who are you?\n    " in text


@pytest.mark.covering
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    "more", [{}, {"lora": True, "lora_r": 2, "lora_dropout": 0.3}, {"neftune_noise_alpha": 5}]
)
def test_training_has_the_same_bits_with_and_without(
    warm: WarmRanks, evaluated: dict[str, Any], tmp_path: Path, ranks: int, more: dict[str, Any]
) -> None:
    flags = {
        **evaluated, **more, "per_device_train_batch_size": 4 // ranks,
        **({"fsdp": "full_shard"} if ranks > 1 else {}),
    }  # fmt: skip
    idle = {name: value for name, value in flags.items() if name != "sample_max_new_tokens"}
    warm.train(idle, tmp_path / "without", ranks)
    sampled = {**flags, "sample_prompts": 3, "sample_temperature": 0.7}
    warm.train(sampled, tmp_path / "with", ranks)
    assert without_samples(tmp_path / "with") == history(tmp_path / "without")
    name = "adapter_model.safetensors" if "lora" in more else "model.safetensors"
    assert (tmp_path / "with" / name).read_bytes() == (tmp_path / "without" / name).read_bytes()
    told = samples(tmp_path / "with")
    assert [len(replies) for replies in told.values()] == [3, 3]
    assert all(sample["expected"] and "ASSISTANT:" in sample["prompt"] for sample in told[3])


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_killed_run_has_the_same_replies(
    warm: WarmRanks, evaluated: dict[str, Any], prompts: Path, tmp_path: Path, ranks: int
) -> None:
    """Killed in the middle of a reply of the second evaluation; number of ranks and draws do not matter."""
    flags = {**evaluated, "sample_prompts": prompts, "sample_temperature": 1.0}
    flags["per_device_train_batch_size"] = 4 // ranks
    warm.train(flags, tmp_path / "whole", ranks)
    call = -(-3 // ranks) * NEW + 5  # of the second evaluation, as no reply ends before NEW tokens
    fault = ("place", "fastsft.trainer.samples:Samples._next_logits", "kill", -1, call)
    run = warm.start(flags, tmp_path / "killed", ranks, fault=fault)
    assert run.wait(90) == [-signal.SIGKILL] * ranks
    assert "resumed from" in warm.start(flags, tmp_path / "killed", ranks).finish()
    assert history(tmp_path / "killed")[:-1] == history(tmp_path / "whole")[:-1]
    assert list(samples(tmp_path / "killed")) == [3, 6]
    assert same(weights_of(tmp_path / "killed"), weights_of(tmp_path / "whole"))


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_signal_during_a_reply(
    warm: WarmRanks, evaluated: dict[str, Any], prompts: Path, tmp_path: Path, ranks: int
) -> None:
    """The signal is answered after the token. A resume makes all replies and does the evaluation."""
    flags = {
        **evaluated, "sample_prompts": prompts, "per_device_train_batch_size": 4 // ranks,
        "early_stopping_patience": 1,
    }  # fmt: skip
    warm.train(flags, tmp_path / "whole", ranks)
    place = "fastsft.trainer.samples:Samples._next_logits"
    run = warm.start(flags, tmp_path / "out", ranks, fault=("place", place, "sleep", -1, 5, 1.0))
    run.wait_for(f"reached {place}")
    run.send(signal.SIGTERM)
    assert run.wait(60) == [128 + signal.SIGTERM] * ranks
    assert "sample replies" not in run.all_text() and "the same command resumes" in run.all_text()
    warm.start(flags, tmp_path / "out", ranks).finish()
    assert samples(tmp_path / "out") == samples(tmp_path / "whole")
    assert same(weights_of(tmp_path / "out"), weights_of(tmp_path / "whole"))


OTHER = (
    "{% for m in messages %}<|im_start|>{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}"
    "<|im_start|>assistant: "
)


def script_trainer(tmp_path: Path, prompts: Path, tokenizer: Any, vocab_size: int = 512) -> Trainer:
    """Return a Trainer of a model made in memory, on a script's own rows."""
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.LlamaConfig(vocab_size=vocab_size, num_key_value_heads=2, **shape)
    row = {"input_ids": torch.arange(1, 9), "labels": torch.arange(1, 9)}
    return Trainer(
        transformers.LlamaForCausalLM(config), processing_class=tokenizer, train_dataset=[row] * 4,
        eval_dataset=[row] * 2,
        args=TrainingArguments(
            str(tmp_path / "out"), use_cpu=True, max_steps=1, eval_strategy="steps", eval_steps=1,
            sample_prompts=str(prompts), sample_max_new_tokens=4, save_strategy="no", plot_loss=False,
            model_max_length=256,
        ),
    )  # fmt: skip


def test_a_scripts_own_template_and_added_tokens_are_used(tmp_path: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(write_published(tmp_path / "m", "qwen3"))
    tokenizer.chat_template = OTHER
    tokenizer.add_tokens(["<sea>"])
    prompts = tmp_path / "p.txt"
    prompts.write_text("Tell me of the <sea>.")
    with pytest.raises(
        ValueError, match=r"--sample_prompts .*: prompt 1 has the token id .* vocabulary of 9"
    ):
        script_trainer(tmp_path, prompts, tokenizer, 9)
    trainer = script_trainer(tmp_path, prompts, tokenizer, len(tokenizer))
    assert trainer._samples is not None
    (found,) = trainer._samples._prompts
    wanted = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Tell me of the <sea>."}], add_generation_prompt=True
    )
    assert found.ids == wanted and len(tokenizer) - 1 in found.ids
    trainer.train()
    assert [entry for entry in trainer.state.log_history if "samples" in entry]


def test_a_tokenizer_that_cannot_be_used_is_refused(tmp_path: Path, prompts: Path) -> None:
    for given, said in ((None, "expected processing_class"), (object(), "object has no native equal")):
        with pytest.raises(ValueError, match=f"--sample_prompts {prompts}: {said}"):
            script_trainer(tmp_path, prompts, given)
