"""`fastsft demo`: the whole job on a small scale, with nothing but what is packaged here."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path

from fastsft import _C
from fastsft.cli.command_parser import CommandParser, print_error
from fastsft.cli.demo_model import small_config, train_tokenizer, write_random_model
from fastsft.model.generation import ChatModel
from fastsft.reporting.console_text import page_width
from fastsft.runtime.output_files import replace_file
from fastsft.runtime.search_path import child_environment

MARK = ".fastsft-demo"
MAX_LENGTH = 256
SHAPE = {"hidden_size": 192, "num_layers": 4, "num_heads": 6, "intermediate_size": 512}
VOCAB_SIZE = 1000
# The second question does not occur in the data.
QUESTIONS = ("What is fastsft?", "Can you explain what a token is?")


def main(arguments: Sequence[str]) -> int:
    """Write data and a model, train, and print replies before and after; return the exit status."""
    args = parse(arguments)
    folder: Path = args.output_dir
    start = time.perf_counter()
    try:
        prepare(folder)
    except FileExistsError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print_error("demo", f"{folder}: {error.strerror}; choose another --output_dir")
        return 1
    data = folder / "conversations.json"
    replace_file(data, packaged_conversations())
    parameters = make_model(folder / "untrained", data, args.seed, args.model_type)
    size = f"{parameters / 1e6:.1f} million random weights"
    print(f"A model of the {args.model_type} family with {size}: {folder / 'untrained'}")
    command = training_command(folder, data, steps=args.steps, seed=args.seed)
    print(f"Training:\n{shown_command(['python', *command[1:]])}\n", flush=True)
    status = subprocess.run([command[0], "-P", *command[1:]], env=child_environment()).returncode
    if status != 0:
        print(f"fastsft demo: training ended with status {status}; see above", file=sys.stderr)
        return 1
    show_replies(folder)
    talk = f"fastsft chat {shlex.quote(str(folder / 'trained'))}"
    print(f"Done in {time.perf_counter() - start:.0f} s. To talk to it: {talk}")
    return 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = CommandParser(prog="fastsft demo", word_flag="--output_dir", description=__doc__)
    parser.add_argument(
        "--output_dir", type=Path, default=Path("fastsft-demo"), help="default: ./fastsft-demo"
    )
    parser.add_argument(
        "--max_steps", "--steps", dest="steps", type=int, default=260, help="optimizer steps; default 260"
    )
    parser.add_argument(
        "--model_type", choices=list(_C.model_families()), default="llama", help="model family; default llama"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random weights and of the data order")
    args = parser.parse_args(arguments)
    if args.steps < 1:
        parser.error(f"--max_steps: expected at least 1, got {args.steps}")
    return args


def prepare(folder: Path) -> None:
    """Create the folder with the demo's mark, and remove the files of an earlier demo.

    FileExistsError if the folder has files but no mark: the demo did not make such a folder.
    """
    if folder.exists() and not (folder / MARK).is_file() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(
            f"{folder} exists and was not made by fastsft demo; move it away, or choose another --output_dir"
        )
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / MARK, "Made by fastsft demo, which may replace untrained/ and trained/.\n")
    for part in (folder / "untrained", folder / "trained"):
        if part.is_symlink() or (os.path.lexists(part) and not part.is_dir()):
            part.unlink()  # removes a link, but not its target
        shutil.rmtree(part, ignore_errors=True)


def packaged_conversations() -> str:
    """Return the demo's data: ShareGPT JSON, with conversations of one or two turns."""
    return (resources.files("fastsft.cli") / "demo_conversations.json").read_text(encoding="utf-8")


def make_model(directory: Path, data: Path, seed: int, model_type: str = "llama") -> int:
    """Write a tokenizer trained on `data`, and a model with random weights; return its parameter count."""
    train_tokenizer(directory, texts(data), vocab_size=VOCAB_SIZE, model_max_length=MAX_LENGTH)
    sizes = {"vocab_size": VOCAB_SIZE, "max_positions": MAX_LENGTH, **SHAPE}
    config = small_config(model_type=model_type, tie_word_embeddings=True, **sizes)
    return write_random_model(directory, config, seed)


def texts(data: Path) -> Iterator[str]:
    """Yield training texts for the tokenizer: the system prompt, and messages after their speaker's name."""
    names = {"human": "USER", "gpt": "ASSISTANT"}
    for record in json.loads(data.read_text(encoding="utf-8")):
        yield _C.find_chat_template("vicuna_v1.1").system
        for turn in record["conversations"]:
            yield f"{names[turn['from']]}: {turn['value']}"


def training_command(folder: Path, data: Path, *, steps: int, seed: int) -> list[str]:
    """Return the training command with FastChat's flags, as a user would type it."""
    flags = {
        "model_name_or_path": folder / "untrained",
        "data_path": data,
        "output_dir": folder / "trained",
        "model_max_length": MAX_LENGTH,
        "per_device_train_batch_size": 16,
        "learning_rate": 3e-3,
        "lr_scheduler_type": "cosine",
        "warmup_ratio": 0.05,
        "max_steps": steps,
        "logging_steps": 10,
        "save_strategy": "no",
        "seed": seed,
    }
    argv = [arg for name, value in flags.items() for arg in (f"--{name}", str(value))]
    return [sys.executable, "-m", "fastsft.train", *argv]


def shown_command(command: Sequence[str], width: int | None = None) -> str:
    """Return the command as shell text, wrapped to `width` columns; each flag stays next to its value."""
    parts = " ".join(map(shlex.quote, command)).split(" --")
    room = (width or page_width()) - len("    --") - len(" \\")
    lines, flags = [parts[0]], ""
    for part in parts[1:]:
        if flags and len(flags) + len(" --") + len(part) > room:
            lines.append(f"    --{flags}")
            flags = ""
        flags = f"{flags} --{part}" if flags else part
    return " \\\n".join([*lines, f"    --{flags}"] if flags else lines)


def show_replies(folder: Path) -> None:
    before, after = (ChatModel(folder / part, MAX_LENGTH) for part in ("untrained", "trained"))
    for question in QUESTIONS:
        print(f"\n{question}")
        for label, model in (("before", before), ("after", after)):
            print(indented(label, model.reply(question, max_new_tokens=48)))


def indented(label: str, reply: str) -> str:
    printable = "".join(character if character.isprintable() else " " for character in reply)
    return textwrap.fill(
        printable or "(nothing)",
        100,
        initial_indent=f"  {label + ':':<8}",
        subsequent_indent=" " * 10,
        break_on_hyphens=False,
    )
