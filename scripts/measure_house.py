"""Prints measures of checkouts as a Markdown table: sizes, imports, what an addition touches.

usage: python scripts/measure_house.py [--touch] [--any] [TREE ...]
--touch lists the files that name an existing sibling of each addition, --any counts annotations by name.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from check_imports import HEAVY, NATIVE, ROOMS, Module, reachable, read_modules, room_of
from check_layers import SUFFIXES, Source
from cpp_functions import functions

TINY = 25  # lines
HEADERS = {".h", ".cuh"}
Edges = dict[str, set[str]]


@dataclass(frozen=True)
class Addition:
    """What somebody adds: `sibling`, the pattern of one that exists, searched in files below `roots`."""

    what: str
    sibling: str
    roots: tuple[str, ...] = ("csrc", "python", "pyproject.toml")


ADDITIONS = (
    Addition("template", r"zephyr"),
    Addition("model family", r"qwen3(?!_)"),
    Addition("op", r"rms_norm", ("csrc/ops",)),  # model/ uses ops, which is another matter
    Addition("strategy", r"hybrid_shard_zero2", ("csrc/shard", "csrc/bindings", "python")),
    Addition("data format", r"prompt_completion|PromptCompletion"),
    Addition("flag that reaches the engine", r"master_dtype|split_master|is_split"),
    Addition("CLI command", r"doctor", ("python/fastsft/cli",)),
)


def quantile(values: Sequence[int], part: float) -> int:
    """The value that `part` of the sorted ones do not exceed, nearest rank; 0 of none."""
    ordered = sorted(values)
    return ordered[int(part * (len(ordered) - 1) + 0.5)] if ordered else 0


def share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({100 * part / max(1, whole):.1f}%)"


def sizes(values: Sequence[int]) -> str:
    return f"{quantile(values, 0.5)} / {quantile(values, 0.9)} / {max(values, default=0)}"


def count_lines(paths: Iterator[Path]) -> int:
    return sum(path.read_text(encoding="utf-8").count("\n") for path in paths)


def cpp_measures(root: Path) -> dict[str, str]:
    sources = [Source(root, path) for path in sorted(root.rglob("*")) if path.suffix in SUFFIXES]
    lines = [source.raw.count("\n") for source in sources]
    found = [function for source in sources for function in functions(source)]
    bodies = [each.lines for each in found if each.defined]
    return {
        "C++ files (lines: p50 / p90 / max)": f"{len(lines)}: {sizes(lines)}",
        "C++ functions (lines: p50 / p90 / max)": f"{len(bodies)}: {sizes(bodies)}",
        f"C++ files below {TINY} lines": share(sum(each < TINY for each in lines), len(lines)),
        "C++ functions used once": share(*used_once(sources)),
        "headers with one includer": share(*included_once(sources)),
    }


def used_once(sources: Sequence[Source]) -> tuple[int, int]:
    """(functions whose name stands once outside of declarations, functions whose name is defined once)."""
    words = Counter(word for source in sources for word in re.findall(r"[A-Za-z_]\w*", source.text))
    found = [function for source in sources for function in functions(source)]
    definitions = Counter(each.name for each in found if each.defined)
    mentions = Counter(each.name for each in found)
    single = [name for name, count in definitions.items() if count == 1]
    return sum(words[name] - mentions[name] == 1 for name in single), len(single)


def included_once(sources: Sequence[Source]) -> tuple[int, int]:
    """(headers that one file includes, not counting those of the header's own name, headers)."""
    includes = Counter(
        header
        for each in sources
        for header in {name for _, quoted, name in each.includes() if quoted}
        if Path(header).stem != each.path.stem
    )
    headers = [each.relative.as_posix() for each in sources if each.path.suffix in HEADERS]
    return sum(includes[header] == 1 for header in headers), len(headers)


def python_measures(root: Path) -> dict[str, str]:
    modules = read_modules(root)
    trees = [ast.parse(module.path.read_text(encoding="utf-8")) for module in modules.values()]
    lines = [module.path.read_text(encoding="utf-8").count("\n") for module in modules.values()]
    rooms = room_edges(modules)
    order = room_order(rooms)
    inside, names = hidden_imports(modules), any_names(trees)
    return {
        "Python files (lines: p50 / p90 / max)": f"{len(lines)}: {sizes(lines)}",
        "Python import lines": share(import_lines(trees), sum(lines)),
        "Python functions (lines: p50 / p90 / max)": sizes_of_functions(trees),
        "packages and modules at the top": str(len({name.split(".")[1] for name in modules if "." in name})),
        "rooms / floors": f"{len(rooms)} / {floors(rooms, order)}",
        "arrows between rooms / back": f"{sum(map(len, rooms.values()))} / {len(back_arrows(rooms, order))}",
        "circles of modules": str(len(circles(module_edges(modules)))),
        "`Any` annotations (itself / all uses)": f"{bare_any(names)} / {sum(names.values())}",
        "imports in functions (own / `_C` / heavy)": " / ".join(str(inside[kind]) for kind in KINDS),
    }


KINDS = ("own", "native", "heavy")


def import_lines(trees: Sequence[ast.Module]) -> int:
    """Count the lines of import statements, those inside functions too."""
    return sum(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    )


def sizes_of_functions(trees: Sequence[ast.Module]) -> str:
    found = [
        (node.end_lineno or node.lineno) - node.lineno + 1
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return f"{len(found)}: {sizes(found)}"


def hidden_imports(modules: dict[str, Module]) -> Counter[str]:
    """Import statements inside functions, by kind; one that imports two kinds counts for both."""
    found = {
        (name, each.line, kind_of_target(each.target))
        for name, module in modules.items()
        for each in module.imports
        if each.in_function
    }
    return Counter(kind for _, _, kind in found)


def kind_of_target(target: str) -> str:
    if target in HEAVY:
        return "heavy"
    return "native" if target.endswith(f".{NATIVE}") else "own"


def module_edges(modules: dict[str, Module]) -> Edges:
    return {name: {each.target for each in module.imports} & set(modules) for name, module in modules.items()}


def room_edges(modules: dict[str, Module]) -> Edges:
    """Which rooms each room imports, also in functions and for types. `__init__` at the top is no room."""
    edges: Edges = {room_of(name): set() for name in modules if room_of(name)}
    for name, targets in module_edges(modules).items():
        if room := room_of(name):
            edges[room] |= {other for target in targets if (other := room_of(target)) not in {"", room}}
    return edges


def room_order(rooms: Edges) -> list[str]:
    """The order of check_imports.py; for rooms that it does not know, one that breaks few arrows."""
    return [room for room in ROOMS if room in rooms] if set(rooms) <= set(ROOMS) else drawn_order(rooms)


def drawn_order(edges: Edges) -> list[str]:
    """From what imports nothing to what nothing imports; of a circle, who needs least comes first."""
    left, order = set(edges), []
    while left:
        debts = {name: len(edges[name] & left - {name}) for name in left}
        wanted = {name: sum(name in edges[other] for other in left) for name in left}
        chosen = min(left, key=lambda name: (debts[name] > 0, debts[name] - wanted[name], name))
        order.append(chosen)
        left.remove(chosen)
    return order


def back_arrows(edges: Edges, order: Sequence[str]) -> list[tuple[str, str]]:
    """(room, later room that it imports)."""
    place = {name: number for number, name in enumerate(order)}
    return sorted((a, b) for a, targets in edges.items() for b in targets if place[b] > place[a])


def floors(edges: Edges, order: Sequence[str]) -> int:
    """The longest chain of rooms along arrows that do not run back."""
    height: dict[str, int] = {}
    for name in order:
        height[name] = 1 + max((height[each] for each in edges[name] if each in height), default=0)
    return max(height.values(), default=0)


def circles(edges: Edges) -> list[set[str]]:
    """Sets of two modules and more, each of which imports the others, directly or through others."""
    plain = {name.replace(".", "/"): {each.replace(".", "/") for each in edges[name]} for name in edges}
    reached = {name: reachable(name, plain) for name in plain}
    found = {frozenset(other for other in reached[name] if name in reached[other]) for name in plain}
    return [set(group) for group in found if len(group) > 1]


def any_names(trees: Sequence[ast.Module]) -> Counter[str]:
    """Uses of `Any` by what they annotate: `trainer: Any`; others as `elsewhere`."""
    found: Counter[str] = Counter()
    for tree in trees:
        total = any_in(tree)
        for node in ast.walk(tree):
            for name, annotation in annotated(node):
                total -= (count := any_in(annotation))
                found[name] += count
        found["elsewhere"] += total
    return +found


def bare_any(names: Counter[str]) -> int:
    """Annotations that are `Any` or begin with it, not those that hold it, like `list[Any]`."""
    return sum(count for name, count in names.items() if re.search(r"(?:: |-> )Any\b", name))


def any_in(node: ast.AST) -> int:
    return sum(getattr(each, "id", getattr(each, "attr", "")) == "Any" for each in ast.walk(node))


def annotated(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node, ast.arg) and node.annotation:
        yield f"{node.arg}: {ast.unparse(node.annotation)}", node.annotation
    elif isinstance(node, ast.AnnAssign):
        yield f"{ast.unparse(node.target)}: {ast.unparse(node.annotation)}", node.annotation
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns:
        yield f"-> {ast.unparse(node.returns)}", node.returns


def line_measures(tree: Path) -> dict[str, str]:
    counts = [
        count_lines(path for path in (tree / "csrc").rglob("*") if path.suffix in SUFFIXES),
        *(count_lines((tree / folder).rglob("*.py")) for folder in ("python/fastsft", "tests")),
        count_lines(path for path in [*(tree / "docs").rglob("*.md"), *tree.glob("*.md")]),
    ]
    return {"lines: csrc + python + tests + docs": f"{' + '.join(map(str, counts))} = {sum(counts)}"}


def touched(tree: Path, addition: Addition) -> tuple[list[str], list[str]]:
    """(files named after the sibling, other files whose text names it)."""
    word = re.compile(rf"(?<![A-Za-z0-9])(?:{addition.sibling})(?![A-Za-z0-9])", re.I)
    new, edited = [], []
    for path in files_below(tree, addition.roots):
        relative = path.relative_to(tree).as_posix()
        if word.search(path.stem) or word.search(path.parent.name):
            new.append(relative)
        elif word.search(path.read_text(encoding="utf-8")):
            edited.append(relative)
    return new, edited


def files_below(tree: Path, roots: Sequence[str]) -> Iterator[Path]:
    """Files that people write: C++, Python, stubs and configuration, no documents."""
    for root in roots:
        place = tree / root
        for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if path.is_file() and path.suffix in {*SUFFIXES, ".py", ".pyi", ".toml", ".txt", ".cmake"}:
                yield path


def touch_measures(tree: Path) -> dict[str, str]:
    found = {}
    for addition in ADDITIONS:
        new, edited = touched(tree, addition)
        folders = len({path.rpartition("/")[0] for path in new + edited})
        text = f"{len(new)} + {len(edited)} = {len(new) + len(edited)} in {folders}"
        found[f"{addition.what}: new + edited files, in folders"] = text
    return found


def measure(tree: Path) -> dict[str, str]:
    """Names and values of all measures of a checkout."""
    return {
        **cpp_measures(tree / "csrc"),
        **python_measures(tree / "python" / "fastsft"),
        **line_measures(tree),
        **touch_measures(tree),
    }


def table(columns: dict[str, dict[str, str]]) -> str:
    names = list(next(iter(columns.values())))
    rows = [["measure", *columns], ["---"] * (len(columns) + 1)]
    rows += [[name, *(values[name] for values in columns.values())] for name in names]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def print_touches(tree: Path) -> None:
    for addition in ADDITIONS:
        new, edited = touched(tree, addition)
        print("", f"{addition.what}:", *(f"  new {each}" for each in new), sep="\n")
        print(*(f"  edited {each}" for each in edited), sep="\n")


def print_any(tree: Path) -> None:
    modules = read_modules(tree / "python" / "fastsft").values()
    names = any_names([ast.parse(module.path.read_text(encoding="utf-8")) for module in modules])
    print("", *(f"{count:4} {name}" for name, count in names.most_common()), sep="\n")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("trees", nargs="*", type=Path, default=[Path(__file__).parents[1]])
    parser.add_argument("--touch", action="store_true")
    parser.add_argument("--any", action="store_true")
    given = parser.parse_args(arguments)
    for tree in given.trees:
        if not ((tree / "csrc").is_dir() and (tree / "python" / "fastsft").is_dir()):
            print(f"{tree}: expected a checkout with csrc and python/fastsft", file=sys.stderr)
            return 2
    print(table({tree.resolve().name: measure(tree) for tree in given.trees}))
    for tree in given.trees:
        if given.touch:
            print_touches(tree)
        if given.any:
            print_any(tree)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
