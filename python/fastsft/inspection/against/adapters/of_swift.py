"""Labels of ms-swift: its messages preprocessor and `Template.encode`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

THOUGHTS = "<think>\n{}\n</think>\n\n"  # as its data has them, in the text
NAMES = {"template": "template_type", "system": "default_system"}  # of its command line, and of its code
OF_TEXT = ("system", "response_prefix")
OF_PROCESSOR = ("model_type",)  # settings of the model; the others are of the template


def encode(request: dict[str, Any], records: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    import datasets
    import transformers
    from swift.dataset.preprocessor import AutoPreprocessor, MessagesPreprocessor
    from swift.model import get_processor
    from swift.template import get_template
    from swift.version import __version__

    settings = {"max_length": request["max_length"], "truncation_strategy": "right", **request["settings"]}
    of_model = {name: settings[name] for name in OF_PROCESSOR if name in settings}
    processor = get_processor(request["model"], **of_model)
    chosen = {
        NAMES.get(name, name): as_text(value) if name in OF_TEXT else value
        for name, value in settings.items()
        if name not in OF_PROCESSOR
    }
    template = get_template(processor, **chosen)
    template.set_mode("train")
    shown = {"template_type": template.template_meta.template_type, **settings}
    versions = {"ms-swift": __version__, "transformers": transformers.__version__}
    yield {"versions": versions, "settings": shown}
    as_they_are = "data" in request
    preprocess = MessagesPreprocessor()
    for number, record in enumerate(records):
        try:
            if as_they_are:
                read = AutoPreprocessor()(datasets.Dataset.from_list([record]))
                row = read[0] if len(read) else None
            else:
                row = preprocess.preprocess(row_of(record))
            made = None if row is None else template.encode(row)
        except Exception as error:
            yield {"index": number, "dropped": f"{type(error).__name__}: {error}"}
            continue
        if made is None:
            yield {"index": number, "dropped": "its preprocessor leaves the record out"}
            continue
        entries = made if isinstance(made, list) else [made]
        yield {"index": number, "rows": [[list(e["input_ids"]), list(e["labels"])] for e in entries]}


def as_text(given: str) -> str:
    """Read a text as `TemplateArguments` does: a .txt file, or with escaped line breaks."""
    return Path(given).read_text("utf-8") if given.endswith(".txt") else given.replace("\\n", "\n")


def row_of(record: dict[str, Any]) -> dict[str, Any]:
    """Return the record in the form of ms-swift's documentation: messages, with thoughts in the text."""
    messages = [_message(message) for message in record["messages"]]
    more = {name: record[name] for name in ("tools", "chat_template_kwargs") if record.get(name)}
    return {"messages": messages, **more}


def _message(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message with its thoughts in the text, and its train mark as `loss`."""
    names = {"train": "loss"}
    made = {names.get(name, name): value for name, value in message.items() if name != "reasoning_content"}
    if message.get("reasoning_content"):
        made["content"] = THOUGHTS.format(message["reasoning_content"]) + (message.get("content") or "")
    return made
