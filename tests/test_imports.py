"""check_imports.py finds circles and needless imports in functions, and finds nothing in the real tree."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import check_imports
from test_layers import write_tree

ROOT = Path(__file__).parents[1]
CLEAN = {
    "__init__.py": "from house.roof import cover\n\ndef __getattr__(name):\n    from house import _C\n",
    "roof.py": "def cover():\n    from house import _C\n    import torch\n",
    "tiles.py": "import torch\nfrom house import roof\n",
    "walls.py": "from __future__ import annotations\nfrom house.roof import cover\n\n"
    "def build():\n    from house.tiles import lay\n    from house.rooms import bath\n",
    "rooms/__init__.py": "import transformers\nfrom .bath import tub\n",
    "rooms/bath.py": "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n"
    "    from house.tiles import Tile\n",
    "core.py": "from house import _C\nfrom house.rooms.bath import tub\nimport houses\n",
}
CIRCLE = "a circle of imports: "
NEEDLESS = "inside a function"
BROKEN = [
    ({"roof.py": "from house.walls import build\n"}, "roof.py", 1, f"{CIRCLE}house.roof > house.walls > "),
    ({"roof.py": "import os\nimport house.walls\n"}, "roof.py", 2, CIRCLE),
    ({"roof.py": "def cover():\n    from house import walls\n"}, "roof.py", 2, CIRCLE),
    (
        {"roof.py": "import typing\nif typing.TYPE_CHECKING:\n    from house.walls import Wall\n"},
        "roof.py", 3, CIRCLE,
    ),
    ({"rooms/bath.py": "\nfrom . import tub\n"}, "rooms/__init__.py", 2, "> house.rooms.bath > house.rooms;"),
    ({"rooms/bath.py": "from .. import tiles\n", "tiles.py": "import house.rooms.bath\n"}, "rooms/bath.py", 1,
     CIRCLE),
    ({"walls.py": "def build():\n    from house.roof import cover\n"}, "walls.py", 2, NEEDLESS),
    ({"walls.py": "build = lambda: 1\nasync def f():\n    import house.roof\n"}, "walls.py", 3, NEEDLESS),
    ({"walls.py": "import torch\ndef f():\n    if f:\n        from house import tiles\n"}, "walls.py", 4,
     "import of house.tiles inside a function"),
    ({"core.py": "from house import _C\n\ndef f():\n    from house import _C\n"}, "core.py", 4,
     "import of house._C inside a function"),
    ({"core.py": "import house.base\ndef f():\n    from house import _C\n", "base.py": "import house._C\n"},
     "core.py", 3, "import of house._C inside a function"),
]  # fmt: skip


def check_tree(root: Path) -> list[check_imports.Violation]:
    """All but the order of the rooms, which these trees break on purpose."""
    modules = check_imports.read_modules(root)
    return [*check_imports.check_circles(modules), *check_imports.check_functions(modules)]


def test_a_clean_tree_is_clean(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "house", CLEAN)
    assert [str(violation) for violation in check_tree(root)] == []


@pytest.mark.parametrize(("files", "name", "line", "message"), BROKEN)
def test_each_violation_is_found(
    tmp_path: Path, files: dict[str, str], name: str, line: int, message: str
) -> None:
    root = write_tree(tmp_path / "house", {**CLEAN, **files})
    found = check_tree(root)
    assert {(each.path, each.line) for each in found} == {(root / name, line)}
    assert any(message in each.message for each in found)


@pytest.mark.parametrize("heavy", ["_C", "torch"])
def test_an_import_of_types_alone_loads_nothing(tmp_path: Path, heavy: str) -> None:
    """A module that names a heavy one for types alone is imported at the top of others."""
    source = "house._C" if heavy == "_C" else heavy
    types = f"from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import {source}\n"
    files = {**CLEAN, "tiles.py": types, "walls.py": "def f():\n    from house import tiles\n"}
    found = check_tree(write_tree(tmp_path / "house", files))
    assert [violation.line for violation in found] == [2]


def test_two_circles_are_two_violations(tmp_path: Path) -> None:
    files = {f"{name}.py": f"import house.{to}\n" for name, to in ("ab", "ba", "cd", "de", "ec", "fa")}
    found = check_tree(write_tree(tmp_path / "house", {**CLEAN, **files}))
    assert [violation.message.split(";")[0] for violation in found] == [
        f"{CIRCLE}house.a > house.b > house.a",
        f"{CIRCLE}house.c > house.d > house.e > house.c",
    ]


def test_rooms_import_from_earlier_rooms_only(tmp_path: Path) -> None:
    files = {
        "__init__.py": "from house.attic import box\n",
        "cellar.py": "from typing import TYPE_CHECKING\nfrom house import _C\nif TYPE_CHECKING:\n"
        "    from house.attic import box\n",
        "attic/__init__.py": "from house import cellar\nfrom house.attic import box\n",
        "attic/box.py": "def f():\n    from house.train import go\n",
        "train.py": "from house.attic import box\n",
        "train_mem.py": "from house.train import go\n",
        "barn.py": "",
    }
    modules = check_imports.read_modules(write_tree(tmp_path / "house", files))
    found = check_imports.check_rooms(modules, ("cellar", "attic", "train"))
    assert sorted((each.path.name, each.line, each.message.split(";")[0]) for each in found) == [
        ("barn.py", 1, "no such room: barn"),
        ("box.py", 2, "import of house.train: attic comes before train"),
        ("cellar.py", 4, "import of house.attic.box: cellar comes before attic"),
    ]


def test_command_line_names_file_and_line_and_fails(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "house", {**CLEAN, "roof.py": "\nimport house.walls\n"})
    command = [sys.executable, str(ROOT / "scripts" / "check_imports.py"), str(root)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 1
    assert (
        f"{root / 'roof.py'}:2: a circle of imports: house.roof > house.walls > house.roof" in result.stdout
    )
    assert subprocess.run([*command[:2], str(tmp_path)], capture_output=True).returncode == 2


def test_this_tree_is_clean() -> None:
    assert [str(violation) for violation in check_imports.check_tree(ROOT / "python" / "fastsft")] == []
