"""check_layers.py finds each kind of broken habit, says where, and finds nothing in the real tree."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import check_layers

ROOT = Path(__file__).parents[1]
CLEAN = {
    "core/error.h": "#pragma once\n",
    "data/batch.h": '#pragma once\n#include <ATen/core/Tensor.h>\n#include "core/error.h"\n'
    "namespace fastsft {\nstruct Batch {\n};\n}\n",
    "data/batch_user.h": "#pragma once\nnamespace fastsft {\nstruct Batch;\n}\n",
    "ops/tile.cuh": "#pragma once\nnamespace fastsft::cuda {\nstruct Batch {\n};\n}\n",
    "shard/communicator.cpp": "#include <torch/csrc/distributed/c10d/Store.hpp>\nc10d::Store* store;\n",
    "data/upload.cpp": 'void f(E& e) { e.synchronize("upload"); }  // not e.synchronize()\n',
    "shard/communicator.h": "#pragma once\n// groups of c10d, by name\n",
    "bindings/module.cpp": "#include <pybind11/pybind11.h>\nPYBIND11_MODULE(_C, m) {}\n",
    "bindings/bind_core.cpp": '#include <pybind11/pybind11.h>\nvoid f(m) { m.def("g", &g); }\n',
    "bindings/python_records.cpp": "#include <pybind11/pybind11.h>\nint convert(py::list list);\n",
    "ops/swiglu/swiglu.h": "#pragma once\nnamespace fastsft { void check_swiglu(const at::Tensor& x); }\n",
    "ops/swiglu/swiglu.cpp": '#include "ops/swiglu/swiglu.h"\n'
    'TORCH_LIBRARY_FRAGMENT(fastsft, m) { m.def("swiglu(Tensor x) -> Tensor"); }\n',
    "ops/swiglu/swiglu_cpu.cpp": """#include "ops/swiglu/swiglu.h"
