"""Imported files train: two steps of small stand-ins, with the written file as `--config`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from family_models import _byte_level, _write_weights, write_family
from fastsft.cli import import_config, plan
from fastsft.train import train
from golden_text import conversation_file

HERE = Path(__file__).parent
FILES = [(path.parent.name, path.stem) for path in sorted(HERE.glob("*/*.yaml"))]
USUAL = ("llamafactory-lora", "axolotl-qlora", "axolotl-half")
# template -> family of the stand-in that has its special tokens
FAMILIES = {"llama-3": "llama3", "llama-2": "llama2", "alpaca_stanford": "llama2"}
GEMMA = ("<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>")
# What a small stand-in on the CPU cannot do, or takes too long for.
SMALL: dict[str, Any] = {
    "use_cpu": True, "max_steps": 2, "model_max_length": 96, "gradient_accumulation_steps": 1,
    "per_device_train_batch_size": 2, "report_to": "none", "data_cache": "none", "push_to_hub": False,
    "hub_model_id": None, "load_best_model_at_end": False, "early_stopping_patience": None, "fp16": False,
    "save_strategy": "no", "eval_strategy": "no", "eval_split": 0.0, "eval_data_path": None,
    "eval_on_start": False, "max_dropped": 1.0, "logging_steps": 1, "dataloader_num_workers": 0,
}  # fmt: skip


def stand_in(folder: Path, template: str) -> Path:
    """A small random model with the special tokens that the template writes."""
    if template != "gemma":
        return write_family(folder, FAMILIES.get(template, "qwen2"))
    folder.mkdir()
    named = {"bos_token": "<bos>", "eos_token": "<end_of_turn>", "pad_token": "<pad>"}
    _write_weights(folder, "llama", _byte_level(folder, GEMMA, named))
    return folder


@pytest.mark.variants(*(f"[{name}]" for name in USUAL))
@pytest.mark.parametrize(("trainer", "name"), FILES, ids=["-".join(each) for each in FILES])
def test_two_steps(
    trainer: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    shutil.copytree(HERE / trainer, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    import_config.main([f"{name}.yaml"])
    written = Path(f"{name}-fastsft.yaml")
    # The embeddings of the stand-ins are tied.
    written.write_text(written.read_text().replace("[embed_tokens, lm_head]", "[norm]"))
    values = yaml.safe_load(written.read_text())
    model = stand_in(tmp_path / "model", values.get("template", ""))
    texts = tmp_path / "texts.jsonl"
    texts.write_text("".join(json.dumps({"text": f"{number} and more."}) + "\n" for number in range(4)))
    is_text = values.get("data_format") == "text"
    result = train({
        **SMALL, "config": str(written), "model_name_or_path": str(model),
        "data_path": str(texts if is_text else conversation_file("dummy_conversation")),
        "output_dir": str(tmp_path / "out"),
    })  # fmt: skip
    assert result.global_step == 2 and 0 < result.training_loss < 20
    report = json.loads((tmp_path / "out" / "data_report.json").read_text())["train"]
    assert report["mask_policy"] == "spans"
    capsys.readouterr()
    assert plan.main(["--config", str(written), "--model", str(model), "--device", "cpu"]) == 0
    assert "a rank at most" in capsys.readouterr().out
