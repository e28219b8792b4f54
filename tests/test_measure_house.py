"""measure_house.py counts right: made-up trees with known answers."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import measure_house
from check_imports import read_modules
from check_layers import Source
from cpp_functions import Function, functions
from test_layers import write_tree

CPP = """#define OPEN {
namespace fastsft {
class Box : public Base<int> {
 public:
  explicit Box(int size = {}) : size_{size}, text_("{") {}
  int size() const { return size_; }  // }
  void grow(std::function<void()> how);
  bool operator==(const Box&) const = default;
};
enum class Kind { kA, kB };
const std::array<int, 2> kPair = {1, 2};
const auto kLambda = [](int a) { return a; };
template <class T>
void Box::grow(std::function<void()> how) {
  if (how) {
    how();
  }
}
}
"""


def source(tmp_path: Path, text: str) -> Source:
    return Source(write_tree(tmp_path / "csrc", {"core/box.h": text}), tmp_path / "csrc/core/box.h")


def test_functions_of_cpp(tmp_path: Path) -> None:
    assert list(functions(source(tmp_path, CPP))) == [
        Function("Box", 5, 1, True),
        Function("size", 6, 1, True),
        Function("grow", 7, 1, False),
        Function("operator", 8, 1, False),
        Function("grow", 14, 5, True),
    ]


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("Box::Box(int a) : a_{a}, b_(a) {\n}\n", ["Box"]),
        ('extern "C" {\nint f() { return 1; }\n}\n', ["f"]),
        ("__global__ void __launch_bounds__(kThreads) k(Args<int> a) { run(a); }\n", ["k"]),
        ("struct alignas(64) Line {\n  int f() const noexcept(true) { return 1; }\n};\n", ["f"]),
        ("auto f(int a) -> std::vector<int> { return {a}; }\n", ["f"]),
        ("int x{f()};\nusing F = void(int);\n", []),
    ],
)
def test_heads_of_functions(tmp_path: Path, code: str, names: list[str]) -> None:
    assert [each.name for each in functions(source(tmp_path, code)) if each.defined] == names


TREE = {
    "csrc/core/a.h": "#pragma once\nvoid lonely();\nvoid twice();\n",
    "csrc/core/a.cpp": '#include "core/a.h"\nvoid lonely() {\n}\nvoid twice() {\n  lonely();\n}\n'
    + "\n" * 24,
    "csrc/core/b.cpp": '#include "core/a.h"\nvoid b() { twice(); twice(); }\n',
    "csrc/chat/templates.cpp": "// zephyr\n",
    "csrc/ops/rms_norm/rms_norm.h": "void rms_norm();\n",
    "csrc/ops/other.cpp": "// as rms_norm\n",
    "csrc/bindings/bind.cpp": 'auto x = "master_dtype";\n',
    "python/fastsft/__init__.py": "",
    "python/fastsft/runtime/launch.py": "def f(a):\n    from fastsft.data import rows\n    import torch\n",
    "python/fastsft/data/rows.py": "from typing import Any\nfrom fastsft.runtime import launch\n"
    "def g(x: Any, y: dict[str, Any]) -> Any:\n    return x\n",
    "python/fastsft/cli/doctor.py": "from fastsft import _C\n",
    "tests/test_a.py": "# master_dtype\n",
    "README.md": "master_dtype\n",
    "docs/architecture.md": "one\ntwo\n",
}


def test_measures_of_a_tree(tmp_path: Path) -> None:
    measures = measure_house.measure(write_tree(tmp_path, TREE))
    expected = {
        "C++ files (lines: p50 / p90 / max)": "7: 1 / 3 / 30",
        "C++ functions (lines: p50 / p90 / max)": "3: 2 / 3 / 3",
        "C++ files below 25 lines": "6 of 7 (85.7%)",
        "C++ functions used once": "1 of 3 (33.3%)",
        "headers with one includer": "1 of 2 (50.0%)",
        "Python import lines": "5 of 8 (62.5%)",
        "Python functions (lines: p50 / p90 / max)": "2: 3 / 3 / 3",
        "packages and modules at the top": "3",
        "rooms / floors": "3 / 2",
        "arrows between rooms / back": "2 / 1",
        "circles of modules": "1",
        "`Any` annotations (itself / all uses)": "2 / 3",
        "imports in functions (own / `_C` / heavy)": "1 / 0 / 1",
        "lines: csrc + python + tests + docs": "39 + 8 + 1 + 3 = 51",
        "template: new + edited files, in folders": "0 + 1 = 1 in 1",
        "op: new + edited files, in folders": "1 + 1 = 2 in 2",
        "flag that reaches the engine: new + edited files, in folders": "0 + 1 = 1 in 1",
        "CLI command: new + edited files, in folders": "1 + 0 = 1 in 1",
    }
    assert {name: measures[name] for name in expected} == expected


def test_rooms_without_an_order_are_drawn() -> None:
    rooms = {"base": set[str](), "a": {"base", "b"}, "b": {"a", "base"}, "top": {"a"}}
    order = measure_house.room_order(rooms)
    assert order[0] == "base" and len(measure_house.back_arrows(rooms, order)) == 1
    assert measure_house.floors(rooms, order) == 3


def test_any_is_counted_by_name() -> None:
    tree = ast.parse("def f(trainer: Any) -> Any:\n    x: list[Any] = cast(Any, trainer)\n")
    assert measure_house.any_names([tree]) == {
        "trainer: Any": 1, "-> Any": 1, "x: list[Any]": 1, "elsewhere": 1,
    }  # fmt: skip


def test_circles_do_not_count_packages(tmp_path: Path) -> None:
    files = {"__init__.py": "from house import a\n", "a.py": "from house.b import x\n", "b.py": ""}
    modules = read_modules(write_tree(tmp_path / "house", files))
    assert measure_house.circles(measure_house.module_edges(modules)) == []


def test_a_wrong_folder_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert measure_house.main([str(tmp_path)]) == 2
    assert "expected a checkout" in capsys.readouterr().err
