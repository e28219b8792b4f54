"""Parses command lines into dataclasses by the rules of transformers' HfArgumentParser, without importing it.

A field `a_b` has the flags `--a_b` and `--a-b`. The value of a boolean flag is optional. A boolean field
whose default is True also has `--no_a_b`. All rules are in docs/spec/trainer_arguments.md, section 5.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from argparse import ArgumentDefaultsHelpFormatter, ArgumentError, ArgumentParser, Namespace
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import fastsft
from fastsft.arguments.given import COMMAND_LINE, PYTHON, made_with
from fastsft.arguments.help import HelpAction
from fastsft.arguments.parsing.flag_file import flag_defaults, import_line, load_yaml, read_flag_file
from fastsft.arguments.parsing.foreign_flags import SHORT_NAMES, about_foreign
from fastsft.arguments.parsing.hints import clearer, unknown_words
from fastsft.arguments.parsing.options import (
    FieldAction,
    NoFieldAction,
    fields_on_line,
    options_of,
    spellings,
    word_type,
)
from fastsft.arguments.values import type_hints
from fastsft.runtime.regular_files import read_text

_CONFIG = "config"
_NEGATIVE_NUMBER = re.compile(r"^-(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?$|^-inf$")


class DataclassParser(ArgumentParser):
    """Command line parser that makes an instance of each class in `dataclass_types`, in their order.

    `--config FILE.yaml|json` names a file of flags, which the command line overrides. An unknown option
    raises ValueError with a hint; a value of the wrong type ends the program with argparse's status 2. Other
    keyword arguments are passed to argparse (`fromfile_prefix_chars="@"` reads flags from @file). `--model`
    and `--data` are short for `--model_name_or_path` and `--data_path`, unless fields have these names.
    """

    def __init__(self, dataclass_types: type | Iterable[type] | None = None, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", ArgumentDefaultsHelpFormatter)
        kwargs.setdefault("prog", _program())
        has_help = kwargs.pop("add_help", True)
        super().__init__(**kwargs, add_help=False)
        self._negative_number_matcher = _NEGATIVE_NUMBER  # argparse's own pattern would treat -1e-5 as a flag
        if has_help:
            self.add_argument(
                "-h", "--help", action=HelpAction, help="flags by subject; all of them: --help all"
            )
        self.given: dict[str, str] = {}
        self._words: list[str] = []
        kinds = dataclass_types or []
        self.dataclass_types: list[type] = [kinds] if isinstance(kinds, type) else list(kinds)
        for kind in self.dataclass_types:
            self._add_dataclass(kind)
        self._reads_config = "--config" not in self._option_string_actions
        if self._reads_config:
            self.add_argument("--config", help="YAML or JSON file of flags; the command line wins")

    def _add_dataclass(self, kind: type) -> None:
        title = getattr(kind, "_argument_group_name", None)
        group = self.add_argument_group(title) if title is not None else self
        hints = type_hints(kind)
        for field in dataclasses.fields(kind):
            if not field.init:
                continue
            hint = word_type(hints[field.name])
            options, aliases = options_of(field, hint)
            options.setdefault("action", FieldAction)
            group.add_argument(*spellings(field.name), *aliases, **options)
            if field.default is True and hint in (bool, bool | None):
                about = {
                    key: field.metadata[key] for key in field.metadata if key not in ("aliases", "action")
                }
                group.add_argument(
                    f"--no_{field.name}",
                    f"--no-{field.name.replace('_', '-')}",
                    dest=field.name,
                    action=NoFieldAction,
                    **{**about, "default": False},
                )

    def parse_args_into_dataclasses(
        self,
        args: Sequence[str] | None = None,
        return_remaining_strings: bool = False,
        look_for_args_file: bool = True,
        args_filename: str | Path | None = None,
        args_file_flag: str | None = None,
    ) -> tuple[Any, ...]:
        """Return an instance of each dataclass, in order. args: words to parse; default: `sys.argv[1:]`.

        Words in argument files are parsed before the command line. The argument files are `args_filename`, by
        default the program's path with the suffix `.args`, and the files that the flag `args_file_flag`
        names. If arguments were added to the parser itself, their namespace follows the instances. ValueError
        for unknown options, unless `return_remaining_strings` is True; they are then appended to the result.
        """
        files = _default_files(look_for_args_file, args_filename)
        namespace, remaining = self.parse_values(args, files, args_file_flag)
        values = vars(namespace)
        outputs: list[Any] = [
            made_with(
                kind, {f.name: values.pop(f.name) for f in dataclasses.fields(kind) if f.init}, self.given
            )
            for kind in self.dataclass_types
        ]
        if values:
            outputs.append(namespace)
        if return_remaining_strings:
            return (*outputs, remaining)
        if remaining:
            self.refuse(remaining)
        return tuple(outputs)

    def error(self, message: str) -> NoReturn:
        """Print the error without argparse's hundreds of usage lines, and exit with status 2."""
        said = clearer(message, self._words, self._option_string_actions)
        self.exit(2, f"{self.prog}: error: {said}; {self.prog} --help all lists all flags\n")

    def parse_values(
        self,
        args: Sequence[str] | None = None,
        files: Sequence[Path] = (),
        args_file_flag: str | None = None,
    ) -> tuple[Namespace, list[str]]:
        """Return all field values, before instances are made, and the words that no option accepts.

        args: words to parse; default: `sys.argv[1:]`. files: files with words that are parsed first; missing
        files are skipped. Afterwards, `self.given` has the source of each given field.
        """
        self.given = {}
        argv = list(sys.argv[1:] if args is None else args)
        if args_file_flag:
            named, argv = named_files(argv, args_file_flag)
            files = [*files, *named]
        texts = [read_text(file, of_user=True) for file in files if file.exists()]
        argv = [word for text in texts for word in text.split()] + argv
        if self._reads_config:
            configs, argv = named_files(argv, f"--{_CONFIG}", allow_abbrev=False)
            if configs:
                self._read_config(str(configs[-1]))
        self._words = [self._in_full(word) for word in argv]
        namespace, remaining = self.parse_known_args(self._words)
        if self._reads_config:
            delattr(namespace, _CONFIG)
        self.given |= dict.fromkeys(fields_on_line(namespace), COMMAND_LINE)
        return namespace, remaining

    def _get_option_tuples(self, option_string: str) -> Any:
        """Return the flags that an abbreviation may mean; none if the word is another trainer's flag.

        For example, `--chat_template` must not become --chat_template_name.
        """
        matches = super()._get_option_tuples(option_string)
        name = option_string.partition("=")[0].lstrip("-").replace("-", "_")
        return [] if len(matches) == 1 and about_foreign(name) is not None else matches

    def _in_full(self, word: str) -> str:
        """Replace a short flag such as --model by its full name, unless the short name is a field's own."""
        flag, equals, value = word.partition("=")
        full = f"--{SHORT_NAMES.get(flag.removeprefix('--'), '')}"
        flags = self._option_string_actions
        return f"{full}{equals}{value}" if flag[:2] == "--" and flag not in flags and full in flags else word

    def _read_config(self, path: str) -> None:
        """Set the values of a --config file as defaults, which flags override."""
        defaults = self.file_values(path)
        self.set_defaults(**defaults)
        self.given = dict.fromkeys(defaults, path)
        for action in self._actions:
            action.required = action.required and action.dest not in defaults

    def refuse(self, words: Sequence[str]) -> NoReturn:
        """Raise ValueError for words that no option accepts; for another trainer's file, with its keys."""
        for word in words:
            is_file = word.endswith((".yaml", ".yml")) and Path(word).expanduser().is_file()
            if is_file and import_line(read_flag_file(word), word):
                self.file_values(word)
        raise ValueError(unknown_words(words, self._option_string_actions))

    def file_values(self, path: str) -> dict[str, Any]:
        """Return the values of a `--config` file by field. ValueError as in `flag_defaults`."""
        return self.checked_values(read_flag_file(path), path)

    def checked_values(self, given: dict[str, Any], path: str) -> dict[str, Any]:
        """Return values by field. path: the file that they are of. ValueError as in `flag_defaults`."""
        actions = {action.dest: action for action in self._actions if action.dest not in ("help", _CONFIG)}
        hints: dict[str, Any] = {}
        for kind in self.dataclass_types:
            hints |= type_hints(kind)
        return flag_defaults(given, actions, hints, path)

    def parse_dict(
        self, args: dict[str, Any], allow_extra_keys: bool = False, *, given: Mapping[str, str] | None = None
    ) -> tuple[Any, ...]:
        """Return an instance of each dataclass, made from a dictionary.

        given: each value's source; default: Python. ValueError for unknown keys, unless
        `allow_extra_keys` is True.
        """
        if not allow_extra_keys:
            self.check_names(args)
        self.given = {name: (given or {}).get(name, PYTHON) for name in args}
        outputs: list[Any] = []
        for kind in self.dataclass_types:
            names = {f.name for f in dataclasses.fields(kind) if f.init}
            own = {name: value for name, value in args.items() if name in names}
            outputs.append(made_with(kind, own, self.given))
        return tuple(outputs)

    def check_names(self, names: Iterable[str]) -> None:
        """Raise ValueError, with hints, for names that are not fields."""
        fields = {f.name for kind in self.dataclass_types for f in dataclasses.fields(kind) if f.init}
        unknown = sorted(set(names) - fields)
        if unknown:
            message = unknown_words([f"--{name}" for name in unknown], [f"--{name}" for name in fields])
            raise ValueError(message.replace("--", "").replace("flag", "name"))

    def parse_json_file(self, json_file: str | Path, allow_extra_keys: bool = False) -> tuple[Any, ...]:
        """Call `parse_dict` with the content of a JSON file."""
        return self.parse_dict(json.loads(Path(json_file).read_text(encoding="utf-8-sig")), allow_extra_keys)

    def parse_yaml_file(self, yaml_file: str | Path, allow_extra_keys: bool = False) -> tuple[Any, ...]:
        """Call `parse_dict` with the content of a YAML file; in nested objects, `1e-4` is a number."""
        import yaml  # type: ignore[import-untyped]

        text = Path(yaml_file).read_text(encoding="utf-8")
        content, numbers = yaml.safe_load(text), load_yaml(text)
        inside = {key: numbers[key] for key, value in content.items() if isinstance(value, dict)}
        return self.parse_dict({**content, **inside}, allow_extra_keys)


def _program() -> str | None:
    """Return the command that runs one of fastsft's own scripts; None for other programs."""
    path = Path(sys.argv[0]) if sys.argv else Path()
    ours = Path(fastsft.__file__).parent
    return f"python -m fastsft.{path.stem}" if path.suffix == ".py" and path.parent == ours else None


def _default_files(look: bool, filename: str | Path | None) -> list[Path]:
    if filename:
        return [Path(filename)]
    return [Path(sys.argv[0]).with_suffix(".args")] if look and sys.argv and sys.argv[0] else []


def named_files(argv: list[str], flag: str, allow_abbrev: bool = True) -> tuple[list[Path], list[str]]:
    """Return the files that `flag` names in `argv`, and the other words."""
    finder = ArgumentParser(add_help=False, allow_abbrev=allow_abbrev, exit_on_error=False)
    finder.add_argument(flag, type=str, action="append", dest="files")
    try:
        parsed, rest = finder.parse_known_args(argv)
    except ArgumentError:
        raise ValueError(f"{flag}: expected the name of a file, got none") from None
    return [Path(name) for name in parsed.files or []], rest
