"""Command line parser for dataclasses, by the rules of transformers' HfArgumentParser without importing it.

Every field `a_b` gives `--a_b` and `--a-b`; booleans take an optional word; a field whose default is True
also gives `--no_a_b`. The rules case by case: trainer_arguments.md, section 5.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import sys
import types
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser, ArgumentTypeError
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

_TRUE = ("yes", "true", "t", "y", "1")
_FALSE = ("no", "false", "f", "n", "0")


def parse_bool(word: str | bool) -> bool:
    """True for yes, true, t, y, 1 and False for no, false, f, n, 0, in any case; else an argparse error."""
    if isinstance(word, bool):
        return word
    if word.lower() in _TRUE:
        return True
    if word.lower() in _FALSE:
        return False
    raise ArgumentTypeError(
        f"Truthy value expected: got {word} but expected one of "
        "yes/no, true/false, t/f, y/n, 1/0 (case insensitive)."
    )


def _member_types(annotation: Any) -> tuple[Any, ...]:
    is_union = get_origin(annotation) in (Union, types.UnionType)
    return tuple(t for t in get_args(annotation) if t is not type(None)) if is_union else (annotation,)


def _scalar_type(annotation: Any) -> Any:
    """The one type of a command line word: a union that holds `str` is a string."""
    members = _member_types(annotation)
    return str if str in members else members[0]


def _spellings(prefix: str, name: str) -> list[str]:
    names = [f"--{prefix}_{name}", f"--{prefix}-{name.replace('_', '-')}"] if prefix else [f"--{name}"]
    return names if prefix or "_" not in name else [*names, f"--{name.replace('_', '-')}"]


def _option(field: dataclasses.Field[Any], annotation: Any) -> dict[str, Any]:
    """argparse's keyword arguments for one field."""
    scalar = _scalar_type(annotation)
    default = field.default
    if default is dataclasses.MISSING:
        default = field.default_factory() if field.default_factory is not dataclasses.MISSING else None
    option: dict[str, Any] = {"default": default, "help": field.metadata.get("help")}
    if get_origin(scalar) is Literal:
        choices = get_args(scalar)
        return {**option, "choices": choices, "type": str}
    if scalar is bool:
        bare = annotation is bool or default is not None
        return {**option, "type": parse_bool, **({"nargs": "?", "const": True} if bare else {})}
    if get_origin(scalar) is list:
        return {**option, "type": get_args(scalar)[0], "nargs": "+"}
    return {**option, "type": scalar}


class DataclassParser(ArgumentParser):
    """Parses a command line into instances of `dataclass_types`, in their order.

    An unknown option raises ValueError and names the nearest known one; a value of the wrong type leaves with
    argparse's exit status 2.
    """

    def __init__(self, dataclass_types: Iterable[type], **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", ArgumentDefaultsHelpFormatter)
        super().__init__(**kwargs)
        self.dataclass_types = list(dataclass_types)
        for dataclass_type in self.dataclass_types:
            hints = get_type_hints(dataclass_type)
            for field in dataclasses.fields(dataclass_type):
                if field.init:
                    self._add_field(field, hints[field.name])

    def _add_field(self, field: dataclasses.Field[Any], annotation: Any) -> None:
        self.add_argument(*_spellings("", field.name), **_option(field, annotation))
        if field.default is True and _scalar_type(annotation) is bool:
            self.add_argument(
                *_spellings("no", field.name), dest=field.name, action="store_false", default=True
            )

    def parse_args_into_dataclasses(
        self,
        args: Sequence[str] | None = None,
        return_remaining_strings: bool = False,
        look_for_args_file: bool = True,
        args_filename: str | None = None,
    ) -> tuple[Any, ...]:
        """One instance a dataclass, in order; `args` defaults to `sys.argv[1:]`.

        A file named like the program with the suffix `.args` (or `args_filename`) is put before the
        command line. Raises ValueError for unknown options unless `return_remaining_strings`, which appends
        them to the result.
        """
        words = list(sys.argv[1:] if args is None else args)
        file = (
            Path(args_filename)
            if args_filename
            else Path(sys.argv[0]).with_suffix(".args")
            if sys.argv[0]
            else None
        )
        if (args_filename or look_for_args_file) and file is not None and file.exists():
            words = file.read_text(encoding="utf-8").split() + words
        namespace, remaining = self.parse_known_args(words)
        values = vars(namespace)
        outputs = [
            kind(**{f.name: values[f.name] for f in dataclasses.fields(kind) if f.init})
            for kind in self.dataclass_types
        ]
        if return_remaining_strings:
            return (*outputs, remaining)
        if remaining:
            raise ValueError(
                "Some specified arguments are not used by the HfArgumentParser: "
                f"{remaining}{self._nearest(remaining)}"
            )
        return tuple(outputs)

    def _nearest(self, words: Sequence[str]) -> str:
        known = [option for option in self._option_string_actions if option.startswith("--")]
        hints = []
        for word in words:
            flag = word.split("=")[0]
            near = difflib.get_close_matches(flag.replace("-", "_").replace("__", "--", 1), known, 1, 0.0)
            if flag.startswith("--") and near:
                hints.append(f"{flag}: the nearest known flag is {near[0]}")
            elif not flag.startswith("-"):
                hints.append(f"{word!r} follows no flag; a value with spaces needs quotes")
        return "; " + "; ".join(hints) if hints else ""

    def parse_dict(self, args: dict[str, Any], allow_extra_keys: bool = False) -> tuple[Any, ...]:
        """Instances from a dictionary, values as they are. Unknown keys raise ValueError unless allowed."""
        unused = set(args)
        outputs = []
        for kind in self.dataclass_types:
            names = {f.name for f in dataclasses.fields(kind) if f.init}
            outputs.append(kind(**{name: value for name, value in args.items() if name in names}))
            unused -= names
        if unused and not allow_extra_keys:
            raise ValueError(f"Some keys are not used by the HfArgumentParser: {sorted(unused)}")
        return tuple(outputs)

    def parse_json_file(self, json_file: str | Path, allow_extra_keys: bool = False) -> tuple[Any, ...]:
        """`parse_dict` on a JSON file."""
        return self.parse_dict(json.loads(Path(json_file).read_text(encoding="utf-8")), allow_extra_keys)

    def parse_yaml_file(self, yaml_file: str | Path, allow_extra_keys: bool = False) -> tuple[Any, ...]:
        """`parse_dict` on a YAML file."""
        import yaml  # type: ignore[import-untyped]

        return self.parse_dict(yaml.safe_load(Path(yaml_file).read_text(encoding="utf-8")), allow_extra_keys)
