"""Flags of FastChat's and Stanford Alpaca's training scripts, which are fastsft's own but for their data."""

from __future__ import annotations

from fastsft.arguments.imports import shared
from fastsft.arguments.imports.draft import Draft
from fastsft.arguments.imports.framework import Framework

_SAME = (
    "model_name_or_path trust_remote_code padding_side data_path eval_data_path lazy_preprocess cache_dir "
    "model_max_length"
)
_LORA = "lora_r lora_alpha lora_dropout lora_target_modules lora_weight_path lora_bias q_lora"


def _shared(draft: Draft) -> None:
    shared.optimizer(draft, "optim")
    shared.schedule(draft, "lr_scheduler_type")
    shared.trackers(draft)
    shared.deepspeed(draft)
    shared.fsdp(draft)


def _stanford(draft: Draft) -> None:
    draft.default("mask_policy", "spans")
    draft.default("template", "alpaca_stanford", "its own prompt")
    draft.differ(
        "template: alpaca_stanford is written: the prompt of records without an input; records with one have "
        "another prompt there"
    )


def _lora(draft: Draft) -> None:
    """Write `lora: true` for FastChat's train_lora.py."""
    if any(key in draft.given for key in _LORA.split()):
        draft.default("lora", True, "train_lora.py")


FASTCHAT = Framework(
    "FastChat", "fastchat", "0.2.36",
    {name: name for name in f"{_SAME} {_LORA}".split()}, {"flash_attn": shared.KERNELS}, {},
    "", (_shared,), _lora,
)  # fmt: skip
STANFORD_ALPACA = Framework(
    "Stanford Alpaca", "alpaca", "2023",
    {name: name for name in _SAME.split()}, {}, {},
    "", (_shared,), _stanford,
)  # fmt: skip
