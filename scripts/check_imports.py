"""Checks how the modules of python/fastsft import each other; prints `file:line: what is wrong; the way out`.

usage: python scripts/check_imports.py [python/fastsft]
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from check_layers import Violation

# What start-up does not wait for, or what may not be installed: imported where it is used.
HEAVY = {
    *("torch", "transformers", "datasets", "accelerate", "peft", "huggingface_hub", "safetensors"),
    *("tokenizers", "sentencepiece", "pyarrow", "zstandard", "matplotlib", "IPython", "ray", "wandb"),
    *("mlflow", "tensorboard", "jinja2", "yaml", "tqdm"),
}
NATIVE = "_C"  # the core loads torch
# The rooms of python/fastsft: each imports from itself and from those before it.
ROOMS = (
    *("runtime", "ranks", "originals", "script_names", "sources", "callbacks", "trackers", "arguments"),
    *("tokenizer", "data", "planning", "model", "lora", "reporting", "checkpoint", "trainer", "saving"),
    *("weight_sync", "inspection", "program", "train", "notebook", "doctor", "cli"),
)


@dataclass(frozen=True)
class Import:
    """One import of a module of the package, or of something heavy."""

    target: str
    line: int
    in_function: bool
    for_types: bool


class Module:
    """A Python file and what it imports. `name`: as it is imported."""

    def __init__(self, path: Path, name: str, known: set[str]) -> None:
        self.path, self.name, self._known = path, name, known
        self._package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        self._root = name.partition(".")[0]
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
        self.imports = list(self._found(tree, in_function=False, for_types=False))

    def _found(self, node: ast.AST, in_function: bool, for_types: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for target in sorted(set(self._targets(node))):
                yield Import(target, node.lineno, in_function, for_types)
        function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        types = body_for_types(node)
        for child in ast.iter_child_nodes(node):
            yield from self._found(child, in_function or function, for_types or child in types)

    def _targets(self, node: ast.Import | ast.ImportFrom) -> Iterator[str]:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            base = self._base(node)
            names = [f"{base}.{alias.name}" for alias in node.names]
        for name in names:
            if name.partition(".")[0] in HEAVY:
                yield name.partition(".")[0]
            elif own := self._own(name):
                yield own

    def _base(self, node: ast.ImportFrom) -> str:
        """The module that names are taken from; dots go up from the package."""
        above = self._package.split(".")[: -node.level + 1 or None] if node.level else []
        return ".".join([*above, *filter(None, [node.module])])

    def _own(self, name: str) -> str | None:
        """The module of the package that `name` is, or is defined in; None for other packages' names."""
        if name.partition(".")[0] != self._root:
            return None
        while name not in self._known and name != self._root:
            name = name.rpartition(".")[0]
        return name if name != self.name else None


def body_for_types(node: ast.AST) -> list[ast.stmt]:
    """What stands under `if TYPE_CHECKING:`."""
    if isinstance(node, ast.If) and ast.unparse(node.test).split(".")[-1] == "TYPE_CHECKING":
        return node.body
    return []


def read_modules(root: Path) -> dict[str, Module]:
    """All modules under `root`, the package's folder, by name."""
    names = {}
    for path in sorted(root.rglob("*.py")):
        parts = (root.name, *path.relative_to(root).with_suffix("").parts)
        names[path] = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    known = {*names.values(), f"{root.name}.{NATIVE}"}
    return {name: Module(path, name, known) for path, name in names.items()}


def check_circles(modules: dict[str, Module]) -> Iterator[Violation]:
    """No module needs itself, whether imports stand at the top, in a function or under TYPE_CHECKING.

    What counts is the module that an import names, not the packages that it lies in.
    """
    edges = {name: sorted({each.target for each in module.imports}) for name, module in modules.items()}
    told: set[str] = set()
    for name, module in modules.items():
        circle = [] if name in told else shortest_way_back(name, edges)
        if circle and not told.intersection(circle):
            told.update(circle)
            line = next(each.line for each in module.imports if each.target == circle[1])
            yield Violation(
                module.path, line,
                f"a circle of imports: {' > '.join(circle)}; move what both ends need into a module that "
                "imports neither, which each of them imports",
            )  # fmt: skip


