"""Files and directories that are mistakes, each under the name that tests/cli/test_mistakes.py gives it."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

from e2e.command_line import TRAINER
from golden_text import human_gpt

MODEL, DATA = TRAINER / "model_untied", TRAINER / "data" / "first50.json"
ADAPTER = TRAINER.parent / "lora" / "q_v_adapter"
# Data of which nothing can be learned, by file.
HOPELESS = {
    "long": [{"conversations": human_gpt("word " * 500, "Short.")}] * 3,
    "chosen": [{"chosen": "a", "rejected": "b"}] * 3,
    "half": [{"instruction": "a", "target": "b"}] * 3,
    "inside": {"data": [{"conversations": [{"from": "human", "value": "a"}]}] * 3},
    "off": [
        {
            "messages": [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": "b", "train": False},
            ]
        }
    ],
    "number": [{"conversations": human_gpt(1, 2)}],
    "novalue": [{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "text": "b"}]}],
    "noturns": [{"conversations": []}],
    "null": [{"conversations": human_gpt("a", None)}],
    "twice": [{"conversations": [*human_gpt("a"), *human_gpt("b", "c")]}],
    "untold": [{"messages": [{"role": "user"}, {"role": "assistant", "content": "b"}]}],
    "listed": [{"messages": [["user", "a"], ["assistant", "b"]]}],
    "told": [{"messages": "user: a"}],
    "tool": [{"conversations": [*human_gpt("a"), {"from": "tool", "value": "b"}]}] * 3,
}


def write_mistaken_files(folder: Path) -> None:
    """Write all of them into `folder`, next to a sound model, an adapter and data."""
    shutil.copy(DATA, folder / "data.json")
    (folder / "empty").mkdir()
    _write_models(folder)
    _write_records(folder)
    _write_other_files(folder)


def _write_models(folder: Path) -> None:
    shutil.copytree(ADAPTER, folder / "adapter")
    for name in (
        "model",
        "huge",
        "deep",
        "heads",
        "above/model",
        "untokenized",
        "listed",
        "numbered",
        "nan",
        "folder",
        "added",
        "hollow",
        "worded",
    ):
        shutil.copytree(MODEL, folder / name)
    for path in (folder / "huge").glob("model*"):
        path.unlink()
    header = json.dumps({"x": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}}).encode()
    (folder / "huge" / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(9))
    (folder / "deep" / "config.json").write_bytes(b'{"a":' * 100_000 + b"1" + b"}" * 100_000)
    config = json.loads((MODEL / "config.json").read_text())
    (folder / "heads" / "config.json").write_text(json.dumps({**config, "num_attention_heads": 5}))
    (folder / "untokenized" / "tokenizer.model").unlink()
    (folder / "listed" / "special_tokens_map.json").write_text('["<s>"]')
    edited = json.loads((MODEL / "tokenizer_config.json").read_text())
    (folder / "numbered" / "tokenizer_config.json").write_text(json.dumps({**edited, "chat_template": 5}))
    (folder / "nan" / "config.json").write_text(json.dumps({**config, "rms_norm_eps": float("nan")}))
    (folder / "hollow" / "tokenizer.model").write_bytes(b"")
    (folder / "worded" / "tokenizer_config.json").write_text(json.dumps({**edited, "legacy": "no"}))
    edited.pop("added_tokens_decoder", None)
    (folder / "added" / "tokenizer_config.json").write_text(json.dumps(edited))
    (folder / "added" / "added_tokens.json").write_text('{"<x>": "32000"}')
    shard = folder / "folder" / "model-00001-of-00002.safetensors"
    shard.unlink()
    shard.mkdir()
    (folder / "link").symlink_to("gone")
    (folder / "gguf").mkdir()
    (folder / "gguf" / "q4.gguf").write_bytes(b"GGUF")


def _write_records(folder: Path) -> None:
    text = DATA.read_text("utf-8")
    for name, content in {
        "page": "<!DOCTYPE html><html>", "python": "[{'conversations': []}]", "cut": text[: len(text) // 2],
        "splits": json.dumps({"train": json.loads(text), "test": []}),
        "text": json.dumps([{"conversations": json.dumps(json.loads(text)[0]["conversations"])}]),
        "comment": f"// chats\n{text}",
        "indented": json.dumps(json.loads(text)[0], indent=2),
        "nested": json.dumps({"rows": json.loads(text)}, indent=2),
        "run": '{"model_name_or_path": "model"}',
        "capitals": '[{"messages": [{"Role": "user", "Content": "a"}]}]',
    }.items():  # fmt: skip
        (folder / f"{name}.json").write_text(content, "utf-8")
    for name, records in HOPELESS.items():
        (folder / f"{name}.json").write_text(json.dumps(records))
    record = [{"id": "1", "conversations": [{"from": "human", "value": "?"}, {"from": "gpt", "value": "x"}]}]
    (folder / "latin.json").write_bytes(json.dumps(record).encode().replace(b"?", b"\xe9"))


def _write_other_files(folder: Path) -> None:
    (folder / "nodata").symlink_to("gone.json")
    (folder / "state").mkdir()
    (folder / "state" / "dataset_info.json").write_text("{}")
    (folder / "state" / "state.json").write_text("{}")
    (folder / "wide.csv").write_bytes("prompt,completion\na,b\n".encode("utf-16"))
    with zipfile.ZipFile(folder / "a.docx", "w") as archive:
        archive.writestr("word/document.xml", "a")
    with zipfile.ZipFile(folder / "archive.csv", "w") as archive:
        archive.write(DATA, "data.json")
    for name, text in {
        "none.json": "[]", "star.yaml": "data_path: *.json\n", "b.yaml": "lr: 1\n", "run.yaml": "lr: 1\n",
        "accelerate.yaml": "compute_environment: LOCAL\ndistributed_type: FSDP\n",
        "comma.csv": "instruction,output\na,b,c\n", "header.csv": "prompt,completion\n", "blank.txt": "",
        "comma.tsv": "prompt,completion\na,b\n", "twice.csv": "prompt,prompt\na,b\n",
        "commas.jsonl": '{"prompt": "a", "completion": "b"},\n' * 3, "none.yaml": "max_steps: None\n",
        "a.md": "# Chat\n", "half.json.txt": '[{"conversations": [{"from": "human", "value": "\\ud800"}]}]',
        "run.sh": "#!/bin/bash\n", "dpo.yaml": "stage: dpo\nmodel_name_or_path: model\ntemplate: llama3\n",
        "cell.csv": 'prompt,completion\n"a"b,c\n', "space.csv": "prompt completion\na b\n",
        "unquoted.json": '[{"conversations: []}]',
        "word.yaml": "base_model: model\nsequence_len: 512\nmicro_batch_size: 1\nval_set_size: ten\n",
        "semi.tsv": "prompt;completion\na;b\n", "plain.json.gz": "packed",
        "half.jsonl": '{"conversations": [{', "other.yaml": "config: b.yaml\n",
        "modules.yaml": "lora: true\nlora_target_modules: [q_proj, 5]\n",
        "lists.jsonl": '["a"]\n["b"]\n', "unnamed.csv": ",\na,b\n", "five.jsonl": '{"text": 5}\n',
        "out.yaml": "output_dir: made  # its model\n",
        "list.yaml": "seed: [1, 2]\n", "flags.json": '{"seed": 1,}', "table.parquet": "none",
        "glued.jsonl": '{"conversations": []}{"conversations": []}',
    }.items():  # fmt: skip
        (folder / name).write_text(text)
