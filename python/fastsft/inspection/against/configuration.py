"""Reads another trainer's configuration, to compare the labels that it makes with those of its import."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastsft.arguments.imports.axolotl_data import described_files as axolotl_files
from fastsft.arguments.imports.draft import Draft
from fastsft.arguments.imports.llamafactory import LLAMAFACTORY
from fastsft.arguments.imports.llamafactory_data import described_files as llamafactory_files
from fastsft.arguments.imports.source import Source, read_source
from fastsft.inspection.against.frameworks import FRAMEWORKS
from fastsft.runtime.regular_files import read_json

Described = Callable[[Draft], Iterator[tuple[str, dict[str, Any]]]]
# Keys that change labels: what the adapters take.
_KEYS = {
    "llamafactory": "template cutoff_len train_on_prompt mask_history default_system tool_format "
    "enable_thinking preserve_thinking",
    "axolotl": "sequence_len excess_length_strategy chat_template chat_template_jinja train_on_inputs "
    "eot_tokens special_tokens default_system_message",
    "trl": "assistant_only_loss completion_only_loss max_length chat_template_path eos_token pad_token "
    "dataset_text_field truncation_mode",
    "swift": "template loss_scale agent_template max_length truncation_strategy system model_type "
    "use_chat_template template_backend response_prefix enable_thinking add_non_thinking_prefix",
}
_DESCRIBED: Mapping[str, Described] = {"llamafactory": llamafactory_files, "axolotl": axolotl_files}


@dataclass(frozen=True)
class Configuration:
    """A configuration of the trainer `name`. settings: its keys that change labels, with their values.

    descriptions: by data file, what the trainer's own reader needs to know of it; None for trainers that need
    nothing. imported: the values that `fastsft import` writes.
    """

    name: str
    settings: Mapping[str, Any]
    imported: Mapping[str, object]
    descriptions: Mapping[str, dict[str, Any]] | None

    @property
    def reads_data(self) -> bool:
        """True if the trainer's own reader knows how to read data files."""
        return self.descriptions is None or bool(self.descriptions)

    def description_of(self, path: str) -> dict[str, Any]:
        """Return the description of a data file. A file that no data set names has the only one.

        ValueError if there are several.
        """
        if self.descriptions is None:
            return {}
        resolved = str(Path(path).resolve())
        if resolved in self.descriptions:
            return self.descriptions[resolved]
        every = list({repr(each): each for each in self.descriptions.values()}.values())
        if len(every) > 1:
            files = ", ".join(self.descriptions)
            raise ValueError(
                f"{path} is the file of none of the data sets ({files}): give one of these as --data"
            )
        return every[0]


def read_configuration(path: Path, name: str | None = None) -> Configuration:
    """Read a file of another trainer, or LLaMA-Factory's `dataset_info.json` alone.

    name: the trainer; None to recognise it. ValueError if the file cannot be read, or is of a trainer whose
    labels are not compared.
    """
    source = _data_sets(path) if path.name == "dataset_info.json" else read_source(path, name)
    trainer = source.framework.name
    if trainer not in _KEYS:
        known = ", ".join(FRAMEWORKS[each].title for each in _KEYS)
        raise ValueError(f"{path} is a file of {source.framework.title}; labels are compared with {known}")
    draft = source.translate(path.parent)
    settings = {key: source.given[key] for key in _KEYS[trainer].split() if source.given.get(key) is not None}
    system = str(settings.get("system", ""))  # of ms-swift; the adapter has another working directory
    if system.endswith(".txt") and (place := draft.found(system)) is not None:
        settings["system"] = str(Path(place).resolve())
    described = _DESCRIBED.get(trainer)
    found = {str(Path(file).resolve()): each for file, each in described(draft)} if described else None
    return Configuration(trainer, settings, draft.values, found)


def _data_sets(path: Path) -> Source:
    """Return a run with all local data sets of a `dataset_info.json`."""
    content = read_json(path, of_user=True)
    entries = content.items() if isinstance(content, dict) else ()
    names = [name for name, entry in entries if isinstance(entry, dict) and "file_name" in entry]
    if not names:
        raise ValueError(
            f"{path}: expected data sets by name, each with file_name, got {content!r:.60}; write "
            '{"NAME": {"file_name": "FILE"}}'
        )
    given: dict[str, object] = {"dataset": names, "dataset_dir": str(path.absolute().parent)}
    return Source(LLAMAFACTORY, "dataset_info.json", given, None)
