"""FastChat's data module, peft and the Hugging Face Trainer, watched: the baseline of bench_lora.py.

usage: python benchmarks/baselines/peft_trainer.py --rank 8 --targets q_proj v_proj --dropout 0 \
    --report R --started <unix time> --threads 2 -- <flags>

As fastchat_trainer.py, with the model that FastChat's train_lora.py makes of it: peft's get_peft_model. That
script itself needs DeepSpeed to be imported. Adapters are drawn after the seed of the flags. With --four_bits
the model is opened again as FastChat's --q_lora does it, by bitsandbytes.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import torch
from fastchat_trainer import WatchedTrainer, main
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import AutoModelForCausalLM, BitsAndBytesConfig


class PeftTrainer(WatchedTrainer):
    """WatchedTrainer of a model with adapters."""

    config: LoraConfig
    four_bits = False

    def __init__(self, *, model: Any, args: Any, **kwargs: Any) -> None:
        if self.four_bits:
            model = in_four_bits(model.config._name_or_path)
        torch.manual_seed(args.seed)
        super().__init__(model=get_peft_model(model, self.config), args=args, **kwargs)


def in_four_bits(directory: str) -> Any:
    """NF4 with double quantisation, computed with in float32."""
    quantization = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_use_double_quant=True, bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype=torch.float32,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_pretrained(
        directory, quantization_config=quantization, dtype=torch.float32
    )
    model.config.use_cache = False
    return prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--targets", nargs="+", required=True)
    parser.add_argument("--dropout", type=float, required=True)
    parser.add_argument("--four_bits", action="store_true")
    own, rest = parser.parse_known_args(sys.argv[1 : sys.argv.index("--")])
    PeftTrainer.four_bits = own.four_bits
    PeftTrainer.config = LoraConfig(
        task_type="CAUSAL_LM", r=own.rank, lora_alpha=2 * own.rank, lora_dropout=own.dropout,
        target_modules=own.targets[0] if own.targets == ["all-linear"] else own.targets,
    )  # fmt: skip
    main([*rest, *sys.argv[sys.argv.index("--") :]], PeftTrainer)
