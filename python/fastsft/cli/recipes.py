"""`fastsft recipes`: lists recipes, which are YAML files for `fastsft train --config`, and writes one."""

from __future__ import annotations

import difflib
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from fastsft.cli.command_parser import CommandParser, print_error, print_line
from fastsft.runtime.hub_models import expanded
from fastsft.runtime.output_files import check_output_file

FOLDER = Path(__file__).parents[1] / "recipes"  # written by scripts/make_recipes.py
# A card, the memory planned on it, and a remark if it takes float16 alone.
_FITS = re.compile(r"#   (.+?) +[\d.]+ of [\d.]+(, with fp16)?")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the list, or write the recipe NAME; return 0, or 1 if it cannot be written."""
    parser = CommandParser(prog="fastsft recipes", description=__doc__)
    parser.add_argument("name", nargs="?", metavar="NAME", help="a recipe; without: a list of all")
    parser.add_argument("file", nargs="?", metavar="FILE", help="file to write; default NAME.yaml")
    parser.add_argument("--list", action="store_true", help="the list, as without NAME")
    args = parser.parse_args(arguments)
    if args.name is None or args.list:
        for line in _listing():
            print_line(line)
        return 0
    try:
        path = write_recipe(args.name, args.file)
    except (OSError, ValueError) as error:
        print_error("recipes", error)
        return 1
    print_line(
        f"wrote {path}: give your data as data_path, then: fastsft train --config {shlex.quote(str(path))}"
    )
    return 0


def names() -> list[str]:
    """Return the names of all recipes."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def write_recipe(name: str, file: str | None = None) -> Path:
    """Write a recipe to `file`, by default NAME.yaml, and return the path. An existing file stays.

    ValueError for an unknown name, for a file that is no YAML by its name, and for an existing file.
    """
    name = name.lower().removesuffix(".yaml")
    if name not in names():
        near = difflib.get_close_matches(name, names(), 1, cutoff=0.5)
        like = [known for known in names() if name in known]
        hint = f"there are {', '.join(like)}; " if like else f"the nearest is {near[0]}; " if near else ""
        raise ValueError(f'no recipe "{name}"; {hint}fastsft recipes lists them')
    path = expanded(file or f"{name}.yaml")
    if path.suffix not in (".yaml", ".yml"):
        raise ValueError(f"expected a .yaml or .yml file, which --config reads, got {path}")
    check_output_file(path, "FILE")
    text = (FOLDER / f"{name}.yaml").read_text("utf-8")
    text = text.replace(f"--config {name}.yaml", f"--config {shlex.quote(str(path))}")
    try:
        with path.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise ValueError(f"{path} exists and stays as it is: name another file") from None
    return path


def _listing() -> list[str]:
    rows = []
    for name in names():
        head = (FOLDER / f"{name}.yaml").read_text("utf-8").splitlines()
        model, _, method = head[0].removeprefix("# ").partition(": ")
        fits = [found for line in head if (found := _FITS.match(line))]
        cards = [f"{found[1]} (fp16)" if found[2] else found[1] for found in fits]
        rows.append((name, model.partition(" (")[0], method.partition(",")[0], ", ".join(cards)))
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    lines = ["  ".join([*map(str.ljust, row, widths), row[3]]) for row in rows]
    return [
        *lines,
        "",
        "fastsft recipes NAME [FILE] writes one; cards: planned to fit, not tried (docs/memory.md)",
    ]


if __name__ == "__main__":
    sys.exit(main())
