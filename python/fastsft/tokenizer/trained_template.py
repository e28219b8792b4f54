"""The chat template that a model was trained with, written into its directory (docs/templates.md)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from fastsft.runtime.output_files import replace_file
from fastsft.runtime.regular_files import read_json_object

BASE_NAME = "base_chat_template.jinja"  # not a name that transformers reads
_NAME = "chat_template.jinja"


@dataclass(frozen=True)
class TrainedTemplate:
    """text: Jinja. base: that of the model that training began with, kept in a file of its own; or None."""

    text: str
    base: str | None

    def write(self, directory: Path) -> list[str]:
        """Into the directory of a saved tokenizer, whose tokenizer_config.json exists; the names written.

        In both places where transformers looks: tokenizer_config.json, which old releases read alone, and the
        file next to it. Of several named templates in tokenizer_config.json the one called default.
        """
        path = directory / "tokenizer_config.json"
        config = read_json_object(path)
        known = config.get("chat_template")
        names = [_NAME, path.name]
        if isinstance(known, list) and not (directory / _NAME).exists():
            others = [item for item in known if not isinstance(item, dict) or item.get("name") != "default"]
            config["chat_template"] = [{"name": "default", "template": self.text}, *others]
            names.remove(_NAME)  # the file would hide the others
        else:
            config["chat_template"] = self.text
            replace_file(directory / _NAME, self.text)
        replace_file(path, json.dumps(config, indent=2, ensure_ascii=False) + "\n")
        if self.base is not None:
            replace_file(directory / BASE_NAME, self.base)
            names.append(BASE_NAME)
        return names
