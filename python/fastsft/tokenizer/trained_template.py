"""The chat template that a model was trained with, written into its directory (docs/templates.md)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastsft.runtime.output_files import replace_file, write_below
from fastsft.runtime.regular_files import read_json_object

TOOL_TEMPLATE = "tool_use"  # the name that transformers asks for with tools
TEMPLATES = "additional_chat_templates"  # a folder of transformers, next to chat_template.jinja
BASE_NAME = "base_chat_template.jinja"  # not a name that transformers reads
_NAME = "chat_template.jinja"


@dataclass(frozen=True)
class TrainedTemplate:
    """text: Jinja. base: that of the model that training began with, kept in a file of its own; or None.

    tools: what the template `tool_use` becomes; None leaves it as it is.
    """

    text: str
    base: str | None
    tools: str | None = None

    def write(self, directory: Path) -> list[str]:
        """Into the directory of a saved tokenizer, whose tokenizer_config.json exists; the names written.

        In both places where transformers looks: tokenizer_config.json, which old releases read alone, and the
        file next to it. Of several named templates in tokenizer_config.json the one called default. `tools`
        where the directory has tool_use.
        """
        path = directory / "tokenizer_config.json"
        config = read_json_object(path)
        known = config.get("chat_template")
        names = [_NAME, path.name]
        if isinstance(known, list) and not (directory / _NAME).exists():
            others = [self._other(item) for item in known if _name_of(item) != "default"]
            config["chat_template"] = [{"name": "default", "template": self.text}, *others]
            names.remove(_NAME)  # the file would hide the others
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
