"""`fastsft <command>`: imports the command's function and calls it with the remaining arguments."""

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
from pathlib import Path

import fastsft
from fastsft.cli.command_parser import CommandParser
from fastsft.runtime.errors import end_at_interrupt, raise_at_interrupt
from fastsft.runtime.launch import only_own_code
from fastsft.runtime.messages import beside_result

# name -> (function that takes arguments and returns an exit status, description)
COMMANDS = {
    "train": ("fastsft.cli.train.main", "fine-tune a model; the same as python -m fastsft.train"),
    "demo": ("fastsft.cli.demo.main", "train a small chat model from scratch, and talk to it"),
    "chat": ("fastsft.cli.chat.main", "talk to a model that was trained"),
    "inspect": ("fastsft.cli.inspect.main", "see the data: what is learned of each conversation"),
    "data": ("fastsft.cli.data.main", "data report FILE: its numbers; data convert IN OUT: another format"),
    "doctor": ("fastsft.cli.doctor.main", "check flags, model, data, disk, memory and ranks before a run"),
    "plan": ("fastsft.cli.plan.main", "what a run would hold in memory, without training"),
    "import": (
        "fastsft.cli.import_config.main",
        "a config of LLaMA-Factory, axolotl, TRL, ms-swift or FastChat as a file for train --config",
    ),
    "recipes": ("fastsft.cli.recipes.main", "YAML files for train --config, by model and GPU; writes one"),
    "args": ("fastsft.cli.args.main", "every argument of training: default, meaning, treatment"),
    "verify": ("fastsft.cli.verify.main", "check a model directory or a checkpoint, or compare two"),
    "convert": (
        "fastsft.cli.convert.main",
        "a model or checkpoint to a model directory of another dtype or split",
    ),
    "merge": ("fastsft.cli.convert.merge", "a LoRA adapter into its base model: a new model directory"),
    "export": ("fastsft.cli.export.main", "export ollama DIR: a Modelfile; export gguf DIR: for llama.cpp"),
    "help": ("fastsft.cli.main.print_help", "help COMMAND: the same as fastsft COMMAND --help"),
    "version": ("fastsft.cli.main.print_version", "the installed version"),
    "path": (
        "fastsft.cli.main.print_path",
        "the file of train, train_mem or train_xformers, for torchrun FILE",
    ),
}

MODULES = ("train", "train_mem", "train_xformers")
_RUNS = ("train", "demo")  # commands that print a log; the other commands print a result


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return its exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    parser = _parser()
    argv = list(sys.argv[1:] if arguments is None else arguments)
    if not argv:
        parser.print_help(sys.stderr)
        return 2
    if argv[0].startswith("--") and argv[0] not in parser._option_string_actions:
        parser.error(f"expected a command, got {argv[0]}; such as fastsft train {argv[0]} ...")
    parsed = parser.parse_args(argv)
    if parsed.command not in COMMANDS:
        parser.exit(2, f"fastsft: {_unknown(parsed.command)}\n")
    # A command line called this function, so the process runs a single command and exits.
    if arguments is None:
        end_at_interrupt()
    module, _, function = COMMANDS[parsed.command][0].rpartition(".")
    run = getattr(importlib.import_module(module), function)
    if arguments is None:
        raise_at_interrupt()
        gc.freeze()  # run_script does this, too
    try:
        with (
            contextlib.nullcontext() if parsed.command in _RUNS else beside_result(),
            only_own_code() if arguments is None else contextlib.nullcontext(),
        ):
            return int(run(parsed.rest))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # otherwise the interpreter would flush the stream at exit, and fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser() -> argparse.ArgumentParser:
    listing = "\n".join(f"  {name:<8} {text}" for name, (_, text) in COMMANDS.items())
    parser = CommandParser(
        prog="fastsft",
        description="Fine-tunes chat models. fastsft help <command>, or fastsft <command> --help, says more.",
        epilog=f"commands:\n{listing}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"fastsft {version()}")
    parser.add_argument("command", metavar="command", help="one of the commands below")
    parser.add_argument("rest", nargs=argparse.REMAINDER, help="its arguments; fastsft <command> --help")
    return parser


# Commands of other programs -> the way here
_MEANT = {
    **dict.fromkeys(("finetune", "fine-tune", "sft", "tune", "lora", "fit"), "fastsft train trains"),
    **dict.fromkeys(
        ("generate", "infer", "inference", "run", "predict"), "fastsft chat DIR --message TEXT answers"
    ),
    **dict.fromkeys(("eval", "evaluate"), "fastsft train --eval_split 0.05 --eval_strategy epoch evaluates"),
    **dict.fromkeys(
        ("serve", "deploy", "api"), "fastsft export ollama DIR writes a Modelfile; or vllm serve DIR"
    ),
    **dict.fromkeys(("download", "pull", "fetch"), "hf download NAME --local-dir DIR fetches a model"),
    "login": "hf auth login logs in",
    "quantize": "fastsft export gguf DIR writes a file for llama-quantize",
}


def _unknown(command: str) -> str:
    if command.lower() in _MEANT:
        return f"no command {command!r}; {_MEANT[command.lower()]}"
    near = difflib.get_close_matches(command.lower(), COMMANDS, 1, cutoff=0.7)
    hint = f"the nearest is {near[0]}" if near else f"expected one of {', '.join(COMMANDS)}"
    return f"no command {command!r}; {hint}"


def print_path(arguments: Sequence[str]) -> int:
    """Print a training module's absolute path, for launchers that need a path."""
    parser = CommandParser(
        prog="fastsft path",
        description='The file of a training module: torchrun "$(fastsft path train_mem)" FLAGS',
    )
    parser.add_argument("name", choices=MODULES, metavar="NAME", help=", ".join(MODULES))
    name = parser.parse_args(arguments).name
    print(Path(fastsft.__file__).with_name(f"{name}.py").absolute())
    return 0


def print_help(arguments: Sequence[str]) -> int:
    """Print the help of the command that `arguments` names, or the list of commands."""
    name = [word for word in arguments if not word.startswith("-")][:1]
    return main([*name, "--help"])


def print_version(arguments: Sequence[str]) -> int:
    """Print the installed version."""
    CommandParser(prog="fastsft version", description="The installed version.").parse_args(arguments)
    print(f"fastsft {version()}")
    return 0


def version() -> str:
    """Return the installed version, or a text saying that this source tree is not installed."""
    try:
        return importlib.metadata.version("fastsft")
    except importlib.metadata.PackageNotFoundError:
        return "(source tree, not installed)"


if __name__ == "__main__":
    sys.exit(main())
