"""CUDA to C++: launches, shared memory and launch bounds. Every line stays in its place."""

from __future__ import annotations

import re

BOUNDS = re.compile(r"__global__\s+void\s+__launch_bounds__\(")
DYNAMIC = re.compile(r"extern\s+__shared__\s+(\w+)\s+(\w+)\[\];")
STATIC = re.compile(r"__shared__\s+([^;]+);")


def translate(text: str, name: str) -> str:
    """The source `name` for a C++ compiler that includes cuda_runtime_api.h first."""
    text = with_bounds_checked(text)
    text = DYNAMIC.sub(r"\1* \2 = static_cast<\1*>(cuda_on_cpu::dynamic_memory());", text)
    text = STATIC.sub(lambda match: static_variables(match[1]), text)
    head = f'#line 1 "{name}"\n'
    if name.endswith(".cu"):  # launches name the file that they are in
        head = f'namespace {{ struct SourceFile {{ static constexpr auto name = "{name}"; }}; }}\n{head}'
    return head + with_launches(text)


def end_of_parentheses(text: str, begin: int) -> int:
    """The place after the parenthesis that closes the one before `begin`."""
    depth = 1
    while depth:
        depth += {"(": 1, ")": -1}.get(text[begin], 0)
        begin += 1
    return begin


def with_bounds_checked(text: str) -> str:
    """A kernel with launch bounds begins by comparing them with its block."""
    made, at = [], 0
    for match in BOUNDS.finditer(text):
        end = end_of_parentheses(text, match.end())
        brace = text.index("{", end) + 1
        made.append(f"{text[at:brace]} cuda_on_cpu::launch_bounds({text[match.end() : end - 1]});")
        at = brace
    return "".join([*made, text[at:]])


def static_variables(declaration: str) -> str:
    """References to shared memory for `float sums[32][32]` or `float a[4], b[4]`."""
    first, *more = re.split(r",(?![^\[]*\])", declaration)
    match = re.fullmatch(r"\s*(.*?)\s+(\w+\s*(?:\[.*)?)", first, re.DOTALL)
    assert match is not None, declaration
    made = []
    for variable in [match[2], *more]:
        name, sizes = re.fullmatch(r"\s*(\w+)\s*(.*)", variable, re.DOTALL).groups()  # type: ignore[union-attr]
        made.append(f"struct Shared_{name} {{}}; ")
        made.append(f"auto& {name} = cuda_on_cpu::shared<{match[1]}{sizes}, Shared_{name}>();")
    return "".join(made)


def begin_of_kernel(text: str, end: int) -> int:
    """Where the kernel's name begins that ends at `end`, before its <<<."""
    begin = end
    if text[begin - 1] == ">":
        depth = 0
        while depth or begin == end:
            begin -= 1
            depth += {">": 1, "<": -1}.get(text[begin], 0)
    while re.match(r"[\w:]", text[begin - 1]):
        begin -= 1
    return begin


def with_launches(text: str) -> str:
    """kernel<<<...>>>(arguments) as a call."""
    while (begin := text.find("<<<")) >= 0:
        end = text.index(">>>", begin)
        name_end = len(text[:begin].rstrip())
        name = begin_of_kernel(text, name_end)
        kernel, gap = text[name:name_end], text[name_end:begin]
        call = f"cuda_on_cpu::launch<SourceFile, {kernel}>({gap}cuda_on_cpu::config({text[begin + 3 : end]}))"
        text = text[:name] + call + text[end + 3 :]
    return text
