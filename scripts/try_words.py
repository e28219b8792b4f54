"""Trains small models next to one release of transformers, and opens what was saved next to another.

For every family and type of rotation of tests/support/version_words.py: a random model in the words of the
first release takes one step, `fastsft.train.train` saves it, and the first release computes logits with the
configuration of the source and the saved weights. The second release opens the saved directory; its logits
must be the same. A record a case goes to --records (JSON lines); the table of families is printed. The status
is 1 when logits differ by more than 1e-3, or a case fails.

    python scripts/try_words.py --trains newer/bin/python --opens older/bin/python
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TOLERANCE = 1e-3  # of logits that spread by about 1
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}<|endoftext|>{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
# The same directory of `save_pretrained` gives other logits in the other release, without fastsft as well.
LIBRARIES_DIFFER = {"apertus": "parameters of its activation are bfloat16 in one release"}
LENGTHS = (12, 100)  # below and above the positions of the models


def main() -> int:
    options = _options()
    if options.role:
        _make(options) if options.role == "make" else _open(options)
        return 0
    with tempfile.TemporaryDirectory(prefix="fastsft-words-") as folder:
        for role, python in (("make", options.trains), ("open", options.opens)):
            _run(python, role, folder, options)
        records = [json.loads(line) for line in (Path(folder) / "records").read_text().splitlines()]
    with options.records.open("a") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)
    print(table(records))
    return 1 if any(_is_wrong(record) for record in records) else 0


def _is_wrong(record: dict[str, Any]) -> bool:
    differs = record["apart"] > TOLERANCE and record["family"] not in LIBRARIES_DIFFER
    return differs or bool(record["error"])


def table(records: list[dict[str, Any]]) -> str:
    """Markdown, a line a family."""
    lines = [
        "| family | trained with | opened with | types | largest difference | notes |",
        "|---|---|---|---|---|---|",
    ]
    for family in dict.fromkeys(record["family"] for record in records):
        own = [record for record in records if record["family"] == family]
        types = ", ".join(dict.fromkeys(record["kind"] for record in own))
        apart = max(record["apart"] for record in own)
        notes = "; ".join(f"{record['kind']}: {record['error']}" for record in own if record["error"])
        notes = notes or LIBRARIES_DIFFER.get(family, "")
        versions = f"{own[0]['trains']} | {own[0]['opens']}"
        lines.append(f"| {family} | {versions} | {types} | {apart:.1e} | {notes} |")
    return "\n".join(lines)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--trains", default=sys.executable, help="an interpreter; default: this one")
    parser.add_argument("--opens", default=sys.executable, help="an interpreter; default: this one")
    parser.add_argument("--families", nargs="*", default=[], help="default: all")
    parser.add_argument("--records", type=Path, default=Path("words.jsonl"), help="default: %(default)s")
    parser.add_argument("--role", choices=["make", "open"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def _run(python: str, role: str, folder: str, options: argparse.Namespace) -> None:
    paths = f"{ROOT / 'python'}:{ROOT / 'tests/support'}:{ROOT / 'tests'}"
    command = [python, __file__, "--role", role, "--folder", folder, "--families", *options.families]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, check=True)


def _make(options: argparse.Namespace) -> None:
    import version_words

    for name, family, kind, part in version_words.cases():
        if options.families and family not in options.families:
            continue
        folder = options.folder / name.replace(" ", "+")
        record = {"family": family, "kind": kind, "trains": _release(), "apart": 0.0, "error": ""}
        try:
            _train(folder, family, kind, part)
        except Exception as error:  # a record of its own
            record["error"] = _first_line(error)
        (folder / "record.json").write_text(json.dumps(record))


def _train(folder: Path, family: str, kind: str, part: Any) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    import version_words
    from fastsft.runtime.versions import library_major
    from fastsft.train import train

    words = version_words.newer if library_major() > 4 else version_words.older
    rows = _write_tokenizer(folder / "source")
    settings = words(family, kind, part)
    settings |= {key: rows for key in ("vocab_size", "vocab_size_per_layer_input") if key in settings}
    torch.manual_seed(0)
    config = AutoConfig.for_model(**json.loads(json.dumps(settings)))
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder / "source")
    train(_flags(folder, kind))
    expected = AutoModelForCausalLM.from_pretrained(
        folder / "saved", config=AutoConfig.from_pretrained(folder / "source"), dtype=torch.float32,
        attn_implementation="eager",
    )  # fmt: skip
    torch.save(_logits(expected), folder / "expected.pt")


def _release() -> str:
    import transformers

    return transformers.__version__


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"


def _write_tokenizer(directory: Path) -> int:
    import byte_level_files

    content = byte_level_files.small_qwen2()
    byte_level_files.write_directory(
        directory,
        json.dumps(content),
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|endoftext|>",
            "chat_template": TEMPLATE,
        },
    )
    return 8 * (
        max([*content["model"]["vocab"].values(), *(t["id"] for t in content["added_tokens"])]) // 8 + 1
    )


def _flags(folder: Path, kind: str) -> dict[str, Any]:
    records = [
        {"conversations": [{"from": "human", "value": f"Hello {i}?"}, {"from": "gpt", "value": "Hi there."}]}
        for i in range(4)
    ]
    (folder / "data.json").write_text(json.dumps(records))
    return {
        "model_name_or_path": str(folder / "source"), "data_path": str(folder / "data.json"),
        "output_dir": str(folder / "saved"), "max_steps": 1, "per_device_train_batch_size": 4,
        "model_max_length": 32 if kind == "longrope" else 64, "use_cpu": True,
        "report_to": "none", "data_cache": "none",
    }  # fmt: skip


def _logits(model: Any) -> list[Any]:
    import torch

    generator = torch.Generator().manual_seed(7)
    model.eval()
    with torch.no_grad():
        return [
            model(input_ids=torch.randint(3, 60, (1, length), generator=generator), use_cache=False).logits
            for length in LENGTHS
        ]


def _open(options: argparse.Namespace) -> None:
    for path in sorted(options.folder.glob("*/record.json")):
        record = {**json.loads(path.read_text()), "opens": _release()}
        if not record["error"]:
            try:
                record["apart"] = _difference(path.parent)
            except Exception as error:  # a record of its own
                record["error"] = _first_line(error)
        with (options.folder / "records").open("a") as file:
            file.write(json.dumps(record) + "\n")


def _difference(folder: Path) -> float:
    """Largest difference of the logits of the saved model from those that its trainer computed."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    # Gemma 2's default attention leaves out the soft cap in 4.57, and is eager in 5.24.
    model = AutoModelForCausalLM.from_pretrained(
        folder / "saved", dtype=torch.float32, attn_implementation="eager"
    )
    AutoTokenizer.from_pretrained(folder / "saved")
    expected = torch.load(folder / "expected.pt")
    return max(
        float((first - second).abs().max()) for first, second in zip(_logits(model), expected, strict=True)
    )


if __name__ == "__main__":
    sys.exit(main())
