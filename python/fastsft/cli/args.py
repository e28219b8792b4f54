"""`fastsft args [NAME]`: every argument of training, with its default, its meaning and its treatment."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from fastsft.arguments.help import ArgumentRow, argument_rows, as_json, as_markdown, as_text
from fastsft.arguments.parsing.foreign_flags import SHORT_NAMES
from fastsft.arguments.parsing.hints import hints
from fastsft.cli.command_parser import CommandParser

PAGE_HEAD = """# Arguments

Written by `fastsft args --page`; do not edit. `fastsft args NAME` prints one row in the terminal.

Old and new names of transformers 4.28 to 5.x parse, with `_` or `-`. IMPLEMENT has its effect. NO-OP is kept
as an attribute, has no effect, and is named once when it leaves its default. REJECT raises unless it is
at its default, with what to use instead. `--config FILE.yaml` (or `.json`) gives flags by name; the command
line wins.

"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table of arguments; return 0, or 1 if no argument has the given NAME."""
    parser = CommandParser(prog="fastsft args", description=__doc__)
    parser.add_argument("name", nargs="?", metavar="NAME", help="one argument; without: all")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--markdown", action="store_true", help="tables in Markdown")
    form.add_argument("--json", action="store_true", help="a list of objects")
    form.add_argument("--page", action="store_true", help="docs/arguments.md")
    parsed, flags = parser.parse_known_args(arguments)
    if len(flags) > 1 or (flags and (parsed.name or not flags[0].startswith("--"))):
        parser.error(f"expected one NAME, got {' '.join([*filter(None, [parsed.name]), *flags])}")
    parsed.name = flags[0] if flags else parsed.name
    rows = argument_rows()
    if parsed.name is not None:
        rows = _named(rows, parsed.name)
        if not rows:
            return 1
    if parsed.page:
        sys.stdout.write(PAGE_HEAD + as_markdown(rows))
    else:
        sys.stdout.write(
            as_json(rows) + "\n" if parsed.json else as_markdown(rows) if parsed.markdown else as_text(rows)
        )
    return 0


def _named(rows: list[ArgumentRow], name: str) -> list[ArgumentRow]:
    name = name.lstrip("-").partition("=")[0].replace("-", "_")
    name = SHORT_NAMES.get(name, name)
    named = [row for row in rows if row.name == name]
    if not named:
        hint = hints([f"--{name}"], [row.flag for row in rows])[0]
        print(f"fastsft args: unknown flag {hint}", file=sys.stderr)
    return named
