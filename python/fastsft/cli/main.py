"""`fastsft <command>`: finds the command's module and hands it the rest of the line."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import sys
from collections.abc import Sequence

# name -> (module with main(arguments) -> exit status, what it does); imported only when asked for.
COMMANDS = {
    "doctor": ("fastsft.cli.doctor", "check flags, model, data, disk, memory and ranks before a run"),
    "plan": ("fastsft.cli.plan", "what a run would hold in memory, without training"),
    "args": ("fastsft.cli.args", "every argument of training: default, meaning, treatment"),
    "demo": ("fastsft.cli.demo", "train a small chat model here and now, and talk to it"),
    "inspect": ("fastsft.cli.inspect", "see the data: what is learned of each conversation"),
    "data": ("fastsft.cli.data", "data report FILE: its numbers; data convert IN OUT: another format"),
    "path": ("fastsft.cli.path", "the file of train, train_mem or train_xformers, for torchrun FILE"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status: 0 done, 1 failed, 2 wrong usage."""
    listing = "\n".join(f"  {name:<8} {text}" for name, (_, text) in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="fastsft",
        description="Fine-tunes chat models. Training itself: python -m fastsft.train --help",
        epilog=f"commands:\n{listing}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"fastsft {version()}")
    parser.add_argument("command", choices=COMMANDS, metavar="command", help="one of the commands below")
    parser.add_argument("rest", nargs=argparse.REMAINDER, help="its arguments; fastsft <command> --help")
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words:
        parser.print_help(sys.stderr)
        return 2
    parsed = parser.parse_args(words)
    module = importlib.import_module(COMMANDS[parsed.command][0])
    return int(module.main(parsed.rest))


def version() -> str:
    """The installed version; a source tree that was not installed has none."""
    try:
        return importlib.metadata.version("fastsft")
    except importlib.metadata.PackageNotFoundError:
        return "(source tree, not installed)"


if __name__ == "__main__":
    sys.exit(main())
