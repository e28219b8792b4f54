"""Reads `--config FILE`, a YAML or JSON file whose keys are names of flags."""

from __future__ import annotations

import json
import os
import re
import shlex
from argparse import Action
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, get_origin

from fastsft.arguments.imports.recognise import about_others_file, looks_foreign
from fastsft.arguments.parsing.foreign_flags import SHORT_NAMES
from fastsft.arguments.parsing.hints import hints as hints_about
from fastsft.arguments.parsing.options import WordsAction
from fastsft.arguments.parsing.wrong_values import wrong_choice, wrong_number
from fastsft.arguments.values import union_members
from fastsft.runtime.near_names import nearest_path
from fastsft.runtime.regular_files import read_json, read_text

_SCALAR_TAGS = tuple(f"tag:yaml.org,2002:{name}" for name in ("int", "float", "timestamp"))
_FILE_FIELDS = ("data_path", "eval_data_path")  # fields whose values are file names, joined by commas
_NESTED = "; flags are not nested: give each its name, at the left margin"
_PLAIN_YAML = "; write a flag a line at the left margin, and quote texts that begin with * & ! % or @"


class Written(NamedTuple):
    """A number or date in YAML, and its text in the file; for example, YAML reads the text `010` as 8."""

    value: object
    text: str


def read_flag_file(path: str | Path) -> dict[str, Any]:
    """Read a .yaml, .yml or .json file that contains a single object; return its values by key.

    Numbers and dates in YAML become `Written`. ValueError if the file is missing or contains something else.
    """
    file = Path(path).expanduser()
    if not os.path.lexists(file):
        near = nearest_path(file)
        way = f"the nearest there is {near}" if near else "fastsft recipes NAME writes one"
        raise ValueError(f"--config: {path}: expected a YAML or JSON file of flags, got no such file; {way}")
    if file.suffix not in (".yaml", ".yml", ".json"):
        raise ValueError(
            f"--config: expected a .yaml, .yml or .json file of flags, got {path}; fastsft recipes NAME "
            "writes one"
        )
    try:
        if file.suffix == ".json":
            content = read_json(file, of_user=True)
        else:
            content = _read_yaml(read_text(file, of_user=True), path)
    except ValueError as error:
        raise ValueError(f"--config: {str(error).removeprefix('--config: ')}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ValueError(
            f"--config: {path}: expected names of flags with values, as in `learning_rate: 1e-5`, got "
            f"{_kind(content)}; write one a line; records of data are named by --data_path"
        )
    return {str(key): value for key, value in content.items()}


def _read_yaml(text: str, path: str | Path) -> object:
    import yaml  # type: ignore[import-untyped]

    try:
        loader = yaml_loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        if isinstance(node, yaml.MappingNode):
            _check_twice(node.value)
        content = loader.construct_document(node)
        if not isinstance(content, dict):
            return content
        nodes = {loader.construct_object(name, deep=True): value for name, value in node.value}
        texts = {key: scalar.value for key, scalar in nodes.items() if scalar.tag in _SCALAR_TAGS}
        return content | {key: Written(content[key], text) for key, text in texts.items()}
    except yaml.MarkedYAMLError as error:
        place = place_in_yaml(text, error)
        way = "" if ";" in place else _PLAIN_YAML
        raise ValueError(f"--config: {path} is not YAML{place}{way}") from None
    except _TwiceError as error:
        raise ValueError(f"--config: {path}: {error}") from None
    # PyYAML raises ValueError for an impossible date, such as 2026-13-01.
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"--config: {path} is not YAML: {reason}; mend it, or name another file") from None


def _check_twice(items: list[tuple[Any, Any]]) -> None:
    """Raise ValueError if a key is there twice; PyYAML would take the last."""
    lines: dict[object, int] = {}
    for name, _ in items:
        line = name.start_mark.line + 1
        if (first := lines.setdefault(name.value, line)) != line:
            raise _TwiceError(f"{name.value} is there twice, in lines {first} and {line}: leave one out")


class _TwiceError(Exception):
    """A key that a YAML file has twice."""


