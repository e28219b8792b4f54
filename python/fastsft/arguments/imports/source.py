"""Reads a file of another trainer: YAML, JSON, or a shell script with its command."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fastsft.arguments.imports.draft import Draft
from fastsft.arguments.imports.framework import Framework
from fastsft.arguments.imports.recognise import frameworks, recognise
from fastsft.arguments.imports.shell import read_command
from fastsft.arguments.parsing.flag_file import load_yaml, place_in_yaml
from fastsft.runtime.near_names import missing_hint
from fastsft.runtime.regular_files import read_json, read_text

_ENDINGS = (".yaml", ".yml", ".json")
_KINDS = {list: "a list", str: "a text", dict: "no keys", type(None): "an empty file"}


class Source(NamedTuple):
    """A file that was read: the trainer, how it was known, and the values by key."""

    framework: Framework
    known_by: str
    given: dict[str, object]
    ranks: int | None

    def translate(self, place: Path) -> Draft:
        """Return the new file's values and what became of each key."""
        return self.framework.translate(self.given, place)


def read_source(path: Path, name: str | None = None) -> Source:
    """Read the file at `path`. name: the trainer's name, or None to recognise it.

    ValueError if the file cannot be read, or if the trainer cannot be recognised.
    """
    if path.suffix in _ENDINGS:
        given = _read_values(path)
        if name is not None:
            return Source(frameworks()[name], "--from", given, None)
        framework, its = recognise(given)
        more = f" and {len(its) - 4} more" if len(its) > 4 else ""
        return Source(framework, f"{', '.join(its[:4])}{more}", given, None)
    command = read_command(read_text(path, of_user=True))
    given = {}
    for file in command.files:
        found = Draft({}, path.parent).found(file)
        if found is None:
            raise ValueError(
                f"the command names {file}, and there is no such file here{missing_hint(path.parent / file)}"
            )
        given |= _read_values(Path(found))
    given |= command.flags
    # Any trainer may have a file train.py: a file of keys says more than the program's name.
    if name is None and command.files and command.trainer == "alpaca":
        return Source(recognise(given)[0], "the keys of its file", given, command.ranks)
    return Source(frameworks()[name or command.trainer], "its command", given, command.ranks)


def _read_values(path: Path) -> dict[str, object]:
    import yaml  # type: ignore[import-untyped]

    if path.suffix == ".json":
        content: Any = read_json(path, of_user=True)
    else:
        text = read_text(path, of_user=True)
        try:
            content = load_yaml(text)
        except yaml.MarkedYAMLError as error:
            raise ValueError(f"{path} is not YAML{place_in_yaml(text, error)}") from None
        except (yaml.YAMLError, RecursionError) as error:
            raise ValueError(f"{path} is not YAML: {error}; mend it, or name another file") from None
    if not isinstance(content, Mapping) or not content:
        raise ValueError(
            f"{path}: expected a configuration, keys with values, got "
            f"{_KINDS.get(type(content), 'a number')}; data files need no import: --data_path names them"
        )
    return {str(key): value for key, value in content.items()}
