"""Lines and bars on the console."""

import ast
import io
import json
import types

from fake_run import Rows
from fastsft.arguments import TrainingArguments
from fastsft.callbacks import TrainerControl
from fastsft.cli.random_model import small_config
from fastsft.memory_plan import Room, Setting, Workload, plan_memory
from fastsft.reporting.memory_table import memory_table
from fastsft.reporting.pages import end_page, start_page
from fastsft.reporting.progress import Progress, console_line
from fastsft.run_plan import RunPlan, packing_summary
from fastsft.state import TrainerState
from fastsft.token_rows import TokenRows

LOGS = {"loss": 1.23456789, "grad_norm": 0.123456789, "learning_rate": 1.9e-05, "epoch": 0.333333}


class Terminal(io.StringIO):
    def isatty(self):
        return True


def play(progress, args):
    state, control = TrainerState(max_steps=3), TrainerControl()
    progress.on_train_begin(args, state, control)
    for step in (1, 2, 3):
        state.global_step = step
        progress.on_step_end(args, state, control, step_tokens=100, step_logs=LOGS)
        progress.on_log(args, state, control, logs=LOGS)
    progress.on_train_end(args, state, control)


def test_line_of_a_log():
    assert console_line({**LOGS, "total_flos": 3.0}) == (
        "{'loss': 1.2346, 'grad_norm': 0.123456789, 'learning_rate': 1.9e-05, 'epoch': 0.33}"
    )


def test_lines_without_a_terminal_can_be_scraped(capsys):
    args = TrainingArguments(output_dir="o")
    play(Progress(args, io.StringIO()), args)
    lines = capsys.readouterr().out.splitlines()
    assert [ast.literal_eval(line)["loss"] for line in lines] == [1.2346] * 3
    assert "step 3/3" in lines[2] and "tokens/s" in lines[2] and "0 s left" in lines[2]


def test_bar_on_a_terminal(capsys):
    args, terminal = TrainingArguments(output_dir="o"), Terminal()
    play(Progress(args, terminal), args)
    shown = terminal.getvalue()
    for part in (
        "3/3",
        "loss=1.235",
        "grad_norm=0.1235",
        "learning_rate=1.9e-05",
        "epoch=0.3333",
        "tokens/s=",
    ):
        assert part in shown


def test_disable_tqdm_on_a_terminal(capsys):
    args, terminal = TrainingArguments(output_dir="o", disable_tqdm=True), Terminal()
    play(Progress(args, terminal), args)
    assert terminal.getvalue() == "" and len(capsys.readouterr().out.splitlines()) == 3


def test_pages(tmp_path):
    args = TrainingArguments(output_dir=str(tmp_path), per_device_train_batch_size=2, warmup_ratio=0.1)
    rows = TokenRows(Rows([700, 800], [40, 2]), 512)
    model = types.SimpleNamespace(
        source_directory="base", num_parameters=lambda: 1234567, recompute="selective"
    )
    setting = Setting(
        json.dumps(
            small_config(vocab_size=64, hidden_size=16, num_layers=2, num_heads=2, intermediate_size=24)
        )
    )
    memory = plan_memory(setting, "selective", 1024, Workload.full(1024, 800))
    trainer = types.SimpleNamespace(
        args=args, plan=RunPlan(1, 1, 3, 3, 6), train_rows=rows, model=model, token_budget=1024,
        packing=lambda: packing_summary(args, rows, 1024, (1.0, 0.0)),
        memory_plan=memory, memory=Room(8 << 30),
    )  # fmt: skip
    page = start_page(trainer)
    for part in ("base (1,234,567 parameters)", "1,500 tokens, 42 learned", "2 x 1 x 1 = 2", "1,024 tokens"):
        assert part in page
    assert "2 micro-batches a step and rank, 750 tokens each, balance 100.0%" in page
    *_, last = memory_table(memory, Room(8 << 30))
    assert last in page and "activations" in page
    (tmp_path / "model.safetensors").write_bytes(b"")
    (tmp_path / ".fastsft-lock").write_bytes(b"")
    assert "lock" not in end_page(trainer)
    assert "model.safetensors" in end_page(trainer) and "from_pretrained" in end_page(trainer)