# A part of PyYAML's message -> the way out
_YAML_ADVICE = {
    r"'\t'": "YAML indents with spaces, not with tabs",
    "expected ':'": "write `name: value`, with a space after the colon",
    "mapping values are not allowed": "quote a value with a colon, and begin all names in one column",
    "single document": "leave out --- and all that follows it",
    "undefined alias": "put a value that begins with * into quotes",
    "constructor for the tag": "leave out the tag, which begins with !",
    "a quoted scalar": "close the quotation mark",
    "a flow mapping": "close the bracket, or leave it out",
    "a flow sequence": "close the bracket, or leave it out",
    "a block collection": "write `- item`, with a space after the hyphen",
    "expected <block end>": "begin all names in one column, and close each quotation mark",
}


def place_in_yaml(text: str, error: Any) -> str:
    """Return a PyYAML error's line, problem and way out."""
    mark = error.problem_mark
    if error.context == "while scanning a simple key":  # the problem's own mark is on the next line
        mark = error.context_mark
    lines = text.splitlines()
    where = f" in line {mark.line + 1}" if mark else ""
    line = f", `{lines[mark.line].strip()[:80]}`" if mark and mark.line < len(lines) else ""
    told = f"{error.context} {error.problem}"
    advice = next((f"; {way}" for part, way in _YAML_ADVICE.items() if part in told), "")
    return f"{where}{line}: {error.problem}{advice}"


def flag_defaults(
    content: Mapping[str, Any], actions: Mapping[str, Action], hints: Mapping[str, Any], path: str
) -> dict[str, Any]:
    """Return the values of a file as argparse's defaults, by field.

    Strings are converted as on the command line. For a string field, numbers and dates become their text in
    the file, and a list of data files is joined by commas. Other values must have the field's type.
    ValueError names all wrong values and all unknown keys, with hints.
    """
    defaults: dict[str, Any] = {}
    unknown: dict[str, object] = {}
    problems: list[str] = []
    for key, value in content.items():
        name = _field(key, actions)
        if name not in actions:
            unknown[key] = value.value if isinstance(value, Written) else value
        elif name in defaults:
            problems.append(f"{key} is there twice, in two spellings")
        else:
            try:
                defaults[name] = _value(key, value, actions[name], hints.get(name, str))
            except ValueError as error:
                problems.append(str(error))
                defaults[name] = None
    problems = [*_unknown_keys(unknown, actions), *problems]
    whose = f"{line}; " if unknown and (line := import_line(content, path)) else ""
    if len(problems) > 1:
        listed = "\n- ".join(problems)
        raise ValueError(f"--config: {path}: {whose}{len(problems)} things to change:\n- {listed}")
    if problems:
        raise ValueError(f"--config: {path}: {whose}{problems[0]}")
    return defaults


def import_line(content: Iterable[str], path: str) -> str:
    """Return the advice to import another trainer's file; "" if the keys are not clearly its own."""
    if way := about_others_file(content):
        return way
    found = looks_foreign(content)
    if found is None:
        return ""
    trainer, keys = found
    named = ", ".join(keys[:4])
    return f"a file of {trainer} ({named}); fastsft import {shlex.quote(str(path))} writes one for --config"


def _field(key: str, actions: Mapping[str, Action]) -> str:
    name = key.lstrip("-").replace("-", "_")
    return SHORT_NAMES.get(name, name) if name not in actions else name


def _unknown_keys(unknown: Mapping[str, object], actions: Mapping[str, Action]) -> list[str]:
    """Return a hint for each unknown key."""
    flags = [f"--{name}" for name in actions]
    problems = []
    for key, value in unknown.items():
        flag = f"--{_field(key, actions)}"
        if key == "config":
            problems.append("config: a file of flags names no other; write the flags of both into one")
            continue
        *_, hint = hints_about([flag], flags, {flag: value})
        nested = _NESTED if isinstance(value, dict) else ""
        problems.append(f"unknown key {key!r}; {hint.removeprefix(f'{flag}: ')}{nested}")
    return problems


