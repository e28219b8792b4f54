"""`fastsft <command>`: finds the command's module and hands it the rest of the line."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import gc
import importlib
import importlib.metadata
import os
import sys
from collections.abc import Sequence

from fastsft.cli.command_parser import CommandParser
from fastsft.runtime.errors import end_at_interrupt, raise_at_interrupt
from fastsft.runtime.launch import no_script_runs
from fastsft.runtime.messages import beside_result

# name -> (module with main(arguments) -> exit status, what it does); imported only when asked for.
COMMANDS = {
    "train": ("fastsft.cli.train", "fine-tune a model; the same as python -m fastsft.train"),
    "demo": ("fastsft.cli.demo", "train a small chat model from scratch, and talk to it"),
    "chat": ("fastsft.cli.chat", "talk to a model that was trained"),
    "inspect": ("fastsft.cli.inspect", "see the data: what is learned of each conversation"),
    "data": ("fastsft.cli.data", "data report FILE: its numbers; data convert IN OUT: another format"),
    "doctor": ("fastsft.cli.doctor", "check flags, model, data, disk, memory and ranks before a run"),
    "plan": ("fastsft.cli.plan", "what a run would hold in memory, without training"),
    "args": ("fastsft.cli.args", "every argument of training: default, meaning, treatment"),
    "verify": ("fastsft.cli.verify", "check a model directory or a checkpoint, or compare two"),
    "convert": (
        "fastsft.cli.convert",
        "a model or checkpoint to a model directory of another dtype or split",
    ),
    "merge": ("fastsft.cli.merge", "a LoRA adapter into its base model: a new model directory"),
    "export": ("fastsft.cli.export", "export ollama DIR: a Modelfile for a trained model"),
    "path": ("fastsft.cli.path", "the file of train, train_mem or train_xformers, for torchrun FILE"),
}

_RUNS = ("train", "demo")  # what they print is the log of a run; of the others it is a result


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    parser = _parser()
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words:
        parser.print_help(sys.stderr)
        return 2
    parsed = parser.parse_args(words)
    if parsed.command not in COMMANDS:
        parser.exit(2, f"fastsft: {_unknown(parsed.command)}\n")
    if arguments is None:  # this process is the command's own
        end_at_interrupt()
    module = importlib.import_module(COMMANDS[parsed.command][0])
    if arguments is None:
        raise_at_interrupt()
        no_script_runs()
        gc.freeze()  # as run_script does
    try:
        with contextlib.nullcontext() if parsed.command in _RUNS else beside_result():
            return int(module.main(parsed.rest))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # nobody reads on; the interpreter would write the rest again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser() -> argparse.ArgumentParser:
    listing = "\n".join(f"  {name:<8} {text}" for name, (_, text) in COMMANDS.items())
    parser = CommandParser(
        prog="fastsft",
        description="Fine-tunes chat models. fastsft <command> --help says more.",
        epilog=f"commands:\n{listing}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"fastsft {version()}")
    parser.add_argument("command", metavar="command", help="one of the commands below")
    parser.add_argument("rest", nargs=argparse.REMAINDER, help="its arguments; fastsft <command> --help")
    return parser


def _unknown(command: str) -> str:
    near = difflib.get_close_matches(command, COMMANDS, 1, cutoff=0.7)
    hint = f"the nearest is {near[0]}" if near else f"expected one of {', '.join(COMMANDS)}"
    return f"no command {command!r}; {hint}"


def version() -> str:
    """The installed version; a source tree that was not installed has none."""
    try:
        return importlib.metadata.version("fastsft")
    except importlib.metadata.PackageNotFoundError:
        return "(source tree, not installed)"


if __name__ == "__main__":
    sys.exit(main())