namespace {
at::Tensor swiglu_cpu(const at::Tensor& x) {
  // what the dispatcher does not do: "{"
  check_swiglu(x);
  return x;
}
}
TORCH_LIBRARY_IMPL(fastsft, CPU, m) { m.impl("swiglu", TORCH_FN(swiglu_cpu)); }
""",
    "ops/swiglu/swiglu_cuda.cpp": """at::Tensor swiglu_cuda(const at::Tensor& x, bool b = f()) {
  const auto shape = check_swiglu(x);
}
TORCH_LIBRARY_IMPL(fastsft, CUDA, m) { m.impl("swiglu", &swiglu_cuda); }
""",
}
KERNEL = "TORCH_LIBRARY_IMPL(fastsft, CPU, m) {\n  %s\n}\n"
BROKEN = [
    ("core/json.h", '#pragma once\n#include "data/batch.h"\n', 2, "core comes before data"),
    ("data/x.cpp", '#include "../core/error.h"\n', 1, "include from the root"),
    ("data/x.cpp", '#include "error.h"\n', 1, "no such file under the root"),
    ("data/x.cpp", "\n\n#include <torch/extension.h>\n", 3, "half a minute"),
    ("data/x.cpp", "#include <torch/torch.h>\n", 1, "half a minute"),
    ("bindings/bind_data.cpp", '#include "ATen/ATen.h"\n', 1, "half a minute"),
    ("chat/x.cpp", "#include <ATen/core/Tensor.h>\n", 1, "builds without torch"),
    ("storage/x.cpp", "#  include <c10/util/Half.h>\n", 1, "builds without torch"),
    ("train/x.cpp", "#include <pybind11/pybind11.h>\n", 1, "only bindings/ knows Python"),
    ("train/x.cpp", "#include <torch/csrc/utils/pybind.h>\n", 1, "only bindings/ knows Python"),
    ("shard/strategies.cpp", "void f();\nc10d::Work* w;\n", 2, "names c10d"),
    ("train/x.cpp", "#include <torch/csrc/distributed/c10d/Store.hpp>\n", 1, "names c10d"),
    ("chat/x.cpp", "\nthread_local int a;\n", 2, "pass a buffer"),
    ("ops/x.cpp", "int a;\n#ifdef __CUDACC__\n#endif\n", 2, "a device is a file"),
    ("ops/x.cpp", "#if defined(FASTSFT_WITH_CUDA)\n#endif\n", 1, "a device is a file"),
    ("bindings/bind_sampler.cpp", "", 1, "one bind_<folder>.cpp a folder"),
    ("bindings/lists.cpp", 'void f(m) {\n  m.def("g", &g);\n}\n', 2, "one bind_<folder>.cpp a folder"),
    ("bindings/more/bind_core.cpp", "py::class_<A>(m);", 1, "one bind_<folder>.cpp a folder"),
    ("train/x.cpp", "PYBIND11_MODULE(_C, m) {}\n", 1, "bindings/module.cpp"),
    ("ops/x.cpp", "int a;\nbool b = finite.item<bool>();\n", 2, "the host would wait"),
    ("shard/x.cpp", "auto c = norm.cpu();\n", 1, "the host would wait"),
    ("model/x.cpp", "\nevent_->synchronize();\n", 2, "the host would wait"),
    ("optim/x.cpp", "cudaStreamSynchronize(stream);\n", 1, "the host would wait"),
    ("render/x.cpp", "", 1, "no such layer: render"),
    ("core/string_utils.h", "#pragma once\n", 1, "name says nothing: utils"),
    ("core/x.h", "int a;\n", 1, "#pragma once"),
    ("core/x.cpp", "int a;\n" * 351, 1, "351 lines, at most 350"),
    (
        "ops/swiglu/swiglu_cpu.cpp",
        "void f(int a) { g(a); check_swiglu(a); }\n" + KERNEL % 'm.impl("swiglu", f);',
        3,
        "first statement",
    ),
    (
        "ops/swiglu/swiglu_cpu.cpp",
        "void f(int a) { check_rope(a); }\n" + KERNEL % 'm.impl("swiglu", f);',
        3,
        "check_swiglu",
    ),
    (
        "ops/swiglu/swiglu_cpu.cpp",
        "void f(int a) { if (a) { check_swiglu(a); } }\n" + KERNEL % 'm.impl("swiglu", f);',
        3,
        "first",
    ),
    (
        "ops/swiglu/swiglu_cpu.cpp",
        "void f(int a) { // check_swiglu(a);\n}\n" + KERNEL % 'm.impl("swiglu", f);',
        4,
        "first",
    ),
    ("ops/swiglu/swiglu_cpu.cpp", KERNEL % 'm.impl("swiglu", [](int a) {});', 2, "named function"),
    ("ops/swiglu/swiglu_cpu.cpp", KERNEL % 'm.impl("swiglu", elsewhere);', 2, "not defined in this file"),
    (
        "model/families.cpp",
        "void f(int a) { check_swiglu(a); }\n" + KERNEL % 'm.impl("swiglu", f);',
        2,
        "registered in ops/",
    ),
    (
        "ops/rope/rope_cpu.cpp",
        "void f(int a) { check_rope(a); }\n" + KERNEL % 'm.impl("rope", f);',
        1,
        "rope.h is missing",
    ),
    (
        "data/step.h",
        "#pragma once\nnamespace fastsft {\nstruct Batch {\n};\n}\n",
        3,
        "a type of data/batch.h, too",
    ),
]


def write_tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_a_clean_tree_is_clean(tmp_path: Path) -> None:
    assert check_layers.check_tree(write_tree(tmp_path, CLEAN)) == []
    assert check_layers.main([str(tmp_path)]) == 0


@pytest.mark.parametrize(("name", "text", "line", "message"), BROKEN)
def test_each_broken_habit_is_found(tmp_path: Path, name: str, text: str, line: int, message: str) -> None:
    write_tree(tmp_path, {**CLEAN, name: text})
    found = [v for v in check_layers.check_tree(tmp_path) if message in v.message]
    assert [(v.path, v.line) for v in found][:1] == [(tmp_path / name, line)]


def test_command_line_names_file_and_line_and_fails(tmp_path: Path) -> None:
    write_tree(tmp_path, {**CLEAN, "core/json.h": '#pragma once\n#include "data/batch.h"\n'})
    command = [sys.executable, str(ROOT / "scripts" / "check_layers.py"), str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 1
    assert f"{tmp_path / 'core/json.h'}:2: #include of data/batch.h" in result.stdout
    assert subprocess.run([*command[:2], str(tmp_path / "none")], capture_output=True).returncode == 2


def test_this_tree_is_clean() -> None:
    assert [str(violation) for violation in check_layers.check_tree(ROOT / "csrc")] == []
