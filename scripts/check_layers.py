"""Checks the habits that keep csrc/ simple; prints `file:line: what is wrong; the way out` and exits 1.

usage: python scripts/check_layers.py [csrc]
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LAYERS = (
    *("core", "storage", "tokenizer", "chat"),
    *("data", "ops", "shard", "model", "optim", "checkpoint", "sync", "train", "bindings"),
)
BASE_LAYERS = LAYERS[:4]
SUFFIXES = {".h", ".cpp", ".cu", ".cuh"}
MAX_LINES = 350
FORBIDDEN_HEADERS = {"torch/extension.h", "torch/torch.h", "ATen/ATen.h"}
TORCH_PREFIXES = ("torch/", "ATen/", "c10/", "cuda")
PYTHON_HEADERS = ("pybind11/", "Python.h", "torch/csrc/utils/pybind.h")
VAGUE_NAMES = {"util", "utils", "common", "helper", "helpers", "manager", "misc"}
DEVICE_MACRO = re.compile(r"^\s*#\s*(?:if|ifdef|ifndef|elif)\b.*(?:CUDA|NVCC|HIP|ROCM|GPU|DEVICE)", re.M)
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^">]+)[">]', re.M)
COMMENT_OR_STRING = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.S
)


@dataclass(frozen=True)
class Violation:
    """One broken habit: where, what, and the way out."""

    path: Path
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


class Source:
    """One file of csrc/. `text` has no comments, `code` neither comments nor strings; lines stay in place."""

    def __init__(self, root: Path, path: Path) -> None:
        self.root, self.path = root, path
        self.relative = path.relative_to(root)
        self.layer = self.relative.parts[0]
        self.raw = path.read_text(encoding="utf-8")
        self.text = COMMENT_OR_STRING.sub(lambda m: blank(m[0]) if m[0].startswith("/") else m[0], self.raw)
        self.code = COMMENT_OR_STRING.sub(lambda m: blank(m[0]), self.raw)

    def includes(self) -> Iterator[tuple[int, bool, str]]:
        """(offset, quoted, header) of every #include."""
        for match in INCLUDE.finditer(self.text):
            yield match.start(2), match[1] == '"', match[2]

    def violation(self, offset: int, message: str) -> Violation:
        return Violation(self.path, self.raw.count("\n", 0, offset) + 1, message)


def blank(text: str) -> str:
    """Spaces of the same length; newlines stay."""
    return re.sub(r"[^\n]", " ", text)


def check_names(source: Source) -> Iterator[Violation]:
    if source.layer not in LAYERS:
        yield source.violation(0, f"no such layer: {source.layer}; layers are {' < '.join(LAYERS)}")
    for part in source.relative.with_suffix("").parts:
        if vague := VAGUE_NAMES.intersection(part.split("_")):
            yield source.violation(0, f"the name says nothing: {vague.pop()}; name what the file is about")


def check_shape(source: Source) -> Iterator[Violation]:
    lines = source.raw.count("\n")
    if lines > MAX_LINES:
        yield source.violation(0, f"{lines} lines, at most {MAX_LINES}; look for the second idea inside it")
    if source.path.suffix in {".h", ".cuh"} and "#pragma once" not in source.text:
        yield source.violation(0, "header without #pragma once")
    for match in DEVICE_MACRO.finditer(source.text):
        yield source.violation(match.end(), "#if on a device; a device is a file: x_cpu.cpp, x_cuda.cu")


def check_includes(source: Source) -> Iterator[Violation]:
    for offset, quoted, header in source.includes():
        problem = forbidden_header(source, header) or (quoted and wrong_own_include(source, header))
        if problem:
            yield source.violation(offset, f"#include of {header}: {problem}")


def forbidden_header(source: Source, header: str) -> str | None:
    if header in FORBIDDEN_HEADERS:
        return "costs up to half a minute a file; include ATen/core/Tensor.h or ATen/ops/<op>.h"
    if source.layer in BASE_LAYERS and header.startswith(TORCH_PREFIXES):
        return f"{source.layer} belongs to fastsft_base, which builds without torch"
    if source.layer != "bindings" and header.startswith(PYTHON_HEADERS):
        return "only bindings/ knows Python"
    return None


