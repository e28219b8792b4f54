"""Labels of LLaMA-Factory: its ShareGPT converter, template and `SupervisedDatasetProcessor`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

THOUGHTS = "<think>\n{}\n</think>\n\n"  # as its data has them, in the text


def encode(request: dict[str, Any], records: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    from llamafactory.data.converter import get_dataset_converter
    from llamafactory.data.loader import _get_dataset_processor
    from llamafactory.data.parser import DatasetAttr, get_dataset_list
    from llamafactory.data.template import get_template_and_fix_tokenizer
    from llamafactory.hparams import DataArguments, ModelArguments
    from llamafactory.model import load_tokenizer

    settings = {"cutoff_len": request["max_length"], **request["settings"]}
    data_args = DataArguments(**settings)
    loaded = load_tokenizer(ModelArguments(model_name_or_path=request["model"]))
    template = get_template_and_fix_tokenizer(loaded["tokenizer"], data_args)
    processor = _get_dataset_processor(data_args, "sft", template, loaded["tokenizer"], loaded["processor"])
    described = request["data"]["description"] if "data" in request else {}
    if described:
        (attributes,) = get_dataset_list([described["dataset"]], described["dataset_dir"])
    else:
        attributes = DatasetAttr("file", "data", formatting="sharegpt", system="system", tools="tools")
    converter = get_dataset_converter(attributes.formatting, attributes, data_args)
    yield {
        "versions": {name: version(name) for name in ("llamafactory", "transformers")},
        "settings": {"template": None, **settings, **described},
    }
    for number, record in enumerate(records):
        try:
            example = converter(record if described else sharegpt(record))
            batch = {name: [value] for name, value in example.items()}
            made = processor.preprocess_dataset(batch)
        except Exception as error:
            yield {"index": number, "dropped": f"{type(error).__name__}: {error}"}
            continue
        rows = [[*map(list, pair)] for pair in zip(made["input_ids"], made["labels"], strict=True)]
        reason = "its converter leaves the record out" if described else why(record)
        yield {"index": number, "rows": rows} if rows else {"index": number, "dropped": reason}


def why(record: dict[str, Any]) -> str:
    """Say which of its rules leaves the record out; it prints "Skipping this abnormal example" only."""
    roles = [message["from"] for message in sharegpt(record)["conversations"] if message["from"] != "system"]
    asks, replies = ("human", "observation"), ("gpt", "function_call")
    for place, role in enumerate(roles):
        if role not in (asks, replies)[place % 2]:
            return f"skipped as abnormal: role {role} at place {place} (it wants question and reply in turns)"
    return "skipped as abnormal: the conversation does not end with a reply" if len(roles) % 2 else "skipped"


def sharegpt(record: dict[str, Any]) -> dict[str, Any]:
    """Return the record in the form of LLaMA-Factory's documentation, which it calls ShareGPT."""
    tools = record.get("tools")
    messages = record["messages"]
    system = ""
    if messages and messages[0]["role"] == "system":
        system, messages = messages[0]["content"] or "", messages[1:]
    return {
        "conversations": [_message(message) for message in messages],
        "system": system,
        "tools": json.dumps([_function(tool) for tool in tools], ensure_ascii=False) if tools else "",
    }


def _function(tool: dict[str, Any]) -> Any:
    return tool.get("function", tool) if isinstance(tool, dict) else tool


def _message(message: dict[str, Any]) -> dict[str, Any]:
    names = {"user": "human", "assistant": "gpt", "tool": "observation"}
    content = message.get("content") or ""
    thoughts = message.get("reasoning_content")
    lead = THOUGHTS.format(thoughts) if thoughts else ""
    if message.get("tool_calls"):
        calls = [_call(each) for each in message["tool_calls"]]
        value = json.dumps(calls[0] if len(calls) == 1 else calls, ensure_ascii=False)
        # A text next to a call has no place in its format: its converter of OpenAI's format leaves it out.
        return {"from": "function_call", "value": lead + value}
    return {"from": names.get(message["role"], message["role"]), "value": lead + content}


def _call(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function", call)
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    return {"name": function["name"], "arguments": arguments}
