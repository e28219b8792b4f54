"""A patched transformers, for a model directory and for a model of it: known equal, or refused by name."""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from transformers.models.llama import modeling_llama

from altered_models import Condensed, echo
from altered_runs import load, ours
from fastsft.arguments import TrainingArguments
from fastsft.runtime import messages as notices
from fastsft.trainer import Trainer
from padded_items import WIDTH, random_items
from tiny_models import write_model

LLAMA = "transformers.models.llama.modeling_llama"
LIGER = {
    "rope.py": "def liger_rotary_pos_emb(q, k, cos, sin, position_ids=None):\n    return q, k\n",
    "rms_norm.py": "def other(self, x):\n    return x\n",
}


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "_said", set())


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("LlamaRotaryEmbedding", Condensed, r'altered_models\.Condensed, which has no effect.*"linear"'),
        ("LlamaAttention.forward", echo, r"replaced by altered_models\.echo, which has no effect on"),
        ("LlamaRMSNorm.__init__", lambda *_: None, r"LlamaRMSNorm\.__init__ is replaced"),
        ("apply_rotary_pos_emb", echo, r"apply_rotary_pos_emb is replaced"),
        ("create_causal_mask", echo, r"create_causal_mask is replaced"),
        ("ACT2FN", {"silu": echo}, r"ACT2FN is replaced by"),
    ],
)  # fmt: skip
def test_a_directory_is_not_trained_under_a_patch(
    name: str, value: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{LLAMA}.{name}", value)
    directory = write_model(tmp_path / "qwen", "qwen3")
    ours(str(directory), tmp_path / "other family")
    monkeypatch.undo()
    directory = write_model(tmp_path / "model", "untied")
    monkeypatch.setattr(f"{LLAMA}.{name}", value)
    with pytest.raises(ValueError, match=message):
        ours(str(directory), tmp_path)
    monkeypatch.undo()
    ours(str(directory), tmp_path)


def test_a_patch_between_the_trainer_and_its_methods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    args = TrainingArguments(
        str(tmp_path / "o"), use_cpu=True, model_max_length=WIDTH, max_steps=1, plot_loss=False
    )
    rows = random_items()
    given = Trainer(load(tmp_path), args=args, train_dataset=rows, eval_dataset=rows)
    monkeypatch.setattr(modeling_llama.LlamaMLP, "forward", echo)
    with pytest.raises(ValueError, match=r"Trainer\.train: .*LlamaMLP\.forward is replaced"):
        given.train()
    with pytest.raises(ValueError, match=r"Trainer\.evaluate: .*LlamaMLP\.forward is replaced"):
        given.evaluate()
    with pytest.raises(ValueError, match=r"Trainer\.predict: .*LlamaMLP\.forward is replaced"):
        given.predict(rows)
    monkeypatch.undo()
    handle = given.model.module.lm_head.register_forward_hook(lambda *_: None)
    with pytest.raises(ValueError, match=r"Trainer\.evaluate: model\.lm_head has a forward hook"):
        given.evaluate()
    handle.remove()
    given.model.module.model.rotary_emb.inv_freq /= 2
    with pytest.raises(ValueError, match=r"Trainer\.train: the modules.*changed after.*inv_freq"):
        given.train()
    given.model.module.model.rotary_emb.inv_freq *= 2
    given.model.config.rope_scaling = {"type": "linear", "factor": 2.0}  # modules do not hear of it
    given.model.module.config.pad_token_id = 3
    assert given.train().global_step == 1


def test_a_callback_that_alters_the_model(tmp_path: Path) -> None:
    from transformers import TrainerCallback

    class Freezes(TrainerCallback):
        def on_train_begin(self, *_: Any, model: Any, **__: Any) -> None:
            model.module.lm_head.requires_grad_(False)

    trainer = ours(load(tmp_path), tmp_path)
    trainer.add_callback(Freezes())
    with pytest.raises(ValueError, match=r"lm_head\.weight is frozen"):
        trainer.train()


@pytest.mark.parametrize("name", ["llama_flash_attn", "llama2_flash_attn", "llama_xformers_attn"])
def test_fastchats_patches_are_known(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, said: None
) -> None:
    for missing in ("flash_attn", "flash_attn.flash_attn_interface", "flash_attn.bert_padding"):
        module = types.ModuleType(missing)
        for wanted in ("__version__", "flash_attn_func", "flash_attn_varlen_kvpacked_func", "pad_input",
                       "flash_attn_varlen_qkvpacked_func", "unpad_input"):  # fmt: skip
            setattr(module, wanted, None)
        monkeypatch.setitem(sys.modules, missing, module)
    directory, model = write_model(tmp_path / "a", "untied"), load(tmp_path)
    monkeypatch.setattr(modeling_llama.LlamaAttention, "forward", modeling_llama.LlamaAttention.forward)
    monkeypatch.setattr(modeling_llama.LlamaModel, "_prepare_decoder_attention_mask", None, raising=False)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: (9, 0))
    patch = importlib.import_module(f"fastchat.train.{name}_monkey_patch")
    replace = [getattr(patch, found) for found in vars(patch) if found.startswith("replace_llama_attn")]
    replace[0]()
    assert modeling_llama.LlamaAttention.forward.__module__ == patch.__name__
    ours(str(directory), tmp_path / "directory")
    ours(model, tmp_path)
    assert (
        caplog.text.count(f"fastchat.train.{name}_monkey_patch, whose attention fastsft computes itself") == 1
    )


def test_a_forged_name_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def xformers_forward(self: Any, hidden_states: Any, **_: Any) -> Any:
        return hidden_states

    xformers_forward.__module__ = "fastchat.train.llama_xformers_attn_monkey_patch"
    xformers_forward.__qualname__ = "xformers_forward"
    monkeypatch.setattr(modeling_llama.LlamaAttention, "forward", xformers_forward)
    with pytest.raises(ValueError, match=r"LlamaAttention\.forward is replaced"):
        ours(load(tmp_path), tmp_path)


def test_kernels_of_liger_are_known_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, said: None
) -> None:
    package = tmp_path / "liger_kernel" / "transformers"
    package.mkdir(parents=True)
    for file, text in {"__init__.py": "", "../__init__.py": "", **LIGER}.items():
        (package / file).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    model = load(tmp_path)
    rope = importlib.import_module("liger_kernel.transformers.rope")
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", rope.liger_rotary_pos_emb)
    ours(model, tmp_path)
    assert "liger_kernel, whose kernels compute what fastsft's do" in caplog.text
    other = importlib.import_module("liger_kernel.transformers.rms_norm").other
    monkeypatch.setattr(modeling_llama.LlamaRMSNorm, "forward", other)
    with pytest.raises(ValueError, match=r"replaced by liger_kernel\.transformers\.rms_norm\.other"):
        ours(model, tmp_path)
    for name in [name for name in sys.modules if name.split(".")[0] == "liger_kernel"]:
        monkeypatch.delitem(sys.modules, name)
