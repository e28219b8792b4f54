"""Labels of TRL: the data set that `SFTTrainer` prepares, through its collator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def encode(request: dict[str, Any], records: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    import transformers
    import trl

    defaults = {"assistant_only_loss": True, "max_length": request["max_length"]}
    settings = {**defaults, **request["settings"]}
    trainer = _trainer(request["model"], settings, records)
    versions = {"trl": trl.__version__, "transformers": transformers.__version__}
    yield {"versions": versions, "settings": settings}
    as_they_are = "data" in request
    prepared = [
        {**record, "number": index} if as_they_are else _columns(index, record)
        for index, record in enumerate(records)
    ]
    try:
        rows = _rows(trainer, prepared)
    except Exception:  # one record fails the whole data set: each is tried alone, to name it
        rows = None
    for number in range(len(records)):
        if rows is not None:
            found = rows.get(number)
        else:
            try:
                found = _rows(trainer, [prepared[number]]).get(number)
            except Exception as error:
                stops = f"stops the whole run: {type(error).__name__}: {error}"
                yield {"index": number, "dropped": stops}
                continue
        yield {"index": number, "rows": [found]} if found else _nothing_learned(number)


def _nothing_learned(number: int) -> dict[str, Any]:
    return {"index": number, "dropped": "no token is learned within max_length"}


def _trainer(model: str, settings: dict[str, Any], records: list[dict[str, Any]]) -> Any:
    """Return a trainer with the user's tokenizer. Its model is tiny: it takes no part in the labels."""
    import datasets
    import transformers
    import trl

    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    tiny = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
            pad_token_id=None,
        )
    )  # fmt: skip
    config = trl.SFTConfig(
        output_dir="trainer", report_to="none", use_cpu=True, bf16=False, shuffle_dataset=False, **settings
    )
    probe = [{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]}]
    train = datasets.Dataset.from_list(probe)
    return trl.SFTTrainer(model=tiny, args=config, train_dataset=train, processing_class=tokenizer)


def _columns(index: int, record: dict[str, Any]) -> dict[str, Any]:
    more = {name: record[name] for name in ("tools", "chat_template_kwargs") if record.get(name)}
    return {"number": index, "messages": record["messages"], **more}


def _rows(trainer: Any, rows: list[dict[str, Any]]) -> dict[int, list[list[int]]]:
    """Return ids and labels of each record that TRL keeps."""
    import datasets

    raw = datasets.Dataset.from_list(rows)
    made = trainer._prepare_dataset(raw, trainer.processing_class, trainer.args, False, None, "train")
    found = {}
    for row in made:
        batch = trainer.data_collator([{name: row[name] for name in ("input_ids", "labels")}])
        found[row["number"]] = [batch["input_ids"][0].tolist(), batch["labels"][0].tolist()]
    return found
