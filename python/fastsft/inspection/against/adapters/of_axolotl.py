"""Labels of axolotl: its `chat_template` prompt strategy.

Longer rows are then dropped or cut, as its `excess_length_strategy` says; its own filter needs many packages.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

# Settings of a data set in its YAML; the others are of the configuration.
OF_DATA = ("roles_to_train", "train_on_eos", "train_on_eot", "split_thinking", "chat_template", "roles")


def encode(request: dict[str, Any], records: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    import transformers
    from axolotl.prompt_strategies.chat_template import load
    from axolotl.utils.dict import DictDefault

    settings = {
        "sequence_len": request["max_length"], "chat_template": "tokenizer_default", **request["settings"],
    }  # fmt: skip
    of_data = {name: settings[name] for name in OF_DATA if name in settings}
    config = DictDefault({name: value for name, value in settings.items() if name not in of_data})
    config["chat_template"] = settings["chat_template"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(request["model"])
    strategy = load(tokenizer, config, {**of_data, "type": "chat_template"})
    yield {"versions": {name: version(name) for name in ("axolotl", "transformers")}, "settings": settings}
    for number, record in enumerate(records):
        try:
            made = strategy.tokenize_prompt(record)
        except Exception as error:
            yield {"index": number, "dropped": f"{type(error).__name__}: {error}"}
            continue
        ids, labels = list(made["input_ids"]), list(made["labels"])
        limit = settings["sequence_len"]
        if len(ids) > limit and settings.get("excess_length_strategy", "drop") == "drop":
            yield {"index": number, "dropped": f"{len(ids)} tokens, and sequence_len is {limit}"}
            continue
        yield {"index": number, "rows": [[ids[:limit], labels[:limit]]]}
