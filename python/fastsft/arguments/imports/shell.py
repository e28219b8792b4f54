"""Reads the command of another trainer from a shell script: the trainer, its flags, the number of ranks."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import NamedTuple

_ASSIGNMENT = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)=(.*)$", re.S)
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?-([^}]*))?\}|(\w+))")
_SEPARATORS = re.compile(r"&&|\|\||[;|&]")
_NUMBER = re.compile(r"[-+]?(0|[1-9]\d*|\d*\.\d+|\d+\.\d*)([eE][-+]?\d+)?$")
_RANKS = ("nproc_per_node", "num_gpus", "num_processes", "nproc-per-node")
_NODES = ("nnodes", "num_nodes", "num_machines")
_UNSET = "\0unset:"
# Beginnings of commands: program or module, and its subcommand. The trainer's name follows.
_COMMANDS = (
    (re.compile(r"(.*/)?swift$|.*swift/cli/sft\.py$|swift\.cli\.sft$"), "sft", "swift"),
    (re.compile(r"(.*/)?trl$|(.*/)?sft\.py$|trl\.scripts\.sft$"), "sft", "trl"),
    (re.compile(r"(.*/)?llamafactory-cli$|(.*/)?src/train(_bash)?\.py$"), "train", "llamafactory"),
    (re.compile(r"(.*/)?axolotl$|axolotl\.cli\.train$"), "train", "axolotl"),
    (re.compile(r"(.*/)?fastchat[./]train[./]train\w*(\.py)?$"), "", "fastchat"),
    (re.compile(r"(.*/)?train_(mem|lora|xformers)\.py$"), "", "fastchat"),
    (re.compile(r"(.*/)?train\.py$"), "", "alpaca"),
)


class Command(NamedTuple):
    """A training command: the trainer's name, its flags, files of flags, and ranks of all machines."""

    trainer: str
    flags: dict[str, object]
    files: list[str]
    ranks: int | None


def read_command(text: str, environment: Mapping[str, str] | None = None) -> Command:
    """Return the training command in the text of a shell script. ValueError if there is none.

    Variables have the values that the script assigns, else those of `environment`.
    """
    values = dict(os.environ if environment is None else environment)
    others: list[str] = []
    for line in _lines(text):
        try:
            parts = shlex.split(_expanded(line, values))
        except ValueError as error:
            raise ValueError(
                f"not read as a shell command ({error}): {line[:80]!r}; mend the line, or give the flags "
                "as YAML"
            ) from None
        inline: dict[str, str] = {}
        while parts and (found := _ASSIGNMENT.match(parts[0])):
            inline[found[1]] = found[2]
            parts = parts[1:]
        if parts[:1] == ["export"]:
            inline |= {found[1]: found[2] for part in parts[1:] if (found := _ASSIGNMENT.match(part))}
            parts = []
        if not parts:
            values |= inline
            continue
        command = _command(parts, {**values, **inline})
        if command is not None:
            return command
        others.append(parts[0])
    seen = f"; it has {', '.join(others[:5])}" if others else ""
    raise ValueError(
        "no training command: expected swift sft, trl sft, llamafactory-cli train, axolotl train, or a "
        f"train.py of FastChat or Stanford Alpaca{seen}"
    )


def _lines(text: str) -> list[str]:
    """Return the simple commands of a script. Comment lines between continued lines do not end a command."""
    kept = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\[ \t]*\n", " ", "\n".join(kept))
    commands: list[str] = []
    for line in joined.splitlines():
        commands += _split(line)
    return [command for command in commands if command.strip()]


def _split(line: str) -> list[str]:
    """Divide a line at `;`, `&&`, `|` and `&` outside quotes."""
    parts, quote, start, index = [], "", 0, 0
    while index < len(line):
        letter = line[index]
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter == "#" and (index == 0 or line[index - 1].isspace()):
            line = line[:index]
            break
        elif line[max(index - 1, 0)] != ">" and (found := _SEPARATORS.match(line, index)):
            parts.append(line[start:index])
            start = index = found.end()
            continue
        index += 1
    return [*parts, line[start:]]


def _expanded(line: str, values: Mapping[str, str]) -> str:
    """Replace variables outside single quotes."""

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[3]
        return values.get(name) or (found[2] if found[2] is not None else f"{_UNSET}{name}")

    pieces = re.split(r"('[^']*')", line)
    return "".join(piece if piece.startswith("'") else _VARIABLE.sub(value, piece) for piece in pieces)


def _command(parts: Sequence[str], values: Mapping[str, str]) -> Command | None:
    for index, part in enumerate(parts):
        for pattern, subcommand, trainer in _COMMANDS:
            if pattern.match(part) is None:
                continue
            rest = list(parts[index + 1 :])
            is_program = subcommand != "" and not part.endswith(".py") and "." not in part.rpartition("/")[2]
            if is_program:
                if not rest or rest[0] != subcommand:
                    if rest and not rest[0].startswith("-"):
                        raise ValueError(
                            f"{part} {rest[0]}: expected {part} {subcommand}: supervised fine-tuning is "
                            "all there is"
                        )
                    continue
                rest = rest[1:]
            flags, files = _flags(rest)
            return Command(trainer, flags, files, _ranks(parts[:index], values))
    return None


def _flags(parts: Sequence[str]) -> tuple[dict[str, object], list[str]]:
    """Return the values by flag, without dashes and with underscores, and the YAML files."""
    given: dict[str, list[str]] = {}
    files: list[str] = []
    name = ""
    for part in parts:
        if part.startswith(">") or part in ("2>&1", "1>", "2>"):
            break
        if part.startswith("--"):
            name, equals, value = part[2:].partition("=")
            name = name.replace("-", "_")
            given[name] = [value] if equals else []
            name = "" if equals else name
        elif name:
            given[name].append(part)
        elif part.endswith((".yaml", ".yml", ".json")):
            files.append(part)
        elif "=" in part:
            key, _, value = part.partition("=")
            given[key] = [value]
        else:
            raise ValueError(f"{part!r} follows no flag; write --NAME {part}, or leave it out")
    files += given.pop("config", [])
    return {name: _value(name, words) for name, words in given.items()}, files


def _value(name: str, words: list[str]) -> object:
    for word in words:
        if _UNSET in word:
            unset = re.findall(rf"{_UNSET}(\w+)", word)
            raise ValueError(
                f"--{name}: ${unset[0]} has no value in the script: write the value, or export it"
            )
        if "$(" in word or "`" in word:
            raise ValueError(f"--{name}: {word} is the output of a command: write its value")
    values = [scalar(word) for word in words]
    return True if not values else values[0] if len(values) == 1 else values


def scalar(word: str) -> object:
    """Return a word of a command line as a truth, a number, None or text."""
    if word.lower() in ("true", "false"):
        return word.lower() == "true"
    if word in ("None", "null"):
        return None
    if _NUMBER.match(word):
        return int(word) if re.fullmatch(r"[-+]?\d+", word) else float(word)
    return word


def _ranks(launcher: Sequence[str], values: Mapping[str, str]) -> int | None:
    """Return the number of ranks that the launcher starts; None if it does not say."""
    text = " ".join(launcher).replace("=", " ")

    def number(names: Sequence[str]) -> int | None:
        for name in names:
            if found := re.search(rf"--{name.replace('_', '[_-]')} (\d+)\b", text):
                return int(found[1])
        return None

    each, nodes = number(_RANKS), number(_NODES)
    if each is None and values.get("NPROC_PER_NODE", "").isdigit():
        each = int(values["NPROC_PER_NODE"])
    return None if each is None else each * (nodes or 1)