def _value(key: str, given: object, action: Action, hint: object) -> object:
    value = given.value if isinstance(given, Written) else given
    # A rejected field accepts its neutral values, whatever their type.
    if any(type(value) is type(item) and value == item for item in getattr(action.help, "neutral", ())):
        return value
    members = union_members(hint)
    if isinstance(value, str):
        return _converted(key, value, action)
    if value is None and (type(None) in members or action.default is None):
        return None
    accepted = {get_origin(member) or member for member in members}
    if accepted - {type(None)} == {str} and (word := _as_word(given, action.dest)) is not None:
        return _converted(key, word, action)
    if float in accepted and type(value) is int:
        return float(value)
    if type(value) is list and action.nargs == "+":
        _check_items(key, value, action)
        return value
    if type(value) in accepted:
        return value
    if action.choices is not None and value in action.choices:
        return value
    # YAML reads no, yes, on and off as booleans.
    if (
        isinstance(value, bool)
        and action.choices is not None
        and ("yes" if value else "no") in action.choices
    ):
        return "yes" if value else "no"
    raise ValueError(f"{key}: expected {_type_names(accepted)}, got {_got(key, value, accepted)}")


def _check_items(key: str, items: list[object], action: Action) -> None:
    """Raise ValueError for an item of another type than the words of the flag on a command line."""
    wrong = [item for item in items if not isinstance(item, str)]
    if action.type in (None, str) and wrong:
        raise ValueError(
            f"{key}: expected a list of texts, got {wrong[0]!r:.60} in it; quote it, or leave it out"
        )


def _got(key: str, value: object, accepted: set[Any]) -> str:
    """Return text that says what the value is, and the way out."""
    if value is None:
        return "nothing; leave it out"
    if isinstance(value, bool):
        way = "quote the text" if str in accepted else "write a number"
        return f"bool {value}; YAML reads yes and on as true: {way}, or leave it out"
    got = f"{_kind(value)} {value!r}"
    if isinstance(value, dict):
        return f"{got}{_NESTED}"
    if isinstance(value, list):
        example = json.dumps(value[0]) if value and not isinstance(value[0], list | dict) else "VALUE"
        return f"{got}; this flag has one value, as in {key}: {example}"
    return f"{got}; write true or false" if bool in accepted else f"{got}; write a value of that kind"


def _as_word(value: object, field: str) -> str | None:
    """Return a number, a date or listed files as a command-line word; None for other values."""
    if isinstance(value, Written):
        return value.text
    if type(value) is int:  # a number from JSON, whose text in the file is not kept
        return str(value)
    if field in _FILE_FIELDS and isinstance(value, list) and value:
        whole = all(isinstance(item, str) and item and "," not in item for item in value)
        return ",".join(value) if whole else None
    return None


def _type_names(kinds: set[Any]) -> str:
    """Return the names of types as text, such as `str or none`."""
    names = sorted(getattr(kind, "__name__", str(kind)) for kind in kinds - {type(None)})
    return " or ".join(names + (["none"] if type(None) in kinds else []))


def _converted(key: str, word: str, action: Action) -> object:
    convert = action.type if callable(action.type) else str
    try:
        value = convert(word)
    except Exception as error:  # a script's own conversion function may raise any exception
        text = wrong_number(word, convert) if convert in (int, float) else str(error)
        raise ValueError(f"{key}: {text}") from None
    if action.choices is not None and value not in action.choices:
        raise ValueError(f"{key}: {wrong_choice(word, action.choices)}")
    return [value] if action.nargs == "+" and not isinstance(action, WordsAction) else value


def _kind(value: object) -> str:
    return {type(None): "nothing", dict: "an object", list: "a list", str: "text"}.get(
        type(value), type(value).__name__
    )


_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$")


def yaml_loader(text: str) -> Any:
    """Return a safe PyYAML loader for `text` that reads `1e-4` as a number, as YAML 1.2 does."""
    return _loader_type()(text)


def load_yaml(text: str) -> Any:
    """Parse the YAML document in `text` with `yaml_loader`. yaml.YAMLError if the text is not valid."""
    return yaml_loader(text).get_single_data()


@cache
def _loader_type() -> type[Any]:
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """Loader with its own resolver, because a change of SafeLoader would affect the whole process."""

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))
    return Loader