def wrong_own_include(source: Source, header: str) -> str | None:
    layer = header.split("/")[0]
    if ".." in header.split("/"):
        return 'include from the root of csrc: "core/error.h"'
    if not (source.root / header).is_file():
        return "no such file under the root of csrc; quotes are for our own headers"
    if layer in LAYERS and source.layer in LAYERS and LAYERS.index(layer) > LAYERS.index(source.layer):
        return f"{source.layer} comes before {layer}; a file includes only from its own and earlier layers"
    return None


def check_thread_local(source: Source) -> Iterator[Violation]:
    if source.layer == "ops":
        return
    for match in re.finditer(r"\bthread_local\b", source.code):
        yield source.violation(
            match.start(), "glibc ends the process where a thread finds no memory for it; pass a buffer"
        )


def check_c10d(source: Source) -> Iterator[Violation]:
    if source.relative.as_posix() == "shard/communicator.cpp":
        return
    for match in re.finditer(r"\bc10d\b", source.text):
        if not in_string(source, match.start()):
            yield source.violation(
                match.start(), "only shard/communicator.cpp names c10d; use shard/communicator.h"
            )


def in_string(source: Source, offset: int) -> bool:
    line = source.text[source.text.rfind("\n", 0, offset) + 1 : offset]
    return source.code[offset] == " " and "#include" not in line.replace(" ", "")


def check_bindings(source: Source) -> Iterator[Violation]:
    if source.layer != "bindings":
        if match := re.search(r"\bPYBIND11_MODULE\b", source.code):
            yield source.violation(match.start(), "PYBIND11_MODULE belongs into bindings/module.cpp")
        return
    name = source.relative.as_posix().removeprefix("bindings/")
    if name == "module.cpp" or re.fullmatch(rf"bind_({'|'.join(LAYERS[:-1])})(_[a-z]+)?\.cpp", name):
        return
    match = re.search(r"\bclass_\s*<|\.def\w*\s*\(", source.code)
    if name.startswith("bind_") or match:
        offset = match.start() if match else 0
        yield source.violation(offset, "bindings are declared in one bind_<folder>.cpp a folder of csrc")


def check_ops(source: Source) -> Iterator[Violation]:
    """Kernels begin with check_<op>(...), because the dispatcher goes straight to them."""
    blocks = list(registrations(source))
    device_file = re.fullmatch(r"ops/(\w+)/\1_(cpu|cuda)\.(cpp|cu)", source.relative.as_posix())
    for offset, key, body in blocks:
        if key in {"CPU", "CUDA"} and (device_file is None or device_file[2] != key.lower()):
            yield source.violation(
                offset, f"{key} kernels are registered in ops/<op>/<op>_{key.lower()}.cpp or .cu only"
            )
        yield from check_kernels(source, offset, body)
    if device_file and blocks:
        for sibling in (f"{device_file[1]}.h", f"{device_file[1]}.cpp"):
            if not (source.path.parent / sibling).is_file():
                yield source.violation(
                    0, f"an op is a folder of four files; {sibling} is missing next to its kernel"
                )


def registrations(source: Source) -> Iterator[tuple[int, str, str]]:
    """(offset of the body, dispatch key, body) of every TORCH_LIBRARY_IMPL block."""
    for match in re.finditer(r"\bTORCH_LIBRARY_IMPL\s*\(\s*\w+\s*,\s*(\w+)\s*,\s*\w+\s*\)\s*\{", source.code):
        end = closing_brace(source.code, match.end() - 1)
        yield match.end(), match[1], source.text[match.end() : end]


def closing_brace(code: str, opening: int) -> int:
    depth = 0
    for match in re.finditer(r"[{}]", code[opening:]):
        depth += 1 if match[0] == "{" else -1
        if depth == 0:
            return opening + match.start()
    return len(code)


