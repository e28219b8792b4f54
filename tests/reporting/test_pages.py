"""Start page and end page."""

import json
import shlex
import types

import pytest

from fake_run import Rows
from fastsft.arguments import DataArguments, TrainingArguments
from fastsft.callbacks.state import TrainerState
from fastsft.cli.demo_model import small_config
from fastsft.data.token_rows import TokenRows
from fastsft.planning.memory_plan import BatchShape, EngineSettings, plan_memory
from fastsft.planning.plan_request import MemoryBudget
from fastsft.planning.run_plan import RunPlan, packing_summary
from fastsft.reporting.console_text import columns
from fastsft.reporting.end_page import end_page
from fastsft.reporting.plan_lines import memory_table
from fastsft.reporting.start_page import argument_words, changed_arguments, reports_line, start_page
from fastsft.reporting.throughput import Pace
from fastsft.trainer.losses import LossMeter, LossWatch

LABELLING = {
    "mask_policy": "spans",
    "template": "chatml",
    "stop_token": "<|im_end|>",
    "mask_policy_reason": "no unk",
}


@pytest.fixture
def run(tmp_path):
    args = TrainingArguments(
        output_dir=str(tmp_path), per_device_train_batch_size=2, warmup_ratio=0.1, learning_rate=2e-5
    )
    rows = TokenRows(Rows([700, 800], [40, 2]), 512)
    model = types.SimpleNamespace(
        source_directory="base",
        num_parameters=lambda: 1234567,
        recompute="selective",
        attention_kernel=None,
        adapter_facts=lambda: None,
    )
    setting = EngineSettings(
        json.dumps(
            small_config(vocab_size=64, hidden_size=16, num_layers=2, num_heads=2, intermediate_size=24)
        )
    )
    memory = plan_memory(setting, "selective", 1024, BatchShape.full(1024, 800))
    return types.SimpleNamespace(
        args=args, plan=RunPlan(1, 1, 3, 3, 6), train_rows=rows, model=model, eval_dataset=None,
        planner=types.SimpleNamespace(
            token_budget=1024, packing=lambda: packing_summary(args, rows, 1024, (1.0, 0.0)),
            memory_plan=memory, memory=MemoryBudget(8 << 30),
        ),
        train_dataset=types.SimpleNamespace(labelling=LABELLING),
        state=TrainerState(global_step=3, max_steps=3), stop_reason="",
        progress=types.SimpleNamespace(pace=Pace()),
        stepper=types.SimpleNamespace(losses=LossMeter(), loss_watch=LossWatch(64, 2e-5)),
    )  # fmt: skip


def test_one_conversation(run):
    run.train_rows = TokenRows(Rows([700], [40]), 512)
    page = start_page(run, DataArguments(data_path="my chats.json"))
    assert "1 conversation, 700 tokens, 40 learned" in page


def test_start_page(run):
    page = start_page(run, DataArguments(data_path="my chats.json"))
    assert "labels      --mask_policy spans, template chatml, stop token <|im_end|>; no unk" in page
    for part in ("base (1,234,567 parameters)", "1,500 tokens, 42 learned", "2 x 1 x 1 = 2", "1,024 tokens"):
        assert part in page
    assert "2 micro-batches a step and rank, 750 tokens each, balance 100.0%" in page
    *_, last = memory_table(run.planner.memory_plan, MemoryBudget(8 << 30))
    assert last in page and "activations" in page and "the process so far" in page
    arguments = page[page.index("arguments   ") :]
    assert "--data_path 'my chats.json'" in arguments and "--learning_rate 2e-05" in arguments
    assert "--warmup_ratio 0.1" in arguments and "weight_decay" not in arguments
    assert "no tracker (--report_to tensorboard, wandb, mlflow or all)" in page
    assert "no loss before the end: --logging_steps 500 of 3 steps" in " ".join(page.split())
    shown = TrainingArguments(output_dir="o", logging_steps=500)
    assert "no loss before the end: --logging_steps 500 of 499 steps" in reports_line(shown, 499)
    assert "no loss" not in reports_line(shown, 500)


def test_the_page_promises_a_loss_page_where_there_will_be_one(run):
    shown = TrainingArguments(output_dir="o", logging_steps=500)
    assert "loss.html" in reports_line(shown, 500) and "loss.html" not in reports_line(shown, 499)
    shown.eval_strategy = "steps"
    assert "loss.html" in reports_line(shown, 499)
    assert "learning rate 2e-05, linear, " in " ".join(start_page(run).split())


def test_a_step_of_more_conversations_than_there_are_is_a_warning(run):
    assert "warning" not in start_page(run)
    run.args.gradient_accumulation_steps = 1000
    page = " ".join(start_page(run).split())
    assert f"warning a step takes 2,000 conversations, and {len(run.train_rows)} are there" in page


