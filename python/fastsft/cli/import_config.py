"""`fastsft import`: writes a file for `fastsft train --config` from another trainer's configuration."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fastsft.arguments import DataArguments, LoraArguments, ModelArguments, TrainingArguments
from fastsft.arguments.imports.draft import Draft, Fate
from fastsft.arguments.imports.recognise import frameworks
from fastsft.arguments.imports.report import next_lines, report_lines, yaml_text
from fastsft.arguments.imports.source import Source, read_source
from fastsft.arguments.parsing.parser import DataclassParser
from fastsft.cli.command_parser import CommandParser, print_error, print_line
from fastsft.runtime.hub_models import expanded

CLASSES = (ModelArguments, DataArguments, TrainingArguments, LoraArguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the file and print what became of each key.

    Return 0 if no key that changes the result was left out, 1 if one was, 2 if nothing was written.
    """
    parser = CommandParser(prog="fastsft import", word_flag="--output", description=__doc__, epilog=_EPILOG)
    parser.add_argument(
        "config", metavar="CONFIG", help="YAML or JSON file, or shell script with the command"
    )
    parser.add_argument("--output", metavar="FILE.yaml", help="file to write; default NAME-fastsft.yaml")
    parser.add_argument(
        "--from", dest="trainer", choices=tuple(frameworks()), help="the trainer; default: by the keys"
    )
    args = parser.parse_args(arguments)
    origin = expanded(args.config)
    try:
        source = read_source(origin, args.trainer)
        draft = source.translate(origin.parent)
        path = expanded(args.output or f"{origin.stem}-fastsft.yaml")
        _write(origin, path, source, draft)
    except (ValueError, OSError) as error:
        named = str(error).startswith(str(args.config))
        print_error("import", error if named else f"{args.config}: {error}")
        return 2
    for line in [*report_lines(source, draft), "", f"wrote {path}", *next_lines(origin, path, source)]:
        print_line(line)
    return int(any(row.fate is Fate.LOST for row in draft.rows))


_EPILOG = (
    "Status: 0 if the run is the same, 1 if keys that change the result were not carried (the file is "
    "written, and names them), 2 if nothing was written."
)


def _write(origin: Path, path: Path, source: Source, draft: Draft) -> None:
    """Write the new file. ValueError if it exists, or if fastsft does not take its values."""
    if path.suffix not in (".yaml", ".yml"):
        raise ValueError(f"expected a .yaml or .yml file, which --config reads, got {path}")
    try:
        with path.open("x", encoding="utf-8") as stream:
            stream.write(yaml_text(origin, path, source, draft))
    except FileExistsError:
        raise ValueError(f"{path} exists and stays as it is: name another file with --output") from None
    try:
        DataclassParser(CLASSES).file_values(str(path))
    except ValueError:
        path.unlink()
        raise