def check_kernels(source: Source, offset: int, body: str) -> Iterator[Violation]:
    calls = list(re.finditer(r"\.impl\s*\(", body))
    named = re.compile(
        r'\s*"(?:\w+::)?(\w+)(?:\.\w+)?"\s*,\s*(?:TORCH_FN\s*\(\s*)?&?\s*((?:\w+::)*\w+)\s*(?:<[^()]*>\s*)?\)'
    )
    for call in calls:
        match = named.match(body, call.end())
        if match is None:
            yield source.violation(offset + call.start(), 'register a named function: m.impl("op", op_cpu)')
        elif problem := unchecked_kernel(source, match[1], match[2].split("::")[-1]):
            yield source.violation(offset + call.start(), problem)


def unchecked_kernel(source: Source, op: str, function: str) -> str | None:
    """What is wrong with the kernel `function` of `op`; None when its first statement checks."""
    definition = re.search(rf"\b{function}\s*\([^;{{}}]*\)\s*\{{", source.code)
    if definition is None:
        return f"kernel {function} is not defined in this file"
    first = source.code[definition.end() :].split(";")[0]
    check = re.search(rf"\bcheck_{op}\s*\(", first)
    if check is None or "{" in first[: check.start()]:
        return f"the first statement of kernel {function} must call check_{op}(...)"
    return None


HOST_WAIT = re.compile(
    r"\.(?:cpu|item|nonzero)\s*(?:<\w+>\s*)?\(|\b_local_scalar_dense\b|\bcuda\w*Synchronize\s*\("
    r"|(?:\.|->)synchronize\s*\(\s*\)"
)


# The one way to wait, and what is measured before the first step.
MAY_WAIT = ("data/device_event.cpp", "ops/gemm/gemm_tuning_cuda.cpp")


def check_host_waits(source: Source) -> Iterator[Violation]:
    """What runs inside a step never asks the device; the one way to wait is seen in the timeline."""
    if source.layer not in {"data", "ops", "shard", "model", "optim"}:
        return
    if source.relative.as_posix() in MAY_WAIT:
        return
    for match in HOST_WAIT.finditer(source.text):
        yield source.violation(
            match.start(), "the host would wait for the device; use DeviceEvent::synchronize outside of steps"
        )


TYPE = re.compile(
    r"^(?:template\s*<[^;{]*>\s*)?(?:struct|class|enum(?: class)?) (\w+)\b(?!\s*[;<])[^;{]*\{", re.M
)
NAMESPACE = re.compile(r"^namespace ([\w:]+) \{", re.M)


def check_types(sources: list[Source]) -> Iterator[Violation]:
    """Two types of one name are undefined behaviour: the linker keeps one of their constructors."""
    known: dict[tuple[str, str], Path] = {}
    for source in sources:
        if source.path.suffix not in {".h", ".cuh"}:
            continue
        namespace = NAMESPACE.search(source.code)
        for match in TYPE.finditer(source.code):
            first = known.setdefault((namespace[1] if namespace else "", match[1]), source.relative)
            if first != source.relative:
                yield source.violation(match.start(1), f"{match[1]} is a type of {first}, too; rename one")


CHECKS = (
    *(check_names, check_shape, check_includes, check_c10d, check_bindings, check_ops),
    *(check_host_waits, check_thread_local),
)


def check_tree(root: Path) -> list[Violation]:
    """All violations under `root`, the csrc folder, in the order of the files."""
    paths = sorted(path for path in root.rglob("*") if path.suffix in SUFFIXES)
    sources = [Source(root, path) for path in paths]
    found = [violation for source in sources for check in CHECKS for violation in check(source)]
    return sorted([*found, *check_types(sources)], key=lambda violation: violation.path)


def main(arguments: list[str]) -> int:
    root = Path(arguments[0]) if arguments else Path(__file__).parents[1] / "csrc"
    if not root.is_dir():
        print(f"{root}: expected the csrc folder, found no directory", file=sys.stderr)
        return 2
    violations = check_tree(root)
    print("\n".join(map(str, violations)) or f"{root}: layers are clean")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
