"""Labels of axolotl: its `chat_template` prompt strategy.

Longer rows are then dropped or cut, as its `excess_length_strategy` says; its own filter needs many packages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

# Settings of a data set in its YAML; the others are of the configuration.
OF_DATA = ("roles_to_train", "train_on_eos", "train_on_eot", "split_thinking", "chat_template", "roles")


def encode(request: dict[str, Any], records: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    import transformers
    from axolotl.prompt_strategies.chat_template import load
    from axolotl.utils.dict import DictDefault

    described = request["data"]["description"] if "data" in request else {}
    is_chat = str(described.get("type", "chat_template")).startswith("chat_template")
    settings = {
        "sequence_len": request["max_length"],
        **({"chat_template": "tokenizer_default"} if is_chat else {}),
        **request["settings"],
    }
    of_data = {name: settings[name] for name in OF_DATA if name in settings}
    config = DictDefault({name: value for name, value in settings.items() if name not in of_data})
    config["chat_template"] = settings.get("chat_template")
    tokenizer = transformers.AutoTokenizer.from_pretrained(request["model"])
    marks = {"message_field_training": "train"}
    if described:
        config["base_model"] = config["tokenizer_config"] = config["base_model_config"] = request["model"]
        # A template of the data set stands above that of the configuration.
        own = {name: value for name, value in of_data.items() if name != "chat_template"}
        tokenize = reader_of(config, {**of_data, **described, **own})
    else:
        strategy = load(tokenizer, config, {**marks, **of_data, "type": "chat_template"})
        tokenize = strategy.tokenize_prompt
    yield {
        "versions": {name: version(name) for name in ("axolotl", "transformers")},
        "settings": {**settings, **described},
    }
    for number, record in enumerate(records):
        yield {"index": number, **outcome(tokenize, record, settings)}


def outcome(
    tokenize: Callable[[dict[str, Any]], Any], record: dict[str, Any], settings: dict[str, Any]
) -> dict[str, Any]:
    """Return the record's row, or why it is dropped."""
    try:
        made = tokenize(record)
    except Exception as error:
        return {"dropped": f"{type(error).__name__}: {error}"}
    ids, labels = list(made["input_ids"]), list(made["labels"])
    limit = settings["sequence_len"]
    if len(ids) > limit and settings.get("excess_length_strategy", "drop") == "drop":
        return {"dropped": f"{len(ids)} tokens, and sequence_len is {limit}"}
    return {"rows": [[ids[:limit], labels[:limit]]]}


def reader_of(config: Any, described: dict[str, Any]) -> Callable[[dict[str, Any]], Any]:
    """Return what reads a record of an entry of `datasets`, as axolotl's own loader wraps its data set."""
    from axolotl.loaders import load_tokenizer
    from axolotl.utils.data.shared import datasets_with_name_generator
    from axolotl.utils.data.wrappers import get_dataset_wrapper
    from axolotl.utils.dict import DictDefault
    from datasets import Dataset

    tokenizer = load_tokenizer(config)
    entry = next(iter(datasets_with_name_generator([DictDefault(described)])))
    base, _, style = (entry.type if isinstance(entry.type, str) else "").partition(":")

    def tokenize(record: dict[str, Any]) -> Any:
        rows, _ = get_dataset_wrapper(
            dataset_config=entry, tokenizer=tokenizer, cfg=config, dataset_base_type=base or None,
            dataset=Dataset.from_list([record]), dataset_prompt_style=style or None,
        )  # fmt: skip
        if not len(rows):
            raise ValueError("its strategy leaves the record out")
        return rows[0]

    return tokenize