def test_a_run_that_ends_within_its_warm_up_is_a_warning(run):
    """Of 3 steps with 30 of warm-up the last has 2/30 of the rate (linear warm-up from 0)."""
    run.args = TrainingArguments("o", warmup_steps=30, learning_rate=3e-5)
    run.plan = RunPlan(1, 1, 3, 3, 3)
    page = " ".join(start_page(run).split())
    assert "warning a warm-up of 30 steps is not over when the run of 3 steps ends" in page
    assert "comes to 2e-06, never to 3e-05" in page
    run.args = TrainingArguments("o", warmup_steps=30, lr_scheduler_type="constant")
    assert "warm-up of 30 steps is not over" not in " ".join(start_page(run).split())


def test_the_page_says_that_all_is_trained(run):
    assert "trained     all 1,234,567 parameters" in start_page(run)


def test_end_page(run, tmp_path):
    (tmp_path / "model.safetensors").write_bytes(bytes(3 << 20))
    (tmp_path / ".fastsft-lock").write_bytes(b"")
    for step in (20, 100):
        (tmp_path / f"checkpoint-{step}").mkdir()
    run.progress.pace.step_done(3, 3000)
    run.state.log_history = [
        {"loss": 2.0, "step": 1}, {"eval_loss": 1.5, "step": 2}, {"eval_loss": 1.75, "step": 3},
    ]  # fmt: skip
    page = end_page(run)
    assert "3 steps in 0 s, 3,000 tokens, " in page and "best eval loss 1.5000 at step 2" in page
    assert "model.safetensors (3.0 MiB)" in page and "checkpoint-20, checkpoint-100" in page
    assert "lock" not in page
    assert f'AutoModelForCausalLM.from_pretrained("{tmp_path}")' in page
    assert f'AutoTokenizer.from_pretrained("{tmp_path}", use_fast=False)' in page
    (tmp_path / "tokenizer.json").write_text("{}")
    assert "use_fast" not in end_page(run)
    run.state.log_history = [{"train_loss": 1.25, "step": 3}]
    assert "tokens/s, mean loss 1.2500" in " ".join(end_page(run).split())
    run.progress.pace.restart(3)
    assert "nothing: all 3 steps were done before" in end_page(run)


def test_changed_arguments_are_a_command_line():
    from fastsft.arguments.parsing.parser import DataclassParser

    words = ["--output_dir", "o", "--bf16", "True", "--fsdp", "full_shard auto_wrap", "--seed", "7"]
    (args,) = DataclassParser([TrainingArguments]).parse_args_into_dataclasses(words)
    changed = changed_arguments(args)
    assert changed["bf16"] is True and changed["seed"] == 7 and "weight_decay" not in changed
    assert argument_words({"fsdp": ["full_shard", "auto_wrap"], "lr_scheduler_kwargs": {"a": 1}}) == [
        "--fsdp 'full_shard auto_wrap'", "--lr_scheduler_kwargs '{\"a\": 1}'",
    ]  # fmt: skip
    assert argument_words({"logging_steps": 1.0, "learning_rate": 2e-5}) == [
        "--logging_steps 1", "--learning_rate 2e-05",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [
        ["--report_to", "mlflow", "tensorboard"],
        ["--report_to", "tensorboard,mlflow", "--seed", "42"],
        ["--fsdp", "full_shard auto_wrap", "--bf16"],
        ["--fsdp", "shard_grad_op", "--max_grad_norm", "0", "--warmup_ratio", "0.03"],
        ["--lora", "--lora_target_modules", "q_proj", "v_proj", "--lora_modules_to_save", "lm head"],
        ["--lr_scheduler_kwargs", '{"min_lr": 1e-6}', "--lr_scheduler_type", "cosine_with_min_lr"],
    ],
)
def test_the_arguments_of_the_start_page_are_parsed_to_the_same(words, tmp_path, monkeypatch):
    from fastsft.arguments import LoraArguments
    from fastsft.arguments.parsing.parser import DataclassParser
    from fastsft.trackers import tracker

    monkeypatch.setattr(tracker, "is_installed", lambda kind: True)
    parser = DataclassParser([TrainingArguments, LoraArguments])
    start = ["--output_dir", str(tmp_path), "--logging_dir", "events"]
    first = parser.parse_args_into_dataclasses([*start, *words])
    shown = shlex.split(" ".join(argument_words(changed_arguments(*first))))
    again = parser.parse_args_into_dataclasses([*start, *shown])
    assert (again[0].resolved_values(), vars(again[1])) == (first[0].resolved_values(), vars(first[1]))


def test_columns_wrap_words_but_not_tables():
    text = columns([("name", "one two three four five six"), ("", "a  table  that  is  long  long")], 35)
    assert text.splitlines() == [
        "name        one two three four five",
        "            six",
        "            a  table  that  is  long  long",
    ]  # fmt: skip