def shortest_way_back(start: str, edges: dict[str, list[str]]) -> list[str]:
    """The modules from `start` to `start` again; empty when there is no way."""
    came_from: dict[str, str] = {}
    reached = [start]
    for name in reached:
        for target in edges.get(name, []):
            if target == start:
                way = [start]
                while name != start:
                    way.append(name)
                    name = came_from[name]
                return [start, *way[::-1]]
            if target not in came_from:
                came_from[target] = name
                reached.append(target)
    return []


def room_of(name: str) -> str:
    """The room of a module.

    Of those at the top of the package FastChat's scripts and patches are `train`, and __main__ is `cli`.
    """
    room = name.split(".")[1] if "." in name else ""
    if room == "__main__":
        return "cli"
    return "train" if room.startswith("train_") or room.endswith("_monkey_patch") else room


def check_rooms(modules: dict[str, Module], rooms: Sequence[str]) -> Iterator[Violation]:
    """Rooms depend on each other in one order; so does what is imported in functions and for types."""
    order = {room: number for number, room in enumerate(rooms)}
    for name, module in modules.items():
        room = room_of(name)
        if not room:
            continue
        if room not in order:
            yield Violation(module.path, 1, f"no such room: {room}; rooms are {' < '.join(rooms)}")
            continue
        for each in module.imports:
            other = room_of(each.target)
            if each.target != f"{name.partition('.')[0]}.{NATIVE}" and order.get(other, -1) > order[room]:
                yield Violation(
                    module.path, each.line,
                    f"import of {each.target}: {room} comes before {other}; a module imports only from its "
                    "own and earlier rooms",
                )  # fmt: skip


def loads(modules: dict[str, Module]) -> dict[str, set[str]]:
    """What heavy packages, and whether the native core, the import of each module loads."""
    root = next(iter(modules)).partition(".")[0]
    heavy = {f"{root}.{NATIVE}", *HEAVY}
    at_import = {
        name: {each.target for each in module.imports if not (each.in_function or each.for_types)}
        for name, module in modules.items()
    }
    return {name: heavy.intersection(reachable(name, at_import)) for name in modules}


def reachable(start: str, edges: dict[str, set[str]]) -> set[str]:
    """`start` and all that its import runs: also the packages that a module lies in."""
    reached, waiting = {start}, [start]
    while waiting:
        name = waiting.pop()
        new = {*edges.get(name, ()), name.rpartition(".")[0]} - reached - {""}
        reached |= new
        waiting += new
    return reached


def check_functions(modules: dict[str, Module]) -> Iterator[Violation]:
    """An import inside a function spares a load: of a heavy package, or of the native core."""
    loaded = loads(modules)
    for name, module in modules.items():
        for each in module.imports:
            if not each.in_function or each.target in HEAVY:
                continue
            if loaded.get(each.target, {each.target}) - loaded[name]:
                continue
            yield Violation(
                module.path, each.line,
                f"import of {each.target} inside a function, which loads nothing heavy that this module "
                "does not load itself; import it at the top",
            )  # fmt: skip


def check_tree(root: Path, rooms: Sequence[str] = ROOMS) -> list[Violation]:
    """All violations under `root`, the package's folder, in the order of the files."""
    modules = read_modules(root)
    found = [*check_rooms(modules, rooms), *check_circles(modules), *check_functions(modules)]
    return sorted(found, key=lambda violation: (violation.path, violation.line))


def main(arguments: list[str]) -> int:
    root = Path(arguments[0]) if arguments else Path(__file__).parents[1] / "python" / "fastsft"
    if not (root / "__init__.py").is_file():
        print(f"{root}: expected the folder of a package, found no __init__.py in it", file=sys.stderr)
        return 2
    violations = check_tree(root)
    print("\n".join(map(str, violations)) or f"{root}: imports are clean")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
