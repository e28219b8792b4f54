"""Read the tokenizer files and chat templates of a model directory once, and write them with every save.

The contents are read when the tokenizer is loaded. Later changes in the directory have no effect on saves.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastsft.runtime.output_files import replace_file, write_below
from fastsft.runtime.regular_files import (
    MOST_TOKENIZER_BYTES,
    file_inside,
    open_regular,
    read_json_object,
    read_regular,
    read_text,
)
from fastsft.tokenizer.settings import read_config

# The tokenizer files that a save copies from the model directory (docs/spec/trainer_semantics.md, section
# 23).
NAMES = (
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)
_MOST_TEMPLATES = 1000


def decides_ids(name: str) -> bool:
    """True if the content of a file with this name may affect token ids."""
    return name.startswith(("tokenizer", "special_tokens", "added_tokens", "vocab", "merges"))


def is_tokenizer_file(name: str) -> bool:
    """True if a file with this name in a model directory belongs to the tokenizer."""
    return name in NAMES or decides_ids(name) or name == BASE_NAME


@dataclass(frozen=True)
class KeptFiles:
    """The contents of a directory's tokenizer files.

    contents: content by file name, including the chat templates in their folder. digests: SHA-256, by file
    name, of the files whose contents affect token ids.
    """

    contents: dict[str, bytes]
    digests: dict[str, str]

    @classmethod
    def from_directory(cls, directory: str | Path) -> KeptFiles:
        """Read the tokenizer files of `directory`.

        ValueError if a link leads out of the directory (except into the `blobs` of the Hugging Face cache),
        or if a file is not regular or is too large.
        """
        folder = Path(directory)
        contents = {
            name: read_regular(path, MOST_TOKENIZER_BYTES, "a file of a tokenizer")
            for name in (*NAMES, *_template_names(folder))
            if (path := file_inside(folder, name)) is not None
        }
        digests = {
            name: hashlib.sha256(contents[name]).hexdigest() if name in contents else _digest(folder / name)
            for name in sorted(_names(folder))
        }
        return cls(contents, digests)

    def write(self, directory: Path) -> None:
        """Write the files to an existing directory.

        A file that already has this content is not written again.
        """
        for name, content in self.contents.items():
            path = directory / name
            if not (path.is_file() and not path.is_symlink() and path.read_bytes() == content):
                write_below(directory, name, content)


def _template_names(folder: Path) -> list[str]:
    templates = folder / TEMPLATES
    if not templates.is_dir():
        return []
    names = sorted(path.name for path in templates.iterdir())
    if len(names) > _MOST_TEMPLATES:
        raise ValueError(f"{templates}: expected at most {_MOST_TEMPLATES} chat templates, got {len(names)}")
    return [f"{TEMPLATES}/{name}" for name in names]


def _names(folder: Path) -> list[str]:
    """Return the names of the tokenizer files in the directory: those whose contents affect the token ids."""
    return [path.name for path in folder.iterdir() if decides_ids(path.name) and path.is_file()]


def _digest(path: Path) -> str:
    with open_regular(path, "a file of a tokenizer") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


_FILE, _SPECIAL = "tokenizer_config.json", "extra_special_tokens"
# Maps class names of transformers 5 to older names, which transformers 4 and 5 both know.
_OLDER_CLASSES = {"TokenizersBackend": "PreTrainedTokenizerFast"}


def write_compatible_config(directory: str | Path) -> None:
    """Rewrite tokenizer_config.json, if necessary, so that both transformers 4 and 5 can read the file."""
    path = Path(directory) / _FILE
    if not path.is_file():
        return
    config = read_json_object(path)
    made = compatible_config(config, has_json=(path.parent / "tokenizer.json").is_file())
    if made != config:
        replace_file(path, json.dumps(made, indent=2, ensure_ascii=False) + "\n")


def compatible_config(config: Mapping[str, Any], *, has_json: bool) -> dict[str, Any]:
    """Return `config`, the content of tokenizer_config.json, in a form that transformers 4 and 5 can read.

    Only the tokenizer class and the special tokens may change. has_json: True if the directory has a
    tokenizer.json, which the class PreTrainedTokenizerFast needs.
    """
    made = dict(config)
    name = str(made.get("tokenizer_class"))
    if has_json and name in _OLDER_CLASSES:
        made["tokenizer_class"] = _OLDER_CLASSES[name]
    if isinstance(made.get(_SPECIAL), list):  # transformers 4 accepts only an object
        listed = made.pop(_SPECIAL)
        older = made.get("additional_special_tokens") or []
        made["additional_special_tokens"] = [*older, *(token for token in listed if token not in older)]
    return made


TOOL_TEMPLATE = "tool_use"  # the template that transformers uses if there are tools
TEMPLATES = "additional_chat_templates"  # transformers' folder for templates next to chat_template.jinja
BASE_NAME = "base_chat_template.jinja"  # transformers does not read a file with this name
_NAME = "chat_template.jinja"


@dataclass(frozen=True)
class TrainedTemplate:
    """The chat template with which a model was trained (docs/templates.md).

    text: the Jinja text. base: the base model's template, which is saved in a file of its own; None: no such
    file is saved. tools: the new text of the template `tool_use`; None: that template is not changed.
    """

    text: str
    base: str | None
    tools: str | None = None

    def write(self, directory: Path) -> list[str]:
        """Write the template to the directory of a saved tokenizer. Return the names of the written files.

        transformers reads templates from chat_template.jinja and, in old releases only, from
        tokenizer_config.json, which must exist. The template is written to both files. If
        tokenizer_config.json has several named templates, only its template "default" is replaced. `tools` is
        written if the directory has the template tool_use.
        """
        path = directory / "tokenizer_config.json"
        config = read_json_object(path)
        templates = config.get("chat_template")
        names = [_NAME, path.name]
        if isinstance(templates, list) and not (directory / _NAME).exists():
            others = [self._other(item) for item in templates if _name_of(item) != "default"]
            config["chat_template"] = [{"name": "default", "template": self.text}, *others]
            names.remove(_NAME)  # that file would make transformers ignore tokenizer_config.json's templates
        else:
            config["chat_template"] = self.text
            replace_file(directory / _NAME, self.text)
        replace_file(path, json.dumps(config, indent=2, ensure_ascii=False) + "\n")
        if self.base is not None:
            replace_file(directory / BASE_NAME, self.base)
            names.append(BASE_NAME)
        for_tools = f"{TEMPLATES}/{TOOL_TEMPLATE}.jinja"
        if self.tools is not None and (directory / for_tools).exists():
            write_below(directory, for_tools, self.tools)
        return names

    def _other(self, item: Any) -> Any:
        is_changed = self.tools is not None and _name_of(item) == TOOL_TEMPLATE
        return {**item, "template": self.tools} if is_changed else item


def _name_of(item: object) -> object:
    return item.get("name") if isinstance(item, dict) else None


def read_chat_template(directory: str | Path, name: str | None = None) -> str | None:
    """Return a model's chat template; None if the model has none.

    The template is read from chat_template.jinja or, without this file, from tokenizer_config.json. name: the
    name of the template if there are several; None for "default". ValueError if the name is unknown, or if
    tokenizer_config.json cannot be read.
    """
    folder, requested = Path(directory), name or "default"
    next_to_it = _template_file(folder, requested)
    if next_to_it is not None:
        return read_text(next_to_it, what="a chat template")
    texts = _templates_of_config(folder)
    if name is not None and requested not in texts:
        one = "one chat template, without a name: leave the flag out"
        without = one if _template_file(folder, "default") else "no chat template: name one with --template"
        raise ValueError(
            f"--chat_template_name: got {name!r}; the model has {', '.join(map(str, texts)) or without}"
        )
    return texts.get(requested)


def read_tool_template(directory: str | Path) -> str | None:
    """Return the template `tool_use`, which transformers uses for chats with tools; None if it is missing.

    If there is a chat_template.jinja, the templates in tokenizer_config.json are ignored.
    """
    folder = Path(directory)
    next_to_it = _template_file(folder, TOOL_TEMPLATE)
    if next_to_it is not None:
        return read_text(next_to_it, what="a chat template")
    hides = _template_file(folder, "default") is not None
    return None if hides else _templates_of_config(folder).get(TOOL_TEMPLATE)


def _template_file(folder: Path, name: str) -> Path | None:
    in_folder = f"additional_chat_templates/{name}.jinja"
    return file_inside(folder, "chat_template.jinja" if name == "default" else in_folder)


def _templates_of_config(folder: Path) -> dict[str, str]:
    content = read_config(folder).get("chat_template")
    if isinstance(content, list):
        items = [item for item in content if isinstance(item, dict)]
        pairs = [(item.get("name"), item.get("template")) for item in items]
    else:
        pairs = [("default", content)]
    return {key: text for key, text in pairs if isinstance(key, str) and isinstance(text, str)}
